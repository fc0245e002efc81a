"""Open lanes: which engine request belongs to which lane of which connection, and shared credit."""

from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from wkvm_protocol.connection import Ignored
from wkvm_protocol.messages import (
    Cancel,
    ClientMessage,
    Credit,
    Generate,
    GenerateConstrained,
    GenerateOn,
    Interrupt,
    ServerMessage,
)

from wkvm.server.embeddings import EmbeddingSum

MAX_SHARE = 8
"""Ids that one choice of several may be ahead of the lane's pool."""

Grants: TypeAlias = list[tuple[int, int]]
"""Pairs of a choice and how many ids it may produce more."""


class CreditPool:
    """Shares one lane's credit among its choices.

    The sum of what the choices hold and what is left here never exceeds what the client
    granted and has not used. A choice that waits for its slot needs no credit, and what it
    held would be missing elsewhere; so choices are given their first unit one after the
    other, each when the one before it has started, and those that run are given a few at a time,
    in turn. What a choice leaves unused goes back to the pool.
    """

    def __init__(self, credit: int, n_choices: int) -> None:
        self._free = credit
        self._waiting = deque(range(n_choices))
        self._shares: dict[int, int] = {}  # who was given something last comes last

    def add(self, n_tokens: int) -> Grants:
        """The client granted more."""
        self._free += n_tokens
        return self.deal()

    def used(self, choice: int) -> Grants:
        """A choice produced an id."""
        self._shares[choice] -= 1
        if self._waiting and self._waiting[0] == choice:
            self._waiting.popleft()
        elif self._shares[choice]:
            return []
        return self.deal()

    def ended(self, choice: int) -> Grants:
        """A choice is over; what it did not use is free again."""
        self._free += self._shares.pop(choice, 0)
        if choice in self._waiting:
            self._waiting.remove(choice)
        return self.deal()

    def deal(self) -> Grants:
        """Hand out what is free to the choices that hold nothing."""
        grants: Grants = []
        if self._free and self._waiting and not self._shares.get(self._waiting[0]):
            first = self._waiting[0]
            self._free -= 1
            self._shares[first] = 1
            grants.append((first, 1))
        for choice in [choice for choice, share in self._shares.items() if not share]:
            if not self._free:
                break
            n_tokens = min(self._free, MAX_SHARE, self._free // len(self._shares) + 1)
            self._free -= n_tokens
            del self._shares[choice]
            self._shares[choice] = n_tokens
            grants.append((choice, n_tokens))
        return grants


class Outbox:
    """What a step produced for one connection, until it is sent with one write."""

    __slots__ = ("ends", "is_fresh", "logprobs", "tokens")

    def __init__(self) -> None:
        self.is_fresh = True
        """Whether the step at hand has produced nothing yet."""
        self.logprobs = list[ServerMessage]()
        self.tokens = list[ServerMessage]()
        self.ends = list[ServerMessage]()

    def touch(self, touched: "list[Outbox]") -> None:
        """Enter the list of boxes that a step has put something into, once a step."""
        if self.is_fresh:
            self.is_fresh = False
            touched.append(self)

    def take(self) -> list[ServerMessage]:
        """Empty the box: what is said of prompts and ids, then ids, then ends and failures."""
        messages = [*self.logprobs, *self.tokens, *self.ends]
        self.is_fresh = True
        self.logprobs, self.tokens, self.ends = [], [], []
        return messages


class Lane:
    """One Generate, GenerateOn, Score or Embed.

    ``engine_ids`` are the engine's requests by the index of their choice, ``choices`` those
    that have not ended, by engine request id. ``n_scored`` is the length of a Score's text;
    None of a Generate. ``embedding`` is that of an Embed, as far as it has come.
    ``is_on_state`` holds for a GenerateOn, and ``has_place`` where it has
    taken a place among the transfers of its tenant.
    """

    __slots__ = (
        "choices",
        "embedding",
        "engine_ids",
        "has_place",
        "is_on_state",
        "n_scored",
        "pool",
        "request_id",
    )

    def __init__(
        self,
        request_id: int,
        engine_ids: tuple[int, ...],
        pool: CreditPool | None,
        *,
        n_scored: int | None = None,
        embedding: EmbeddingSum | None = None,
        is_on_state: bool = False,
        has_place: bool = False,
    ) -> None:
        self.request_id = request_id
        self.engine_ids = engine_ids
        self.pool = pool
        self.n_scored = n_scored
        self.embedding = embedding
        self.is_on_state = is_on_state
        self.has_place = has_place
        self.choices: dict[int, Choice] = {}


class Choice:
    """One completion: what the engine knows as a request.

    ``box`` is the outbox of its connection. ``is_plain`` holds where an id needs nothing
    but its place in Tokens: no log probabilities, no shared credit, and not a Score's.
    """

    __slots__ = ("box", "index", "is_plain", "lane", "lane_id")

    def __init__(self, lane: Lane, index: int, box: Outbox, *, is_plain: bool) -> None:
        self.lane = lane
        self.lane_id = lane.request_id
        self.index = index
        self.box = box
        self.is_plain = is_plain


def n_more(lanes: Mapping[int, Lane], message: ClientMessage | Ignored) -> int:
    """As how many more messages one counts: it is as much work for each choice but the first."""
    match message:
        case Generate() | GenerateConstrained() | GenerateOn():
            return max(message.sampling.n - 1, 0)
        case Cancel() | Credit() | Interrupt():
            lane = lanes.get(message.request_id)
            return 0 if lane is None else max(len(lane.choices) - 1, 0)
        case _:
            return 0
