"""Outputs that lack some sequences of ids: the grammars of the kind ``without``."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Constraint, Grammar

MAX_SEQUENCES = 1024
MAX_SEQUENCE_LENGTH = 64
"""Ids of a sequence."""

_Sequence = Annotated[list[int], msgspec.Meta(min_length=1, max_length=MAX_SEQUENCE_LENGTH)]


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """The source of such a grammar, as JSON.

    Attributes:
        ids: what the output has nowhere.
        kind, source: of another grammar that it must follow; empty for none.
    """

    ids: Annotated[list[_Sequence], msgspec.Meta(min_length=1, max_length=MAX_SEQUENCES)]
    kind: str = ""
    source: str = ""

    @property
    def grammar(self) -> Grammar | None:
        """The other grammar.

        Raises:
            InvalidParameterError: there is no such kind.
        """
        if not self.kind and not self.source:
            return None
        if self.kind == "without":
            raise InvalidParameterError("grammar", "one of the kind without holds no other such")
        return Grammar(self.kind, self.source)


def read_source(grammar: Grammar, vocab_size: int) -> Source:
    """What a grammar of the kind ``without`` says.

    Raises:
        InvalidParameterError: it is none.
    """
    try:
        source = msgspec.json.decode(grammar.source, type=Source)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidParameterError("grammar", f"not sequences of ids: {error}") from None
    if any(not 0 <= token_id < vocab_size for ids in source.ids for token_id in ids):
        raise InvalidParameterError("grammar", f"an id is not in [0, {vocab_size})")
    return source


class Without:
    """The constraint of one request. See ``Constraint`` for its methods.

    Args:
        sequences: what the output has nowhere.
        allowed_ids: only these may be chosen; None allows all.
        inner: the constraint of another grammar; None for none.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[int]],
        vocab_size: int,
        *,
        allowed_ids: Sequence[int] | None,
        inner: Constraint | None,
    ) -> None:
        self._inner = inner
        self._n_bytes = n_bytes = -(-vocab_size // 8)
        if allowed_ids is None:
            bits = bytearray(b"\xff" * n_bytes)
            if vocab_size % 8:
                bits[-1] = (1 << vocab_size % 8) - 1
        else:
            bits = bytearray(n_bytes)
            for token_id in allowed_ids:
                bits[token_id >> 3] |= 1 << (token_id & 7)
        self._longer = [(tuple(ids[:-1]), ids[-1]) for ids in sequences if len(ids) > 1]
        for ids in sequences:
            if len(ids) == 1:
                _clear(bits, ids[0])
        self._base = bytes(bits)
        self._n_kept = max((len(head) for head, _ in self._longer), default=0)
        self._tail: tuple[int, ...] = ()

    @property
    def may_end(self) -> bool:
        """Whether the output may end here: where the other grammar lets it."""
        return self._inner is None or self._inner.may_end

    def next_ids(self, *, may_stop: bool) -> bytes:
        """All ids but those that would complete a sequence. Some microseconds."""
        mask = self._base
        ending = [last for head, last in self._longer if self._tail[-len(head) :] == head]
        if ending:
            bits = bytearray(mask)
            for token_id in ending:
                _clear(bits, token_id)
            mask = bytes(bits)
        if self._inner is None:
            return mask
        allowed = self._inner.next_ids(may_stop=may_stop)
        both = int.from_bytes(mask) & int.from_bytes(allowed)
        return both.to_bytes(self._n_bytes)

    def advance(self, token_id: int) -> bool:
        """Take note of an id that was chosen."""
        self.note((token_id,))
        return self._inner is not None and self._inner.advance(token_id)

    def note(self, ids: Sequence[int]) -> None:
        """Take note of ids that the other grammar knows of already."""
        if self._n_kept:
            self._tail = (*self._tail, *ids)[-self._n_kept :]


def _clear(bits: bytearray, token_id: int) -> None:
    bits[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
