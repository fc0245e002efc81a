import msgspec
import pytest
from wkvm_protocol.connection import (
    ClientConnection,
    Ignored,
    Refused,
    ServerConnection,
    packed_tokens,
)
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    Cancel,
    ClientMessage,
    Credit,
    End,
    EndReason,
    Failed,
    Generate,
    GoAway,
    Logprobs,
    Ping,
    Pong,
    ServerMessage,
    Stats,
    StatsReply,
    Tokens,
    pack_ids,
)

from tests.protocol.helpers import generate, open_pair

Pair = tuple[ClientConnection, ServerConnection]


def ask(pair: Pair, message: ClientMessage) -> object:
    client, server = pair
    (event,) = server.receive_data(client.send(message))
    return event


def answer(pair: Pair, message: ServerMessage) -> None:
    client, server = pair
    assert client.receive_data(server.send(message)) == [message]


def end(request_id: int, choice: int = 0) -> End:
    return End(request_id, choice, EndReason.LENGTH, None, 1, 1, 0, 0, 0)


def logprobs(request_id: int, choice: int = 0) -> Logprobs:
    return Logprobs(request_id, choice, False, 0, 0, b"", b"", b"", b"", b"")


def tokens(*lanes: int, choices: tuple[int, ...] = ()) -> Tokens:
    return Tokens(pack_ids(lanes), pack_ids(lanes), pack_ids(choices))


def test_a_lane_closes_at_the_end_of_its_last_choice_in_any_order() -> None:
    pair = open_pair()
    ask(pair, generate(9, n=3))
    for choice in (2, 0, 1):
        for side in pair:
            assert 9 in side.lanes
        answer(pair, end(9, choice))
    for side in pair:
        assert len(side.lanes) == 0


@pytest.mark.parametrize("n", [1, 3])
def test_failed_closes_a_lane_whatever_has_ended(n: int) -> None:
    pair = open_pair()
    ask(pair, generate(9, n=n))
    if n > 1:
        answer(pair, end(9, 1))
    answer(pair, Failed(9, 500, False, ""))
    for side in pair:
        assert list(side.lanes) == []


def test_an_id_may_be_used_again_once_its_lane_has_closed() -> None:
    pair = open_pair()
    rounds: list[tuple[ClientMessage, ServerMessage]] = [
        (generate(9), end(9)),
        (generate(9), Failed(9, 200, False, "")),
        (Stats(9), StatsReply(9, {})),
        (Stats(9), Failed(9, 500, False, "")),
        (generate(9), end(9)),
    ]
    for message, reply in rounds:
        assert ask(pair, message) == message
        answer(pair, reply)


@pytest.mark.parametrize("first", [generate(9), Stats(9)])
@pytest.mark.parametrize("second", [generate(9), Stats(9)])
def test_an_id_in_use_is_refused_on_both_sides(first: ClientMessage, second: ClientMessage) -> None:
    client, server = open_pair()
    frame = client.send(first)
    server.receive_data(frame)
    with pytest.raises(LocalProtocolError):
        client.send(second)
    with pytest.raises(RemoteProtocolError, match="request id 9 is open"):
        server.receive_data(frame)


@pytest.mark.parametrize(
    "message",
    [
        end(8),
        end(9, 2),
        end(9, 1),
        Failed(8, 500, False, ""),
        StatsReply(9, {}),
        StatsReply(8, {}),
        tokens(9, 8),
        tokens(7),
        tokens(9, choices=(1,)),
        tokens(9, choices=(2,)),
        tokens(8, choices=(0,)),
        tokens(9, 9, choices=(0, 1)),
        logprobs(8),
        logprobs(9, 1),
        logprobs(9, 2),
        logprobs(7),
        end(7),
    ],
    ids=repr,
)
def test_output_of_what_is_not_open_is_illegal_on_both_sides(message: ServerMessage) -> None:
    """Lane 9 has two choices, of which 1 has ended; 7 is a query; 8 is not open."""
    pair = client, server = open_pair()
    ask(pair, generate(9, n=2))
    ask(pair, Stats(7))
    answer(pair, end(9, 1))
    before = sorted(server.lanes)
    with pytest.raises(LocalProtocolError):
        server.send(message)
    assert sorted(server.lanes) == before
    answer(pair, tokens(9))
    with pytest.raises(RemoteProtocolError):
        client.receive_data(encode_frame(msgspec.msgpack.encode(message), 1 << 20))


def test_a_choice_0_that_has_ended_gets_no_more_ids() -> None:
    pair = open_pair()
    ask(pair, generate(9, n=2))
    answer(pair, end(9, 0))
    with pytest.raises(LocalProtocolError):
        pair[1].send(tokens(9))
    answer(pair, tokens(9, choices=(1,)))


def test_a_lane_that_failed_gets_no_more_ids() -> None:
    pair = open_pair()
    ask(pair, generate(9))
    answer(pair, Failed(9, 500, False, ""))
    with pytest.raises(LocalProtocolError):
        pair[1].send(tokens(9))


@pytest.mark.parametrize("n", [0, -1])
def test_a_request_without_choices_can_only_fail(n: int) -> None:
    pair = open_pair()
    ask(pair, generate(9, n=n))
    for message in (end(9), tokens(9), logprobs(9)):
        with pytest.raises(LocalProtocolError):
            pair[1].send(message)
    answer(pair, Failed(9, 200, False, ""))


def test_a_huge_n_opens_a_lane_at_no_cost() -> None:
    pair = open_pair()
    ask(pair, generate(9, n=2**63 - 1))
    answer(pair, Failed(9, 200, False, ""))


def test_cancel_and_credit_reach_open_lanes_only() -> None:
    pair = client, server = open_pair()
    ask(pair, generate(9))
    cancel, credit = client.send(Cancel(9)), client.send(Credit(9, 5))
    assert server.receive_data(cancel + credit) == [Cancel(9), Credit(9, 5)]
    answer(pair, end(9))
    assert server.receive_data(cancel + credit) == [Ignored(), Ignored()]
    assert client.send(Cancel(9)) == client.send(Credit(9, 1)) == b""


def test_what_is_ignored_is_taken_one_at_a_time_like_all_else() -> None:
    _, server = open_pair()
    late = bytes.fromhex("03000000 92 11 09")  # a Cancel of lane 9, which is not open
    server.feed(late * 2)
    assert server.next_message() == server.next_message() == Ignored()
    assert server.next_message() is None


@pytest.mark.parametrize("n_open", [1, 2, 3])
def test_lanes_beyond_the_limit_are_refused_and_nothing_else_happens(n_open: int) -> None:
    pair = open_pair(max_lanes=2)
    events = [ask(pair, generate(i)) for i in range(n_open)]
    assert [type(e) for e in events] == [Generate, Generate, Refused][:n_open]
    if n_open == 3:
        refused = events[2]
        assert isinstance(refused, Refused)
        assert refused.answer.code == ErrorCode.TOO_MANY_LANES
        assert refused.answer.retryable
        answer(pair, refused.answer)
        answer(pair, end(0))
        assert ask(pair, generate(2)) == generate(2)


def test_a_cancel_right_behind_a_refused_request_goes_nowhere() -> None:
    client, server = open_pair(max_lanes=0)
    event, cancel = server.receive_data(client.send(generate(1)) + client.send(Cancel(1)))
    assert isinstance(event, Refused)
    assert cancel == Ignored()
    server.send(event.answer)
    assert 1 not in server.lanes


def test_the_id_of_a_refused_request_can_be_used_and_cancelled_later() -> None:
    pair = client, server = open_pair(max_lanes=1)
    ask(pair, generate(1))
    refused = ask(pair, generate(2))
    assert isinstance(refused, Refused)
    answer(pair, refused.answer)
    answer(pair, end(1))
    ask(pair, generate(2))
    assert server.receive_data(client.send(Cancel(2))) == [Cancel(2)]


def test_a_query_counts_as_a_lane() -> None:
    pair = open_pair(max_lanes=1)
    ask(pair, Stats(1))
    assert isinstance(ask(pair, Stats(2)), Refused)


def test_request_ids_are_made_that_are_not_open() -> None:
    pair = client, _ = open_pair()
    ask(pair, generate(2))
    assert [client.new_request_id() for _ in range(3)] == [1, 3, 4]
    client._last_request_id = 2**32 - 2
    assert [client.new_request_id() for _ in range(3)] == [2**32 - 1, 1, 3]


# --- going away ---------------------------------------------------------------------------


def test_after_the_servers_goaway_open_lanes_go_on_and_new_ones_are_refused() -> None:
    pair = client, server = open_pair()
    ask(pair, generate(1))
    crossing = client.send(generate(2)) + client.send(Stats(3))
    answer(pair, GoAway("bye", 700))
    for message in (generate(4), Stats(4)):
        with pytest.raises(LocalProtocolError):
            client.send(message)
    refused = server.receive_data(crossing)
    for event in refused:
        assert isinstance(event, Refused)
        assert event.answer.code == ErrorCode.DRAINING
        assert event.answer.retry_after_ms == 700
        answer(pair, event.answer)
    answer(pair, tokens(1))
    assert ask(pair, Credit(1, 1)) == Credit(1, 1)
    for side in pair:
        assert not side.is_drained
    answer(pair, end(1))
    for side in pair:
        assert side.is_drained


def test_after_its_own_goaway_a_client_opens_nothing() -> None:
    pair = client, server = open_pair()
    ask(pair, generate(1))
    opening, _ = open_pair()
    assert ask(pair, GoAway()) == GoAway()
    assert server.peer_going_away
    with pytest.raises(LocalProtocolError):
        client.send(generate(2))
    answer(pair, end(1))
    assert client.is_drained
    assert server.is_drained
    with pytest.raises(RemoteProtocolError, match="after GoAway"):
        server.receive_data(opening.send(generate(2)))


def test_a_connection_without_goaway_is_never_drained() -> None:
    for side in open_pair():
        assert not side.is_drained


def test_pings_pass_both_ways_with_their_nonce() -> None:
    pair = client, server = open_pair()
    for message in (Ping(7), Pong(8)):
        assert server.receive_data(client.send(message)) == [message]
        answer(pair, message)


def test_tokens_are_packed_without_what_is_the_default() -> None:
    pair = client, server = open_pair()
    ask(pair, generate(1))
    ask(pair, generate(2, n=2))
    assert client.receive_data(server.send(packed_tokens([1, 2], [5, 6], [0, 0]))) == [
        Tokens(pack_ids([1, 2]), pack_ids([5, 6]))
    ]
    assert client.receive_data(server.send(packed_tokens([1, 2], [5, 6, 7], [0, 1], [1, 2]))) == [
        Tokens(pack_ids([1, 2]), pack_ids([5, 6, 7]), pack_ids([0, 1]), pack_ids([1, 2]))
    ]
