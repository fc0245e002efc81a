"""Which lanes of a connection are open, and which of their choices have still to end."""

from collections.abc import Iterator, Sequence

from wkvm_protocol.flows import Flow
from wkvm_protocol.messages import (
    REPLIES,
    Embed,
    Embedding,
    End,
    EndOn,
    Failed,
    Generate,
    GenerateConstrained,
    GenerateOn,
    Interrupt,
    Logprobs,
    Message,
    Opening,
    Reused,
    Score,
    StateBytesEnd,
    StateChanges,
    StateChunk,
    StateCredit,
    StateExport,
    StateExportBegin,
    StateImport,
    StateLineagePage,
    StateMoved,
    StatePage,
    StateText,
    StateTransfer,
    StateVersions,
    Stats,
    StatsChanges,
    StatsReply,
    Tokens,
    Watch,
    unpack_ids,
)


class _Lane:
    """``n`` is the number of choices, None where ``closed_by`` is a reply and not an end.

    ``lacks_embedding`` holds for an Embed until it has come.
    """

    __slots__ = ("closed_by", "down", "ended", "lacks_embedding", "n", "up")

    def __init__(
        self,
        closed_by: type[Message],
        n: int | None = None,
        *,
        up: Flow | None = None,
        down: Flow | None = None,
        lacks_embedding: bool = False,
    ) -> None:
        self.lacks_embedding = lacks_embedding
        self.closed_by = closed_by
        self.n = n
        self.ended: set[int] = set()
        self.up = up
        self.down = down


class Lanes:
    """The open lanes of one connection, the same book on both sides.

    A method that finds a rule broken says which, in words, and changes nothing; the
    caller knows whose fault it is.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        # where choice 0 has not ended: one set operation checks a whole Tokens
        self._first_open: set[int] = set()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._lanes)

    # --- from the client ------------------------------------------------------------------

    def open(self, message: Opening) -> str | None:
        """Open the lane that a message asks for. A generation of no choices can only fail."""
        request_id = message.request_id
        if request_id in self._lanes:
            return f"request id {request_id} is open already"
        lane = _lane_of(message)
        self._lanes[request_id] = lane
        if lane.n is not None and lane.n > 0:
            self._first_open.add(request_id)
        return None

    def apply_from_client(self, message: StateTransfer | Interrupt) -> str | None:
        """Take note of what a client says within a lane that is open."""
        lane = self._lanes[message.request_id]
        match message:
            case StateCredit() if lane.down is not None:
                return lane.down.grant(message.n_bytes, at_most_all=False)
            case StateChunk() if lane.up is not None:
                return lane.up.take(len(message.data))
            case StateBytesEnd() if lane.up is not None:
                return lane.up.end()
            case Interrupt() if lane.closed_by is EndOn:
                return None
            case _:
                return f"request id {message.request_id} has no place for it"

    def room_up(self, request_id: int) -> int:
        """How many bytes of a state the client may send on a lane now."""
        lane = self._lanes.get(request_id)
        return 0 if lane is None or lane.up is None or lane.up.is_over else lane.up.room

    def room_down(self, request_id: int) -> int:
        """How many bytes of a state the server may send on a lane now."""
        lane = self._lanes.get(request_id)
        return 0 if lane is None or lane.down is None or lane.down.is_over else lane.down.room

    # --- from the server ------------------------------------------------------------------

    def apply(self, message: Message) -> str | None:
        """Take note of a message from the server to the client, if it concerns a lane."""
        match message:
            case Tokens():
                return self.problem_with_tokens(
                    unpack_ids(message.lanes), unpack_ids(message.choices)
                )
            case Logprobs() | Reused():
                return self.problem_with_choice(message.request_id, message.choice)
            case Embedding():
                return self._embed(message.request_id)
            case End() | EndOn():
                return self._end(message)
            case Failed() | StateMoved():
                return self._fail(message.request_id)
            case StatsReply() | StateVersions() | StatePage() | StateText() | StateLineagePage():
                return self._reply(message)
            case StateExportBegin() | StateChunk() | StateBytesEnd() | StateCredit():
                return self._move_bytes(message)
            case StateChanges() | StatsChanges():
                return self._changes(message.request_id)
            case _:
                return None

    def problem_with_tokens(self, lanes: Sequence[int], choices: Sequence[int]) -> str | None:
        """Whether output may come for these; no ``choices`` means all 0.

        Costs one set lookup for each lane.
        """
        if not choices:
            if self._first_open.issuperset(lanes):
                return None
            choices = bytes(len(lanes))
        for request_id, choice in zip(lanes, choices, strict=True):
            problem = self.problem_with_choice(request_id, choice)
            if problem is not None:
                return problem
        return None

    def problem_with_choice(self, request_id: int, choice: int) -> str | None:
        """Whether something may come for a choice of a lane."""
        lane = self._lanes.get(request_id)
        if lane is None or lane.n is None:
            return f"request id {request_id} is no open generation"
        if choice >= lane.n:
            return f"request id {request_id} has {lane.n} choices, {choice} is not one of them"
        if choice in lane.ended:
            return f"choice {choice} of request id {request_id} has ended"
        return None

    def _embed(self, request_id: int) -> str | None:
        """Take note of an embedding, of which a lane has one."""
        lane = self._lanes.get(request_id)
        if lane is None or not lane.lacks_embedding:
            return f"request id {request_id} lacks no embedding"
        lane.lacks_embedding = False
        return None

    def _end(self, message: End | EndOn) -> str | None:
        """End one choice, and with the last one the lane."""
        request_id, choice = message.request_id, message.choice
        problem = self.problem_with_choice(request_id, choice)
        if problem is not None:
            return problem
        lane = self._lanes[request_id]
        if lane.closed_by is not type(message):
            return f"request id {request_id} takes {lane.closed_by.__name__}"
        if lane.down is not None and lane.down.has_begun and not lane.down.is_over:
            return f"request id {request_id} lacks {lane.down.left} bytes of its state"
        if choice == 0:
            self._first_open.discard(request_id)
        if len(lane.ended) + 1 == lane.n:
            del self._lanes[request_id]
        else:
            lane.ended.add(choice)
        return None

    def _changes(self, request_id: int) -> str | None:
        """Whether a lane is one on which changes are told."""
        if self._lanes.get(request_id) is not _WATCH:
            return f"request id {request_id} is no open watch"
        return None

    def _reply(
        self, message: StatsReply | StateVersions | StatePage | StateText | StateLineagePage
    ) -> str | None:
        """Close the lane of a query or of an operation."""
        request_id = message.request_id
        lane = self._lanes.get(request_id)
        if lane is None or lane.closed_by is not type(message):
            return f"request id {request_id} is no open query that this answers"
        if lane.up is not None and not lane.up.is_over:
            return f"request id {request_id} has not had all its bytes"
        del self._lanes[request_id]
        return None

    def _move_bytes(self, message: StateExportBegin | StateTransfer) -> str | None:
        request_id = message.request_id
        lane = self._lanes.get(request_id)
        if lane is None:
            return f"request id {request_id} is not open"
        match message:
            case StateCredit() if lane.up is not None:
                return lane.up.grant(message.n_bytes, at_most_all=True)
            case StateExportBegin() if lane.down is not None:
                return lane.down.begin(message.n_bytes)
            case StateChunk() if lane.down is not None:
                return lane.down.take(len(message.data))
            case StateBytesEnd() if lane.down is not None:
                if lane.down.left:
                    return f"request id {request_id} lacks {lane.down.left} bytes"
                problem = lane.down.end()
                if problem is None and lane.closed_by is StateBytesEnd:
                    del self._lanes[request_id]
                return problem
            case _:
                return f"request id {request_id} has no place for it"

    def _fail(self, request_id: int) -> str | None:
        """Close a lane of any kind without success."""
        if request_id not in self._lanes:
            return f"request id {request_id} is not open"
        del self._lanes[request_id]
        self._first_open.discard(request_id)
        return None


def _lane_of(message: Opening) -> _Lane:
    match message:
        case Generate() | GenerateConstrained():
            return _Lane(End, message.sampling.n)
        case GenerateOn():
            up = Flow(message.inline_bytes, 0) if message.inline_bytes else None
            down = Flow(None, None) if message.want_inline else None
            return _Lane(EndOn, message.sampling.n, up=up, down=down)
        case Score():
            return _Lane(End, 1)
        case Embed():
            return _Lane(End, 1, lacks_embedding=True)
        case Stats():
            return _STATS
        case Watch():
            return _WATCH
        case StateExport():
            return _Lane(StateBytesEnd, down=Flow(None, message.credit or None))
        case StateImport():
            return _Lane(StateVersions, up=Flow(message.n_bytes, 0))
        case _:
            return _OPERATIONS[type(message)]


_STATS = _Lane(StatsReply)
_WATCH = _Lane(Failed)
_OPERATIONS = {operation: _Lane(reply) for operation, reply in REPLIES.items()}
"""Lanes that take one reply have nothing to remember: all of a kind are one."""
