import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_protocol.codec import token_entries
from wkvm_protocol.connection import packed_tokens
from wkvm_protocol.errors import LocalProtocolError
from wkvm_protocol.messages import (
    Logprobs,
    Stats,
    StatsReply,
    Tokens,
    pack_floats,
    pack_ids,
)
from wkvm_protocol.splitting import split_logprobs, split_tokens

from tests.protocol.helpers import generate, open_pair

LIMIT = 512


def flat(messages: list[Tokens]) -> list[tuple[int, int, int]]:
    return [
        (lane, choice, token_id)
        for message in messages
        for lane, choice, ids in token_entries(message)
        for token_id in ids
    ]


@given(
    entries=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 300)), max_size=40
    )
)
def test_split_tokens_fit_and_keep_every_id_in_order(entries: list[tuple[int, int, int]]) -> None:
    lanes, choices, counts = ([e[i] for e in entries] for i in range(3))
    message = Tokens(
        pack_ids(lanes), pack_ids(range(sum(counts))), pack_ids(choices), pack_ids(counts)
    )
    parts = split_tokens(message, LIMIT)
    assert flat(list(parts)) == flat([message])
    for part in parts:
        assert len(msgspec.msgpack.encode(part)) <= LIMIT
    n_bytes = 12 * len(entries) + 4 * sum(counts)
    assert len(parts) <= 1 + n_bytes // (LIMIT - 150)


@given(n_positions=st.integers(1, 200), n_top=st.integers(0, 20), first=st.integers(0, 9))
def test_split_logprobs_fit_and_keep_every_position(
    n_positions: int, n_top: int, first: int
) -> None:
    n = n_positions * n_top
    message = Logprobs(
        7,
        1,
        True,
        first,
        n_top,
        pack_ids(range(n_positions)),
        pack_floats(range(n_positions)),
        pack_ids(range(n_positions)),
        pack_ids(range(n)),
        pack_floats(range(n)),
    )
    parts = split_logprobs(message, LIMIT)
    at = first
    for part in parts:
        assert (part.request_id, part.choice, part.of_prompt, part.n_top) == (7, 1, True, n_top)
        assert part.first == at
        at += len(part.ids) // 4
        assert len(msgspec.msgpack.encode(part)) <= LIMIT
    for name in ("ids", "logprobs", "ranks", "top_ids", "top_logprobs"):
        joined = b"".join(getattr(part, name) for part in parts)
        assert joined == getattr(message, name), name


def test_a_step_too_long_for_one_frame_arrives_in_several() -> None:
    client, server = open_pair(client_limit=65536)
    server.receive_data(client.send(generate(1)))
    ids = list(range(40_000))
    received = client.receive_data(server.send(packed_tokens([1], ids, counts=[len(ids)])))
    assert len(received) == 3
    assert [t for m in received if isinstance(m, Tokens) for _, _, t in flat([m])] == ids


def test_prompt_logprobs_too_long_for_one_frame_arrive_in_several() -> None:
    client, server = open_pair(client_limit=65536)
    server.receive_data(client.send(generate(1)))
    numbers = pack_floats([0.0] * 10_000)
    ids = pack_ids(range(10_000))
    received = client.receive_data(
        server.send(Logprobs(1, 0, True, 1, 0, ids, numbers, ids, b"", b""))
    )
    assert len(received) == 2
    assert b"".join(m.ids for m in received if isinstance(m, Logprobs)) == ids


def test_other_messages_are_not_split() -> None:
    client, server = open_pair(client_limit=65536)
    server.receive_data(client.send(Stats(1)))
    values = {f"{i:0256}": i for i in range(300)}
    with pytest.raises(LocalProtocolError):
        server.send(StatsReply(1, values))
    assert 1 in server.lanes
