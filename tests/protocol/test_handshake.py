import pytest
from wkvm_protocol.connection import (
    ClientConnection,
    ConnectionState,
    ServerConnection,
    failure,
    packed_tokens,
)
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    TENANT_FEATURE,
    Error,
    Generate,
    Hello,
    HelloOk,
    Ping,
    Stats,
    StatsReply,
    Tokens,
    unpack_ids,
)

from tests.protocol.helpers import SERVED, generate, open_pair

MIB = 1 << 20


def test_hello_and_its_answer_open_both_sides() -> None:
    client, server = ClientConnection(), ServerConnection(max_lanes=7)
    (hello,) = server.receive_data(client.send_hello(api_key="key", client="c"))
    assert hello == Hello("wkvm", 1, 1, (), MIB, "key", "c")
    assert server.hello == hello
    assert not server.is_open
    (answer,) = client.receive_data(server.send_hello_ok(**SERVED))
    assert isinstance(answer, HelloOk)
    assert client.hello_ok == answer
    assert (answer.version, answer.max_lanes, list(unpack_ids(answer.eos_ids))) == (1, 7, [0, 1])
    assert {name: getattr(answer, name) for name in SERVED if name != "eos_ids"} == {
        name: value for name, value in SERVED.items() if name != "eos_ids"
    }
    assert server.is_open
    assert client.is_open


def test_whose_a_key_is_is_told_to_a_client_that_has_agreed_to_it() -> None:
    client, server = ClientConnection(), ServerConnection(features=[TENANT_FEATURE])
    server.receive_data(client.send_hello(features=[TENANT_FEATURE]))
    (answer,) = client.receive_data(server.send_hello_ok(**SERVED, tenant="anna"))
    assert isinstance(answer, HelloOk)
    assert answer.tenant == "anna"


def test_a_client_that_did_not_ask_whose_its_key_is_gets_the_array_that_it_knows() -> None:
    frames = list[bytes]()
    for features in ([], [TENANT_FEATURE]):
        client, server = ClientConnection(), ServerConnection(features=features)
        server.receive_data(client.send_hello())
        frames.append(server.send_hello_ok(**SERVED, tenant="anna"))
        (answer,) = client.receive_data(frames[-1])
        assert isinstance(answer, HelloOk)
        assert answer.tenant == ""
    assert frames[0] == frames[1]
    assert frames[0][4] == 0x9F  # 15 elements


def test_a_server_that_agreed_to_tell_the_tenant_cannot_leave_it_out() -> None:
    client, server = ClientConnection(), ServerConnection(features=[TENANT_FEATURE])
    server.receive_data(client.send_hello(features=[TENANT_FEATURE]))
    with pytest.raises(LocalProtocolError, match=r"HelloOk\.tenant"):
        server.send_hello_ok(**SERVED)


@pytest.mark.parametrize(("offer", "limit"), [(65536, MIB), (MIB, 65536), (MIB, MIB)])
def test_the_smaller_frame_limit_holds_on_both_sides(offer: int, limit: int) -> None:
    client, server = open_pair(client_limit=offer, server_limit=limit)
    assert client.max_frame_bytes == server.max_frame_bytes == min(offer, limit)
    assert client.hello_ok is not None
    assert client.hello_ok.max_frame_bytes == min(offer, limit)
    too_long = (min(offer, limit) + 1).to_bytes(4, "little")
    for side in (client, server):
        with pytest.raises(RemoteProtocolError) as raised:
            side.receive_data(too_long)
        assert raised.value.code == ErrorCode.FRAME_TOO_LARGE


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_limit_before_hello_ok_is_64_kib(excess: int) -> None:
    header = (65536 + excess).to_bytes(4, "little")
    client = ClientConnection()
    client.send_hello()
    for side in (client, ServerConnection()):
        if excess > 0:
            with pytest.raises(RemoteProtocolError):
                side.receive_data(header)
        else:
            assert side.receive_data(header) == []
            assert side.mid_frame


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_agreed_limit_is_exact_when_sending(excess: int) -> None:
    client, server = open_pair(client_limit=65536)
    server.receive_data(client.send(Stats(1)))
    payload = len(server.send(StatsReply(1, values_of(0)))) - 4
    server.receive_data(client.send(Stats(2)))
    reply = StatsReply(2, values_of(65536 - payload + excess))
    if excess > 0:
        with pytest.raises(LocalProtocolError):
            server.send(reply)
        assert 2 in server.lanes
    else:
        assert len(server.send(reply)) == 4 + 65536 + excess


def values_of(n_bytes: int) -> dict[str, int]:
    """Counters that take ``n_bytes`` more than those of 0, up to 255 * 255."""
    lengths = [255] * (n_bytes // 223) + [32 + n_bytes % 223]
    lengths += [32] * (300 - len(lengths))
    return {f"{i:0{n}}": 1 for i, n in enumerate(lengths)}


@pytest.mark.parametrize("limit", [65536, MIB, 4 * MIB])
def test_a_frame_of_the_agreed_limit_is_taken_both_ways(limit: int) -> None:
    client, server = open_pair(client_limit=limit, server_limit=limit)
    n_ids = (limit - 100) // 4
    (request,) = server.receive_data(client.send(generate(1, prompt=(7,) * n_ids)))
    assert isinstance(request, Generate)
    assert len(request.prompt) == 4 * n_ids
    (tokens,) = client.receive_data(server.send(packed_tokens([1], [7] * n_ids, counts=[n_ids])))
    assert isinstance(tokens, Tokens)
    assert len(tokens.ids) == 4 * n_ids


def test_frames_right_behind_hello_ok_get_the_new_limit() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send_hello())
    first = server.send_hello_ok(**SERVED)
    later = encode_frame(b"\x92\x05\xda\x0f\xff" + b"x" * 4095, MIB)
    answer, *rest = client.receive_data(first + later * 30)
    assert isinstance(answer, HelloOk)
    assert len(rest) == 30


def test_only_features_of_both_sides_are_agreed_in_the_order_of_the_offer() -> None:
    client, server = ClientConnection(), ServerConnection(features=["c", "a"])
    server.receive_data(client.send_hello(features=["a", "unheard-of", "c", "a"]))
    client.receive_data(server.send_hello_ok(**SERVED))
    assert client.hello_ok is not None
    assert client.hello_ok.features == ("a", "c")


@pytest.mark.parametrize("offered", [65535, 2**32, -1])
def test_a_side_cannot_offer_a_limit_that_the_peer_would_refuse(offered: int) -> None:
    for side in (ClientConnection, ServerConnection):
        with pytest.raises(ValueError, match="max_frame_bytes"):
            side(max_frame_bytes=offered)


def test_the_server_takes_nothing_between_hello_and_its_answer() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send_hello())
    with pytest.raises(RemoteProtocolError):
        server.receive_data(encode_frame(b"\x92\x03\x00", 100))


def test_a_client_sends_only_hello_and_only_once_before_the_answer() -> None:
    client = ClientConnection()
    with pytest.raises(LocalProtocolError):
        client.send(Ping())
    client.send_hello()
    with pytest.raises(LocalProtocolError):
        client.send(Ping())
    with pytest.raises(LocalProtocolError):
        client.send_hello()


def test_a_server_answers_a_hello_once_and_only_a_hello() -> None:
    client, server = ClientConnection(), ServerConnection()
    with pytest.raises(LocalProtocolError):
        server.send_hello_ok(**SERVED)
    with pytest.raises(LocalProtocolError):
        server.send(Ping())
    server.receive_data(client.send_hello())
    server.send_hello_ok(**SERVED)
    with pytest.raises(LocalProtocolError):
        server.send_hello_ok(**SERVED)


def test_hello_ok_is_not_taken_from_a_server_that_was_sent_no_hello() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send_hello())
    with pytest.raises(RemoteProtocolError):
        ClientConnection().receive_data(server.send_hello_ok(**SERVED))


def test_a_hello_too_long_for_the_first_frame_is_not_sent() -> None:
    client = ClientConnection()
    with pytest.raises(LocalProtocolError):
        client.send_hello(api_key="x" * 4097)
    with pytest.raises(LocalProtocolError):
        client.send_hello(features=["\U0001d11e" * 256] * 64)
    assert client.state is ConnectionState.NEW


@pytest.mark.parametrize("n_messages", [0, 1, 2])
def test_an_error_may_come_in_every_state_and_ends_both_sides(n_messages: int) -> None:
    client, server = ClientConnection(), ServerConnection()
    if n_messages > 0:
        server.receive_data(client.send_hello())
    if n_messages > 1:
        client.receive_data(server.send_hello_ok(**SERVED))
    frame = server.send_error(ErrorCode.TOO_MANY_CONNECTIONS, "full")
    (error,) = client.receive_data(frame)
    assert error == Error(108, True, "full") == client.error
    for side in (client, server):
        assert side.state is ConnectionState.CLOSED
        assert side.receive_data(b"anything \0\0\0\0") == []
    with pytest.raises(LocalProtocolError):
        client.send(Ping())


def test_the_error_is_not_lost_when_bytes_follow_it() -> None:
    client, server = open_pair()
    (error,) = client.receive_data(server.send_error(ErrorCode.INTERNAL, "") + b"\0" * 9)
    assert error == Error(500, False, "")


def test_an_error_is_sent_once() -> None:
    _, server = open_pair()
    assert server.send(Error(105, False, "late"))
    assert server.send_error(ErrorCode.IDLE_TIMEOUT, "idle") == b""


def test_an_error_can_be_sent_after_a_violation_and_once() -> None:
    _, server = open_pair()
    with pytest.raises(RemoteProtocolError):
        server.receive_data(bytes(4))
    assert server.send_error(ErrorCode.PROTOCOL_VIOLATION, "why")
    assert server.send_error(ErrorCode.PROTOCOL_VIOLATION, "why") == b""


def test_nothing_is_sent_to_a_connection_that_is_gone() -> None:
    _, server = open_pair()
    server.close()
    assert server.send_error(ErrorCode.IDLE_TIMEOUT, "") == b""
    assert server.receive_data(encode_frame(b"\x92\x03\x00", 100)) == []


def test_texts_of_the_server_always_fit() -> None:
    client, server = open_pair()
    server.receive_data(client.send(generate(1)))
    (failed,) = client.receive_data(
        server.send(failure(1, ErrorCode.INTERNAL, "\U0001d11e" * 9999, field="f" * 999))
    )
    assert len(getattr(failed, "message", "")) == 4096
    assert len(getattr(failed, "field", "")) == 256
    (error,) = client.receive_data(server.send_error(ErrorCode.INTERNAL, "\ud800" * 9999))
    assert isinstance(error, Error)
    assert len(error.message) == 4096


def test_mid_frame_shows_for_the_deadline_of_a_frame() -> None:
    client, server = open_pair()
    frame = client.send(Ping(5))
    assert not server.mid_frame
    server.receive_data(frame[:-1])
    assert server.mid_frame
    assert server.receive_data(frame[-1:]) == [Ping(5)]
    assert not server.mid_frame
