"""Both sides against each other and against a model, over a pipe that splits and merges."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from wkvm_protocol.connection import (
    ClientConnection,
    Ignored,
    Refused,
    ServerConnection,
    failure,
    packed_tokens,
)
from wkvm_protocol.errors import ErrorCode, LocalProtocolError
from wkvm_protocol.messages import (
    EMBED_FEATURE,
    GRAMMAR_FEATURE,
    SCORE_FEATURE,
    Cancel,
    Credit,
    Embed,
    End,
    EndReason,
    Failed,
    Generate,
    GenerateConstrained,
    Generation,
    GoAway,
    Hello,
    Ping,
    Pong,
    Score,
    Stats,
    StatsReply,
    pack_ids,
)

from tests.protocol.helpers import SERVED, generate

MAX_LANES = 3
FEATURES = (GRAMMAR_FEATURE, SCORE_FEATURE, EMBED_FEATURE)
IDS = st.integers(0, 5)


class Pairing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.client = ClientConnection()
        self.server = ServerConnection(max_lanes=MAX_LANES, features=FEATURES)
        self.to_server = bytearray(self.client.send_hello(features=FEATURES))
        self.to_client = bytearray()
        self.pings: list[int] = []
        self.n_pings = 0
        # what each side should hold: request id -> choices still to end, None for a query
        self.of_client: dict[int, set[int] | None] = {}
        self.of_server: dict[int, set[int] | None] = {}
        self.refused: set[int] = set()
        self.closing: list[tuple[int, int | None]] = []

    # --- the pipe: any number of bytes at a time

    @rule(n=st.integers(1, 400))
    def carry_to_server(self, n: int) -> None:
        data = bytes(self.to_server[:n])
        del self.to_server[:n]
        for event in self.server.receive_data(data):
            match event:
                case Hello():
                    self.to_client += self.server.send_hello_ok(**SERVED)
                case Generate() | GenerateConstrained():
                    self.of_server[event.request_id] = set(range(event.sampling.n))
                case Score() | Embed():
                    self.of_server[event.request_id] = {0}
                case Stats():
                    self.of_server[event.request_id] = None
                case Refused():
                    draining = event.answer.code == ErrorCode.DRAINING
                    assert draining or len(self.of_server) >= MAX_LANES
                    assert draining == self.server.going_away
                    self.to_client += self.server.send(event.answer)
                case Cancel() | Credit():
                    assert event.request_id in self.of_server
                case Ping():
                    self.to_client += self.server.send(Pong(event.nonce))
                case GoAway() | Pong() | Ignored():
                    pass
                case _:
                    raise AssertionError(f"{event} was not agreed")

    @rule(n=st.integers(1, 400))
    def carry_to_client(self, n: int) -> None:
        data = bytes(self.to_client[:n])
        del self.to_client[:n]
        for message in self.client.receive_data(data):
            match message:
                case End():
                    choices = self.of_client[message.request_id]
                    assert choices is not None
                    choices.remove(message.choice)
                    if not choices:
                        del self.of_client[message.request_id]
                case Failed() | StatsReply():
                    del self.of_client[message.request_id]
                case Pong():
                    assert message.nonce == self.pings.pop(0)
                case _:
                    pass

    # --- the client

    @precondition(lambda self: self.client.is_open)
    @rule(request_id=IDS, n=st.integers(1, 3))
    def ask(self, request_id: int, n: int) -> None:
        self.try_to_open(generate(request_id, n=n), request_id, set(range(n)))

    @precondition(lambda self: self.client.is_open)
    @rule(request_id=IDS)
    def ask_constrained(self, request_id: int) -> None:
        message = GenerateConstrained(request_id, pack_ids([1]), "regex", "a")
        self.try_to_open(message, request_id, {0})

    @precondition(lambda self: self.client.is_open)
    @rule(request_id=IDS)
    def ask_for_scores(self, request_id: int) -> None:
        self.try_to_open(Score(request_id, pack_ids([1]), "chunked"), request_id, {0})

    @precondition(lambda self: self.client.is_open)
    @rule(request_id=IDS)
    def ask_for_an_embedding(self, request_id: int) -> None:
        self.try_to_open(Embed(request_id, pack_ids([1])), request_id, {0})

    @precondition(lambda self: self.client.is_open)
    @rule(request_id=IDS)
    def query(self, request_id: int) -> None:
        self.try_to_open(Stats(request_id), request_id, None)

    def try_to_open(
        self, message: Generation | Score | Embed | Stats, request_id: int, choices: set[int] | None
    ) -> None:
        away = self.client.going_away or self.client.peer_going_away
        try:
            self.to_server += self.client.send(message)
        except LocalProtocolError:
            assert away or request_id in self.of_client
        else:
            assert not away
            assert request_id not in self.of_client
            self.of_client[request_id] = choices

    @precondition(lambda self: self.client.is_open)
    @rule(request_id=IDS)
    def cancel(self, request_id: int) -> None:
        frame = self.client.send(Cancel(request_id))
        assert bool(frame) == (request_id in self.of_client)
        self.to_server += frame

    @precondition(lambda self: self.client.is_open)
    @rule()
    def ping(self) -> None:
        self.n_pings += 1
        self.pings.append(self.n_pings)
        self.to_server += self.client.send(Ping(self.n_pings))

    @precondition(lambda self: self.client.is_open)
    @rule(really=st.sampled_from([False, False, True]))
    def client_goes_away(self, really: bool) -> None:
        if really:
            self.to_server += self.client.send(GoAway())

    # --- the server

    @precondition(lambda self: self.server.is_open)
    @rule()
    def step(self) -> None:
        lanes = [(i, c) for i, choices in self.of_server.items() for c in choices or ()]
        self.to_client += self.server.send(
            packed_tokens([i for i, _ in lanes], range(len(lanes)), [c for _, c in lanes])
        )

    @precondition(lambda self: self.server.is_open and self.of_server)
    @rule(data=st.data(), fails=st.booleans())
    def finish(self, data: st.DataObject, fails: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.of_server)))
        choices = self.of_server[request_id]
        if fails:
            self.to_client += self.server.send(failure(request_id, ErrorCode.INTERNAL, ""))
            del self.of_server[request_id]
        elif choices is None:
            self.to_client += self.server.send(StatsReply(request_id, {"a": 1}))
            del self.of_server[request_id]
        else:
            choice = data.draw(st.sampled_from(sorted(choices)))
            end = End(request_id, choice, EndReason.STOP, 0, 1, 0, 0, 0, 0)
            self.to_client += self.server.send(end)
            choices.remove(choice)
            if not choices:
                del self.of_server[request_id]

    @precondition(lambda self: self.server.is_open)
    @rule(really=st.sampled_from([False, False, True]))
    def server_goes_away(self, really: bool) -> None:
        if really:
            self.to_client += self.server.send(GoAway(retry_after_ms=5))

    # --- what always holds

    @invariant()
    def each_side_knows_its_lanes(self) -> None:
        assert sorted(self.client.lanes) == sorted(self.of_client)
        assert sorted(self.server.lanes) == sorted(self.of_server)

    @invariant()
    def a_client_holds_a_lane_as_long_as_the_server(self) -> None:
        assert set(self.of_server) <= set(self.of_client)

    def teardown(self) -> None:
        while self.to_server or self.to_client:
            self.carry_to_server(10_000)
            self.carry_to_client(10_000)
        assert self.of_client == self.of_server
        assert not self.pings
        if self.client.going_away or self.server.going_away:
            assert self.client.is_drained == self.server.is_drained == (not self.of_server)


Pairing.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPairing = Pairing.TestCase
