"""What an output must be, as a request says it, and as a step asks for it.

Plain data and an interface: what carries grammars out is the engine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wkvm.core.errors import InvalidParameterError

KINDS = frozenset({"json_schema", "regex", "lark", "without"})
MAX_GRAMMAR_BYTES = 65_536
"""Length of a grammar's source in UTF-8."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the output must follow.

    Attributes:
        kind: how the source is written: ``json_schema``, ``regex``, ``lark`` or ``without``, which
            is sequences of ids that the output has nowhere.
        source: the grammar. Whether it is one shows when it is compiled.
    """

    kind: str
    source: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidParameterError("grammar", f"no kind is {self.kind[:32]!r}")
        # At least a byte a character: a source that is far too long is not encoded.
        if (
            len(self.source) > MAX_GRAMMAR_BYTES
            or len(self.source.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES
        ):
            raise InvalidParameterError("grammar", f"the limit is {MAX_GRAMMAR_BYTES:,} bytes")


class Unbound(NamedTuple):
    """A request that got a slot and lacks the constraint that its grammar makes.

    Attributes:
        stops: ids that end it.
        allowed_ids: only these may be chosen; None allows all.
        told: the output so far, which the constraint is to be told first: a request that goes
            on from a state goes on in its grammar.
    """

    request_id: int
    grammar: Grammar
    stops: tuple[int, ...]
    allowed_ids: Sequence[int] | None
    told: tuple[int, ...] = ()


class Constraint(Protocol):
    """A grammar at one point of one request's output. It changes as the output grows.

    It travels with the request's rows and belongs to whoever runs the step.
    """

    @property
    def may_end(self) -> bool:
        """Whether the output so far is a text of the grammar."""
        ...

    def next_ids(self, *, may_stop: bool) -> bytes:
        """Which ids may come next: id i, if bit ``i % 8`` of byte ``i // 8`` is set.

        Args:
            may_stop: whether stop ids are among them, where the output may end.

        Returns:
            As many bytes as the vocabulary needs. No bit is set where nothing may come.

        Raises:
            InvalidParameterError: the grammar has become too complex. Then the constraint is
                of no more use.
        """
        ...

    def advance(self, token_id: int) -> bool:
        """Take note of an id of ``next_ids`` that was chosen.

        Returns:
            Whether the output is complete with it, since nothing may follow.

        Raises:
            InvalidParameterError: as ``next_ids``.
        """
        ...
