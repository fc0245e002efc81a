"""Which lanes of a connection are open, and which of their choices have still to end."""

from collections.abc import Iterator, Sequence

from wkvm_protocol.messages import End, Failed, Logprobs, Message, StatsReply, Tokens, unpack_ids


class _Lane:
    __slots__ = ("ended", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self.ended: set[int] = set()


class Lanes:
    """The open lanes of one connection, the same book on both sides.

    A method that finds a rule broken says which, in words, and changes nothing; the
    caller knows whose fault it is.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane | None] = {}
        # where choice 0 has not ended: one set operation checks a whole Tokens
        self._first_open: set[int] = set()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._lanes

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._lanes)

    def open_generation(self, request_id: int, n: int) -> str | None:
        """Open a lane of ``n`` choices. With ``n`` below 1 it can only fail."""
        if request_id in self._lanes:
            return f"request id {request_id} is open already"
        self._lanes[request_id] = _Lane(n)
        if n > 0:
            self._first_open.add(request_id)
        return None

    def open_query(self, request_id: int) -> str | None:
        """Open a lane that takes one reply."""
        if request_id in self._lanes:
            return f"request id {request_id} is open already"
        self._lanes[request_id] = None
        return None

    def apply(self, message: Message) -> str | None:
        """Take note of a message from the server to the client, if it concerns a lane."""
        match message:
            case Tokens():
                return self.problem_with_tokens(
                    unpack_ids(message.lanes), unpack_ids(message.choices)
                )
            case Logprobs():
                return self.problem_with_choice(message.request_id, message.choice)
            case End():
                return self.end(message.request_id, message.choice)
            case Failed():
                return self.fail(message.request_id)
            case StatsReply():
                return self.reply(message.request_id)
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
        if lane is None:
            return f"request id {request_id} is no open generation"
        if choice >= lane.n:
            return f"request id {request_id} has {lane.n} choices, {choice} is not one of them"
        if choice in lane.ended:
            return f"choice {choice} of request id {request_id} has ended"
        return None

    def end(self, request_id: int, choice: int) -> str | None:
        """End one choice, and with the last one the lane."""
        problem = self.problem_with_choice(request_id, choice)
        if problem is not None:
            return problem
        lane = self._lanes[request_id]
        assert lane is not None
        if choice == 0:
            self._first_open.discard(request_id)
        if len(lane.ended) + 1 == lane.n:
            del self._lanes[request_id]
        else:
            lane.ended.add(choice)
        return None

    def reply(self, request_id: int) -> str | None:
        """Close a query's lane."""
        if self._lanes.get(request_id, self) is not None:
            return f"request id {request_id} is no open query"
        del self._lanes[request_id]
        return None

    def fail(self, request_id: int) -> str | None:
        """Close a lane of either kind without success."""
        if request_id not in self._lanes:
            return f"request id {request_id} is not open"
        del self._lanes[request_id]
        self._first_open.discard(request_id)
        return None
