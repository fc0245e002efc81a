"""Bytes of a state on their way, in one direction of one lane: how many may and will come."""


class Flow:
    """The same book on both sides. A method that finds a rule broken says which, in words.

    Args:
        n_bytes: how many bytes there are; None until that is said.
        credit: how many of them may be sent before more is granted; None for no limit.
    """

    __slots__ = ("_credit", "_is_over", "_left")

    def __init__(self, n_bytes: int | None, credit: int | None) -> None:
        self._left = n_bytes
        self._credit = credit
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether all was sent, and said to be all."""
        return self._is_over

    @property
    def has_begun(self) -> bool:
        """Whether it is known how many bytes there are."""
        return self._left is not None

    @property
    def room(self) -> int:
        """How many bytes may be sent now."""
        left = self._left or 0
        return left if self._credit is None else min(left, self._credit)

    def begin(self, n_bytes: int) -> str | None:
        """It is said how many bytes there are."""
        if self._left is not None:
            return "bytes are on their way already"
        self._left = n_bytes
        return None

    def grant(self, n_bytes: int, *, at_most_all: bool) -> str | None:
        """More may be sent; with ``at_most_all`` not more than there is."""
        if self._credit is None:
            return None
        if at_most_all and self._credit + n_bytes > (self._left or 0):
            return f"{n_bytes} bytes granted are more than will be sent"
        self._credit += n_bytes
        return None

    def take(self, n_bytes: int) -> str | None:
        """Some were sent."""
        if self._left is None or self._is_over:
            return "no bytes are expected now"
        if n_bytes > self._left:
            return f"{n_bytes} bytes where {self._left} are left"
        if self._credit is not None:
            if n_bytes > self._credit:
                return f"{n_bytes} bytes where {self._credit} were granted"
            self._credit -= n_bytes
        self._left -= n_bytes
        return None

    def end(self) -> str | None:
        """It is said that all were sent. From a client that is for whoever takes them to judge."""
        if self._left is None or self._is_over:
            return "no bytes are expected now"
        self._is_over = True
        return None

    @property
    def left(self) -> int:
        """How many bytes have not been sent."""
        return self._left or 0
