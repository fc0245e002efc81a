"""Messages about states within lanes: what opens, continues and closes them, and how many bytes."""

from typing import Any, get_args

import msgspec
import pytest
from wkvm_protocol.connection import ClientConnection, Ignored, Refused
from wkvm_protocol.errors import ErrorCode, LocalProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    REPLIES,
    Cancel,
    ClientMessage,
    End,
    EndOn,
    EndReason,
    Failed,
    Generate,
    GenerateOn,
    GoAway,
    Interrupt,
    Sampling,
    ServerMessage,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateExport,
    StateExportBegin,
    StateGet,
    StateImport,
    StateMoved,
    StatePage,
    StateText,
    StateVersions,
    Tokens,
    pack_ids,
)

from tests.protocol.state_pairs import (
    GATED,
    OPENINGS,
    granted,
    name_of,
    opened,
    pair,
    violation,
)


def reply_to(opening: Any) -> Any:
    """What closes the lane of an operation."""
    match REPLIES[type(opening)].__name__:
        case "StateVersions":
            return StateVersions(opening.request_id, ())
        case "StatePage":
            return StatePage(opening.request_id, (), "")
        case "StateText":
            return StateText(opening.request_id, "[]", 0)
        case _:
            return StateBytesEnd(opening.request_id)


# --- the feature --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message", [one for one in GATED if type(one) in get_args(ClientMessage)], ids=name_of
)
def test_without_agreement_what_a_client_sends_is_a_violation(message: Any) -> None:
    client, server = pair(())
    assert "the feature states was not agreed" in violation(server, message)
    if type(message) in REPLIES or isinstance(message, GenerateOn):
        with pytest.raises(LocalProtocolError, match="feature states"):
            client.send(message)


@pytest.mark.parametrize(
    "message", [one for one in GATED if type(one) in get_args(ServerMessage)], ids=name_of
)
def test_without_a_lane_what_a_server_sends_is_a_violation(message: Any) -> None:
    client, server = pair()
    with pytest.raises(LocalProtocolError):
        server.send(message)
    violation(client, message)


# --- lanes --------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", OPENINGS, ids=name_of)
def test_an_operation_opens_a_lane_and_its_reply_closes_it(opening: Any) -> None:
    client, server = opened(opening)
    lane = opening.request_id
    assert lane in client.lanes
    assert lane in server.lanes
    if isinstance(opening, StateImport):
        client.receive_data(server.send(StateCredit(lane, opening.n_bytes)))
        server.receive_data(client.send(StateChunk(lane, bytes(opening.n_bytes))))
        server.receive_data(client.send(StateBytesEnd(lane)))
    if isinstance(opening, StateExport):
        client.receive_data(server.send(StateExportBegin(lane, 0, None)))
    reply = reply_to(opening)
    assert client.receive_data(server.send(reply)) == [reply]
    assert len(client.lanes) == len(server.lanes) == 0
    with pytest.raises(LocalProtocolError):
        server.send(reply)


@pytest.mark.parametrize("opening", OPENINGS, ids=name_of)
def test_the_reply_of_another_operation_is_a_violation(opening: Any) -> None:
    client, server = opened(opening)
    lane = opening.request_id
    wrong: list[ServerMessage] = [
        StateVersions(lane, ()),
        StatePage(lane, (), ""),
        StateText(lane, "", 0),
    ]
    for reply in wrong:
        if type(reply) is REPLIES[type(opening)]:
            continue
        with pytest.raises(LocalProtocolError, match="no open query"):
            server.send(reply)
    ends: list[ServerMessage] = [
        End(lane, 0, EndReason.LENGTH, None, 1, 1, 0, 0, 0),
        EndOn(lane, 0, EndReason.LENGTH, None, 1, 1, 0, 0, 0),
    ]
    for end in ends:
        with pytest.raises(LocalProtocolError, match="no open generation"):
            server.send(end)
    assert lane in client.lanes


@pytest.mark.parametrize("opening", OPENINGS, ids=name_of)
@pytest.mark.parametrize("how", ["failed", "moved"])
def test_any_operation_may_fail_at_any_time(opening: Any, how: str) -> None:
    client, server = opened(opening)
    lane = opening.request_id
    failed = Failed(lane, 210, False, "no state")
    answer: ServerMessage = failed if how == "failed" else StateMoved(lane, "", "tcp://x:1", "a@1")
    client.receive_data(server.send(answer))
    assert len(client.lanes) == len(server.lanes) == 0


@pytest.mark.parametrize("opening", OPENINGS, ids=name_of)
def test_a_number_that_is_open_is_a_violation(opening: Any) -> None:
    client, server = opened(opening)
    with pytest.raises(LocalProtocolError, match="open already"):
        client.send(opening)
    assert "open already" in violation(server, opening)


def test_operations_count_as_lanes_and_obey_go_away() -> None:
    client, server = pair(max_lanes=1)
    server.receive_data(client.send(StateGet(1, "a")))
    (refused,) = server.receive_data(client.send(StateGet(2, "a")))
    assert isinstance(refused, Refused)
    assert refused.answer.code == ErrorCode.TOO_MANY_LANES
    client.receive_data(server.send(refused.answer))
    client.receive_data(server.send(StateVersions(1, ())))
    server.send(GoAway())
    (refused,) = server.receive_data(client.send(StateImport(3, "a", 10)))
    assert isinstance(refused, Refused)
    assert refused.answer.code == ErrorCode.DRAINING
    assert server.receive_data(client.send(Cancel(3))) == [Ignored()]


def test_each_choice_of_a_generate_on_ends_with_end_on_and_with_nothing_else() -> None:
    client, server = opened(GenerateOn(1, pack_ids([5]), Sampling(n=2), state="a"))
    client.receive_data(server.send(Tokens(pack_ids([1, 1]), pack_ids([3, 4]), pack_ids([0, 1]))))
    with pytest.raises(LocalProtocolError, match="takes EndOn"):
        server.send(End(1, 0, EndReason.LENGTH, None, 1, 1, 0, 0, 0))
    for choice in (1, 0):
        assert 1 in client.lanes
        end = EndOn(1, choice, EndReason.LENGTH, None, 1, 1, 0, 0, 0, name="a", version=2)
        assert client.receive_data(server.send(end)) == [end]
    assert len(client.lanes) == len(server.lanes) == 0


def test_a_generate_never_ends_with_end_on_nor_as_moved() -> None:
    client, server = pair()
    server.receive_data(client.send(Generate(1, pack_ids([5]))))
    with pytest.raises(LocalProtocolError, match="takes End"):
        server.send(EndOn(1, 0, EndReason.LENGTH, None, 1, 1, 0, 0, 0))
    moved = End(1, 0, EndReason.MOVED, None, 1, 1, 0, 0, 0)
    with pytest.raises(LocalProtocolError, match="began with a state"):
        server.send(moved)
    assert "End.reason" in violation(client, moved)


def test_interrupt_concerns_a_generate_on_and_nothing_else() -> None:
    client, server = opened(GenerateOn(1, pack_ids([5])))
    assert server.receive_data(client.send(Interrupt(1, 3))) == [Interrupt(1, 3)]
    assert client.send(Interrupt(9)) == b""
    frame = encode_frame(msgspec.msgpack.encode(Interrupt(9)), 100)
    assert server.receive_data(frame) == [Ignored()]
    server.receive_data(client.send(Generate(2, pack_ids([5]))))
    with pytest.raises(LocalProtocolError, match="no place"):
        client.send(Interrupt(2))
    assert "no place" in violation(server, Interrupt(2))


# --- bytes up -----------------------------------------------------------------------------

UPLOADS = [StateImport(1, "a", 100), GenerateOn(1, pack_ids([5]), inline_bytes=100)]


@pytest.mark.parametrize("opening", UPLOADS, ids=name_of)
def test_a_client_sends_what_was_granted_and_no_more(opening: Any) -> None:
    client, server = opened(opening)
    assert client.room(1) == 0
    with pytest.raises(LocalProtocolError, match="0 were granted"):
        client.send(StateChunk(1, b"x"))
    granted(client, server, 60)
    granted(client, server, 40)
    assert client.room(1) == 100
    for n in (60, 40):
        chunk = StateChunk(1, bytes(n))
        assert server.receive_data(client.send(chunk)) == [chunk]
    assert client.room(1) == 0
    end = StateBytesEnd(1, "ab")
    assert server.receive_data(client.send(end)) == [end]
    for late in (StateChunk(1, b"x"), StateBytesEnd(1)):
        with pytest.raises(LocalProtocolError, match="no bytes are expected"):
            client.send(late)


@pytest.mark.parametrize("opening", UPLOADS, ids=name_of)
@pytest.mark.parametrize(("n_granted", "n_sent"), [(0, 1), (10, 11), (99, 100), (100, 101)])
def test_more_than_was_granted_is_a_violation(opening: Any, n_granted: int, n_sent: int) -> None:
    client, server = opened(opening)
    if n_granted:
        granted(client, server, n_granted)
    assert "StateChunk: " in violation(server, StateChunk(1, bytes(n_sent)))


@pytest.mark.parametrize("opening", UPLOADS, ids=name_of)
def test_a_server_grants_no_more_than_there_is(opening: Any) -> None:
    client, server = opened(opening)
    granted(client, server, 60)
    with pytest.raises(LocalProtocolError, match="more than will be sent"):
        server.send(StateCredit(1, 41))
    assert "more than will be sent" in violation(client, StateCredit(1, 41))


@pytest.mark.parametrize("late", [StateChunk(1, b"x"), StateBytesEnd(1)], ids=name_of)
def test_bytes_after_the_end_are_a_violation(late: Any) -> None:
    client, server = opened(UPLOADS[0])
    granted(client, server, 100)
    server.receive_data(client.send(StateBytesEnd(1)))
    assert "no bytes are expected" in violation(server, late)


def test_fewer_bytes_than_were_announced_are_for_the_server_to_judge() -> None:
    client, server = opened(UPLOADS[0])
    end = StateBytesEnd(1)
    assert server.receive_data(client.send(end)) == [end]


def test_an_import_succeeds_after_its_bytes_alone() -> None:
    client, server = opened(UPLOADS[0])
    with pytest.raises(LocalProtocolError, match="not had all"):
        server.send(StateVersions(1, ()))
    assert "not had all" in violation(client, StateVersions(1, ()))


@pytest.mark.parametrize("message", [StateChunk(1, b"x"), StateBytesEnd(1), StateCredit(1, 1)])
def test_what_crosses_with_the_end_of_its_lane_is_ignored(message: Any) -> None:
    client, server = opened(UPLOADS[0])
    granted(client, server, 100)
    crossing = encode_frame(msgspec.msgpack.encode(message), 1 << 20)
    client.receive_data(server.send(Failed(1, 214, False, "")))
    assert server.receive_data(crossing) == [Ignored()]
    assert client.send(message) == b""


@pytest.mark.parametrize("message", [StateChunk(1, b"x"), StateBytesEnd(1), StateCredit(1, 1)])
@pytest.mark.parametrize("opening", [StateGet(1, "a"), Generate(1, pack_ids([5]))], ids=name_of)
def test_a_lane_without_bytes_takes_none(opening: Any, message: Any) -> None:
    client, server = opened(opening)
    with pytest.raises(LocalProtocolError, match="no place"):
        client.send(message)
    with pytest.raises(LocalProtocolError, match="no place"):
        server.send(message)
    violation(client, message)
    violation(server, message)


# --- bytes down ---------------------------------------------------------------------------


def test_a_server_sends_what_was_granted_and_all_of_it() -> None:
    client, server = opened(StateExport(1, "a", credit=30))
    with pytest.raises(LocalProtocolError, match="no bytes are expected"):
        server.send(StateChunk(1, b"x"))
    client.receive_data(server.send(StateExportBegin(1, 50, None)))
    with pytest.raises(LocalProtocolError, match="already"):
        server.send(StateExportBegin(1, 50, None))
    assert server.room(1) == 30
    client.receive_data(server.send(StateChunk(1, bytes(30))))
    assert server.room(1) == 0
    assert "0 were granted" in violation(opened_down(30, 50), StateChunk(1, b"x"))
    server.receive_data(client.send(StateCredit(1, 2**31 - 1)))
    assert server.room(1) == 20
    with pytest.raises(LocalProtocolError, match="20 are left"):
        server.send(StateChunk(1, bytes(21)))
    with pytest.raises(LocalProtocolError, match="lacks 20 bytes"):
        server.send(StateBytesEnd(1))
    client.receive_data(server.send(StateChunk(1, bytes(20))))
    client.receive_data(server.send(StateBytesEnd(1)))
    assert len(client.lanes) == len(server.lanes) == 0


def opened_down(n_sent: int, n_bytes: int) -> ClientConnection:
    """A client that was sent as much as it had granted."""
    client, server = opened(StateExport(1, "a", credit=n_sent))
    client.receive_data(server.send(StateExportBegin(1, n_bytes, None)))
    client.receive_data(server.send(StateChunk(1, bytes(n_sent))))
    return client


def test_without_credit_an_export_has_no_limit() -> None:
    client, server = opened(StateExport(1, "a"))
    client.receive_data(server.send(StateExportBegin(1, 10**9, None)))
    assert server.room(1) == 10**9
    server.receive_data(client.send(StateCredit(1, 1)))
    assert server.room(1) == 10**9


def test_an_export_that_ends_early_is_a_violation() -> None:
    assert "lacks 20 bytes" in violation(opened_down(30, 50), StateBytesEnd(1))
    client, _ = opened(StateExport(1, "a"))
    assert "no bytes are expected" in violation(client, StateBytesEnd(1))


def test_an_inline_state_goes_before_the_end_and_leaves_the_lane_open() -> None:
    client, server = opened(GenerateOn(1, pack_ids([5]), want_inline=True))
    end = EndOn(1, 0, EndReason.LENGTH, None, 1, 1, 0, 0, 0)
    client.receive_data(server.send(StateExportBegin(1, 10, None)))
    with pytest.raises(LocalProtocolError, match="lacks 10 bytes"):
        server.send(end)
    client.receive_data(server.send(StateChunk(1, bytes(10))))
    with pytest.raises(LocalProtocolError, match="lacks 0 bytes"):
        server.send(end)
    client.receive_data(server.send(StateBytesEnd(1)))
    assert 1 in client.lanes
    assert client.receive_data(server.send(end)) == [end]
    assert len(client.lanes) == len(server.lanes) == 0


def test_a_generate_on_may_end_without_its_inline_state() -> None:
    client, server = opened(GenerateOn(1, pack_ids([5]), want_inline=True))
    client.receive_data(server.send(EndOn(1, 0, EndReason.CANCELLED, None, 1, 1, 0, 0, 0)))
    assert len(client.lanes) == 0
