"""What sessions of both clients know without asking: options, keys, and how turns follow."""

import secrets
from collections.abc import Iterable, Mapping
from typing import TypedDict

from wkvm_protocol.messages import EndReason

from wkvm_client.drafts import Grammar
from wkvm_client.results import Completion
from wkvm_client.states import LogEntry


class TurnOptions(TypedDict, total=False):
    """Options of one turn: as of ``Client.generate``, with the same defaults."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_decay: float
    logit_bias: Mapping[int, float] | None
    allowed_ids: Iterable[int] | None
    stop_ids: Iterable[int]
    ignore_eos: bool
    min_tokens: int
    max_tokens: int
    seed: int | None
    credit: int | None
    timeout_s: float | None
    priority: int
    grammar: Grammar | None


def new_key() -> str:
    """An idempotency key that nobody else has."""
    return secrets.token_hex(16)


class Turns:
    """Where a session is, and where its turns began.

    Attributes:
        head: the newest version of its state; 0 where there is none yet, None where that has to
            be asked.
        n_tokens: how many tokens that has; None where that is not known.
    """

    def __init__(self, head: int | None, n_tokens: int | None) -> None:
        self.head = head
        self.n_tokens = n_tokens
        self._starts: list[int] = []

    def add(self, version: int, n_tokens: int) -> None:
        """Note a turn, or what was appended."""
        if self.head:
            self._starts.append(self.head)
        self.at(version, n_tokens)

    def at(self, version: int | None, n_tokens: int | None) -> None:
        """Note what the newest version is, by whatever was no turn."""
        self.head, self.n_tokens = version, n_tokens

    def ended(self, completion: Completion) -> None:
        """Note how a turn ended. One that kept nothing has not been."""
        state = completion.state
        if state is not None and state.name and completion.reason != EndReason.MOVED:
            self.add(state.version, state.n_tokens)

    def moved(self, version: int, n_tokens: int | None) -> None:
        """Note that the state is elsewhere, where its versions have other numbers."""
        self._starts.clear()
        self.at(version, n_tokens)

    def start_of_last(self) -> int | None:
        """The version that the last turn began with; None if that has to be asked."""
        return self._starts[-1] if self._starts else None

    def rolled_back(self, version: int, n_tokens: int) -> None:
        """Note that the last turn has not been."""
        if self._starts:
            self._starts.pop()
        self.at(version, n_tokens)


def parent_of(name: str, entry: LogEntry) -> int | None:
    """The version of the same state that one continues; None where it continues none."""
    for ref, _ in entry.provenance.parents[:1]:
        parent, _, version = ref.partition("@")
        if parent == name and version:
            return int(version)
    return None


PASSED_OVER = frozenset({"rollback", "snapshot"})
"""Operations that are no turns: a version made by one is as its parent."""
