"""An output that is known beforehand: how a text is scored as if it were decoded."""

from collections.abc import Sequence


class Forced:
    """A constraint, as of ``wkvm.core.grammar``, that leaves one id at a time: the text's next.

    Args:
        ids: the text, each id below ``vocab_size``.
    """

    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        self._ids = ids
        self._n_bytes = -(-vocab_size // 8)
        self._n_chosen = 0

    @property
    def may_end(self) -> bool:
        """Never: the request's ``max_tokens`` end it."""
        return False

    def next_ids(self, *, may_stop: bool) -> bytes:
        """The next id of the text, as the one bit that is set."""
        del may_stop
        mask = bytearray(self._n_bytes)
        token_id = self._ids[self._n_chosen]
        mask[token_id // 8] = 1 << token_id % 8
        return bytes(mask)

    def advance(self, token_id: int) -> bool:
        """Go on by one id. The text is never complete before ``max_tokens`` are."""
        del token_id
        self._n_chosen += 1
        return False
