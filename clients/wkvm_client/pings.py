"""Pings and silence on one connection. No I/O and no clock."""

from wkvm_protocol.messages import Pong

from wkvm_client.replies import Reply

MAX_MISSES = 2
"""Pings in a row that may go without any word from the server."""
MAX_UNSENT_PONGS = 2**14
"""Answers to pings that may wait to be sent. More than the pings of one read."""


class Pings:
    """Which of our pings are open, and for how long nothing was heard.

    Attributes:
        replies: the open ones, by nonce.
        heard: whether anything came since the last ``missed``.
    """

    def __init__(self) -> None:
        self.replies: dict[int, Reply] = {}
        self.heard = True
        self._n_pings = 0
        self._n_misses = 0
        self._n_unsent_pongs = 0

    def ask(self) -> tuple[int, Reply]:
        """The nonce of a new ping, and what will hold its answer."""
        self._n_pings += 1
        reply = self.replies[self._n_pings] = Reply()
        return self._n_pings, reply

    def answer(self, nonce: int) -> None:
        """Note a pong."""
        reply = self.replies.pop(nonce, None)
        if reply is not None:
            reply.settle(Pong(nonce))

    def forget(self, reply: Reply) -> None:
        """Stop waiting for a pong."""
        for nonce, pending in self.replies.items():
            if pending is reply:
                del self.replies[nonce]
                return

    def is_quiet(self) -> bool:
        """Whether nothing was heard since the last time that this was asked."""
        if self.heard:
            self.heard = False
            self._n_misses = 0
            return False
        return True

    def missed(self) -> bool:
        """Note a silence. Returns whether there were too many of them in a row."""
        self.is_quiet()
        if self._n_misses == MAX_MISSES:
            return True
        self._n_misses += 1
        return False

    def may_answer(self, *, is_behind: bool) -> bool:
        """Whether a ping of the server's may be answered: not if it takes none of the answers."""
        self._n_unsent_pongs = self._n_unsent_pongs + 1 if is_behind else 0
        return self._n_unsent_pongs <= MAX_UNSENT_PONGS
