"""Numbers in JSON come to an end: a grammar allows any number of digits behind a point.

A model that is unsure may go on with them for ever, though the schema leaves it little to say.
"""

from collections.abc import Callable, Sequence

MAX_NUMBER = 40
"""Characters of a number, after which it ends as soon as it may."""

_IN_NUMBERS = b"0123456789+-.eE"
_QUOTE, _BACKSLASH = b'"\\'


class NumberIds:
    """Which ids go on with a number: made once for a vocabulary.

    Attributes:
        token_bytes: by id.
        digits: the ids of single digits.
        any_digit: of the ids that begin with what a number has; a mask as of
            ``Constraint.next_ids``, as a little-endian number.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self.token_bytes = token_bytes
        self.any_digit = _mask(token_bytes, _IN_NUMBERS)
        singles = [b"%d" % digit for digit in range(10)]
        self.digits = [at for at, token in enumerate(token_bytes) if token in singles]


class Numbers:
    """Follows one JSON text, id by id, and ends its numbers."""

    def __init__(self, ids: NumberIds) -> None:
        self._ids = ids
        self._in_string = False
        self._is_escaped = False
        self._length = 0

    def advance(self, token_id: int) -> None:
        """An id was chosen. Linear in its text."""
        if token_id >= len(self._ids.token_bytes):
            return
        for byte in self._ids.token_bytes[token_id]:
            if self._is_escaped:
                self._is_escaped = False
            elif byte == _QUOTE:
                self._in_string, self._length = not self._in_string, 0
            elif self._in_string:
                self._is_escaped = byte == _BACKSLASH
            else:
                self._length = self._length + 1 if byte in _IN_NUMBERS else 0

    def limit(
        self, mask: bytes, *, may_end: bool, after: Callable[[int], tuple[bytes, bool]]
    ) -> bytes:
        """The ids of a mask that do not go on with a number that is too long.

        Args:
            mask: see ``Constraint.next_ids``.
            may_end: whether the text may end here.
            after: the mask after one of its ids, and whether the text may end there. It is asked
                for at most ten, and hardly ever.

        Returns:
            If the number may not end yet, the digits after which it may; if there are none, all.
        """
        if self._length < MAX_NUMBER:
            return mask
        allowed = int.from_bytes(mask, "little")
        left = self._ending(mask)
        if not left and not may_end:
            for digit in self._ids.digits:
                if allowed >> digit & 1:
                    following, may_end_there = after(digit)
                    if may_end_there or self._ending(following):
                        left |= 1 << digit
            left = left or allowed
        return left.to_bytes(len(mask), "little")

    def _ending(self, mask: bytes) -> int:
        """The ids of a mask that end a number."""
        return int.from_bytes(mask, "little") & ~self._ids.any_digit


def _mask(token_bytes: Sequence[bytes], firsts: bytes) -> int:
    bits = bytearray(-(-len(token_bytes) // 8))
    for token_id, token in enumerate(token_bytes):
        if token and token[0] in firsts:
            bits[token_id >> 3] |= 1 << (token_id & 7)
    return int.from_bytes(bits, "little")
