import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_protocol.codec import Codec, token_entries
from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.errors import LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    Cancel,
    Credit,
    End,
    EndReason,
    Generate,
    GoAway,
    Hello,
    Message,
    Sampling,
    StatsReply,
    Tokens,
    pack_ids,
)

from tests.protocol.helpers import generate, open_pair
from tests.protocol.vectors import read_all

encode = msgspec.msgpack.encode
FRAMES = [v.frame for v in read_all()]


def refusal(payload: bytes, receiver: ClientConnection | ServerConnection) -> str:
    with pytest.raises(RemoteProtocolError) as raised:
        receiver.receive_data(encode_frame(payload, 1 << 20))
    return str(raised.value)


def test_an_end_reason_reads_as_a_word_and_travels_as_a_number() -> None:
    assert f"{EndReason.TIMED_OUT} {EndReason.STOP}" == "timed_out stop"
    end = End(7, 0, EndReason.TIMED_OUT, None, 1, 1, 0, 0, 0)
    as_number = End(7, 0, 4, None, 1, 1, 0, 0, 0)  # type: ignore[arg-type]
    assert encode(end) == encode(as_number)


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ([0x11, "1"], "Cancel.request_id: "),
        ([0x10, 1, "ids"], "Generate.prompt: "),
        ([0x10, 1, b"", [1.0, 1.5]], "Generate.sampling.top_k: "),
        ([0x10, 1, b"", [1.0] + [0] * 7 + [3]], "Generate.sampling.bias_ids: "),
        ([0x10, 1, b"", 7], "Generate.sampling: "),
        ([0x10, 1, b"abc"], "Generate.prompt: 3 bytes is not a multiple of 4"),
        ([0x05, "x" * 5000], "GoAway.message: "),
        ([0x12, 1, 0], "Credit.n_tokens: "),
        ([0x11], "Cancel: "),
    ],
)
def test_a_refusal_names_the_field(message: list[object], where: str) -> None:
    _, server = open_pair()
    assert refusal(encode(message), server).startswith(where)


def test_a_refusal_names_the_item_of_a_list() -> None:
    text = refusal(encode([1, "wkvm", 1, 1, ["a", 7]]), ServerConnection())
    assert text.startswith("Hello.features[1]: ")


@pytest.mark.parametrize("field", ["bias_ids", "bias_values", "allowed_ids", "stop_ids"])
def test_each_packed_field_of_sampling_holds_whole_numbers(field: str) -> None:
    _, server = open_pair()
    sampling = msgspec.structs.replace(Sampling(), **{field: b"\0" * 6})
    text = refusal(encode(Generate(1, b"", sampling)), server)
    assert text == f"Generate.sampling.{field}: 6 bytes is not a multiple of 4"


@pytest.mark.parametrize("field", ["lanes", "ids", "choices", "counts"])
def test_each_packed_field_of_tokens_holds_whole_numbers(field: str) -> None:
    client, _ = open_pair()
    message = msgspec.structs.replace(Tokens(b"", b""), **{field: b"\0" * 6})
    assert refusal(encode(message), client).startswith(f"Tokens.{field}: 6 bytes")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"logprobs": b""}, "logprobs"),
        ({"ranks": b"\0" * 4}, "ranks"),
        ({"top_ids": b"\0" * 12}, "top_ids"),
        ({"top_logprobs": b"\0" * 20}, "top_logprobs"),
        ({"n_top": 3}, "top_ids"),
        ({"n_top": 2**63 - 1}, "top_ids"),
        ({"ids": b"\0" * 9}, "ids"),
    ],
)
def test_logprobs_that_do_not_fit_together_are_refused(
    change: dict[str, object], field: str
) -> None:
    client, server = open_pair()
    server.receive_data(client.send(generate(1)))
    fields: dict[str, object] = {
        "ids": b"\0" * 8,
        "logprobs": b"\0" * 8,
        "ranks": b"\0" * 8,
        "n_top": 2,
        "top_ids": b"\0" * 16,
        "top_logprobs": b"\0" * 16,
    } | change
    names = ["n_top", "ids", "logprobs", "ranks", "top_ids", "top_logprobs"]
    payload = encode([0x19, 1, 0, False, 0, *(fields[name] for name in names)])
    assert refusal(payload, client).startswith(f"Logprobs.{field}: ")


def test_a_wrong_value_is_a_message_like_any_other() -> None:
    client, server = open_pair()
    sampling = Sampling(temperature=float("nan"), top_p=-1.0, n=-5, seed=-1, logprobs=10**6)
    message = Generate(1, pack_ids([2**32 - 1]), sampling, priority=-(2**63))
    (received,) = server.receive_data(client.send(message))
    assert repr(received) == repr(message)


@pytest.mark.parametrize(
    "message",
    [
        Cancel(-1),
        Cancel(2**32),
        Credit(1, 0),
        Credit(1, 2**31),
        Generate(1, b"abc"),
        Generate(1, b"", Sampling(bias_ids=b"abcd")),
        Generate(1, b"", timeout_ms=-1),
        Generate(1, b"", priority=2**64),
        Generate(1, b"", Sampling(seed=2**64)),
        GoAway("x" * 4097),
        GoAway("\ud800"),
    ],
    ids=str,
)
def test_what_the_peer_would_refuse_is_not_sent(message: Message) -> None:
    codec = Codec[Message](Cancel, Credit, Generate, GoAway)
    with pytest.raises(LocalProtocolError):
        codec.encode(message)


# --- bombs --------------------------------------------------------------------------------


BOMBS: dict[str, Callable[[int], bytes]] = {
    "empty arrays": lambda n: b"\x90" * n,
    "nested arrays": lambda n: b"\x91" * n,
    "nested maps": lambda n: b"\x81\xc0" * (n // 2),
    "arrays in a field": lambda n: b"\x94\x10\x01\xc4\x00\xdd" + b"\0\xff\xff\xff" + b"\x90" * n,
    "nesting in a field": lambda n: b"\x94\x10\x01\xc4\x00" + b"\x91" * n,
    "one long array": lambda n: b"\xdd" + n.to_bytes(4, "big") + b"\x03" * n,
    "a claimed array": lambda n: b"\xdd\xff\xff\xff\xff\x10\x01",
    "a claimed blob": lambda n: b"\x93\x10\x01\xc6\xff\xff\xff\xff",
    "a claimed text": lambda n: b"\x92\x05\xdb\xff\xff\xff\xff",
    "extensions": lambda n: b"\xd4\x01\x00" * (n // 3),
}


@pytest.mark.parametrize("n_bytes", [100_000, 1 << 20, 16 << 20])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_costs_no_more_than_its_frame(bomb: str, n_bytes: int) -> None:
    payload = BOMBS[bomb](n_bytes)
    limit = max(len(payload), 1 << 16)

    def loaded() -> ServerConnection:
        _, server = open_pair(client_limit=limit, server_limit=limit)
        server.feed(encode_frame(payload, limit))
        return server

    def detonate(server: ServerConnection) -> None:
        with pytest.raises(RemoteProtocolError):
            server.next_message()
        assert server.buffered_bytes == 0

    seconds = 1e9
    for _ in range(3):
        server = loaded()
        start = time.process_time()
        detonate(server)
        seconds = min(seconds, time.process_time() - start)
    assert seconds < 0.05
    server = loaded()
    tracemalloc.start()
    try:
        detonate(server)
        # one copy of the payload
        assert tracemalloc.get_traced_memory()[1] < len(payload) + 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_reply_of_many_counters_is_refused() -> None:
    client, _ = open_pair()
    values = {f"{i:x}": i for i in range(1025)}
    assert "length <= 1024" in refusal(encode([0x41, 1, values]), client)


def test_features_are_bounded_on_both_sides() -> None:
    features = ["f"] * 65
    assert refusal(encode([1, "wkvm", 1, 1, features]), ServerConnection())
    client = ClientConnection()
    client.send_hello()
    served = ["", "", "", "", "", 1, b"", 1, 0]
    assert "features" in refusal(encode([2, 1, features, 1 << 20, 1, 0, *served]), client)


def test_of_a_counter_named_twice_the_last_counts() -> None:
    codec = Codec(StatsReply)
    assert codec.decode(b"\x93\x41\x01\x82\xa1a\x01\xa1a\x02").values == {"a": 2}


# --- any bytes ----------------------------------------------------------------------------


def junk() -> st.SearchStrategy[bytes]:
    """Bytes, frames around bytes, recorded frames, and recorded frames with a byte changed."""
    frames = st.sampled_from(FRAMES)
    return st.one_of(
        st.binary(max_size=64),
        st.binary(min_size=1, max_size=64).map(lambda p: encode_frame(p, 1 << 20)),
        frames,
        st.builds(
            lambda f, i, b: f[: i % len(f)] + bytes([b]) + f[i % len(f) + 1 :],
            frames,
            st.integers(0, 10_000),
            st.integers(0, 255),
        ),
    )


def outcome(receiver: ClientConnection | ServerConnection, reads: list[bytes]) -> list[str]:
    """All that comes of these reads: messages, and the violation that ends it."""
    seen = list[str]()
    for data in reads:
        receiver.feed(data)
        try:
            while (message := receiver.next_message()) is not None:
                seen.append(repr(message))
                if isinstance(message, Hello):
                    return seen
        except RemoteProtocolError as error:
            seen.append(str(error))
            for data in (b"", FRAMES[0]):
                with pytest.raises(RemoteProtocolError):
                    receiver.receive_data(data)
            assert receiver.buffered_bytes == 0
            return seen
    return seen


def receivers() -> list[ClientConnection | ServerConnection]:
    new_client, new_server = ClientConnection(), ServerConnection()
    new_client.send_hello()
    client, server = open_pair()
    server.receive_data(client.send(generate(1, n=2)))
    return [new_client, new_server, client, server]


@given(pieces=st.lists(junk(), max_size=6), data=st.data())
def test_any_bytes_are_messages_or_a_violation_however_cut(
    pieces: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for whole, cut in zip(receivers(), receivers(), strict=True):
        assert outcome(whole, [stream]) == outcome(cut, reads)


# --- Tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "entries"),
    [
        (Tokens(b"", b""), []),
        (Tokens(pack_ids([3, 4]), pack_ids([30, 40])), [(3, 0, [30]), (4, 0, [40])]),
        (
            Tokens(pack_ids([3, 3]), pack_ids([30, 31]), pack_ids([1, 0])),
            [(3, 1, [30]), (3, 0, [31])],
        ),
        (
            Tokens(pack_ids([3, 4, 5]), pack_ids([9, 8, 7]), b"", pack_ids([2, 0, 1])),
            [(3, 0, [9, 8]), (4, 0, []), (5, 0, [7])],
        ),
    ],
)
def test_tokens_are_taken_apart(message: Tokens, entries: list[tuple[int, int, list[int]]]) -> None:
    assert [(lane, choice, list(ids)) for lane, choice, ids in token_entries(message)] == entries
