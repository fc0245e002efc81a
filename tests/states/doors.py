"""One way to ask for operations on states, over the binary protocol and over HTTP alike.

Tests are written against ``Door`` once and hold for both. An error of either door becomes
``Refused`` with the code's name, such as ``STATE_NOT_FOUND``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Refused(Exception):  # noqa: N818  it is an answer
    """The server said no, in a typed way."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Gone(Exception):  # noqa: N818  it is no answer
    """The connection ended before the answer: what was asked for may have happened or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a door tells of one version."""

    name: str
    version: int
    content_id: str
    n_computed: int
    n_pending: int
    ack: str
    tags: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def n_tokens(self) -> int:
        """Tokens of the state, the pending one included."""
        return self.n_computed + self.n_pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of one generation."""

    ids: list[int]
    reason: str
    name: str
    version: int
    ack: str
    cached_tokens: int


class Door(Protocol):
    """What every test asks of either door. All of it raises Refused or Gone."""

    async def generate(
        self,
        prompt: Sequence[int],
        n: int,
        *,
        state: str = "",
        save_as: str = "",
        expected_version: int | None = None,
        durability: str | None = None,
        **sampling: Any,
    ) -> Turn: ...

    async def create(self, name: str, prompt: Sequence[int], **options: Any) -> Known: ...

    async def get(self, ref: str) -> Known: ...

    async def handles(self, prefix: str = "") -> list[Known]: ...

    async def fork(self, ref: str, names: Sequence[str], **options: Any) -> list[Known]: ...

    async def hibernate(self, ref: str) -> Known: ...

    async def resume(self, ref: str) -> Known: ...

    async def snapshot(self, ref: str, save_as: str = "") -> Known: ...

    async def rollback(self, name: str, **where: Any) -> Known: ...

    async def edit(self, name: str, **change: Any) -> Known: ...

    async def delete(self, ref: str, **options: Any) -> None: ...

    async def mutate(
        self, refs: Sequence[str], operation: str, save_as: str, **options: Any
    ) -> Known: ...

    async def diff(self, ref: str, other: str) -> Any: ...

    async def log(self, ref: str) -> Any: ...

    async def replay(self, ref: str) -> Any: ...

    async def export(self, ref: str) -> bytes: ...

    async def importing(self, name: str, data: bytes, **options: Any) -> Known: ...
