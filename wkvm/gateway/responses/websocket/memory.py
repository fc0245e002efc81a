"""What one connection alone remembers: its responses that are not stored, and their states.

It has bounds in number and in bytes; what was used last stays. It is gone with the connection.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence

from msgspec.json import encode

from wkvm.gateway.responses.core import Local

MAX_RESPONSES = 64
MAX_BYTES = 64 * 1024 * 1024
"""Of the items of all conversations; an item that is in several counts for each."""


class Memory(MutableMapping[str, Local]):
    """Responses by their names.

    Args:
        release: removes the states of responses that are remembered no more.
    """

    def __init__(self, release: Callable[[Sequence[str]], None]) -> None:
        self._release = release
        self._responses: dict[str, tuple[Local, int]] = {}
        self._n_bytes = 0

    @property
    def n_bytes(self) -> int:
        """How large the items are, as JSON."""
        return self._n_bytes

    def __getitem__(self, name: str) -> Local:
        """One that is remembered; it is now the one that was used last."""
        found = self._responses.pop(name)
        self._responses[name] = found
        return found[0]

    def __setitem__(self, name: str, local: Local) -> None:
        """Remember one. Others that were not used for longest make room, or it is forgotten."""
        self.pop(name, None)
        n_bytes = len(encode(local.items))
        self._responses[name] = local, n_bytes
        self._n_bytes += n_bytes
        while len(self._responses) > MAX_RESPONSES or self._n_bytes > MAX_BYTES:
            del self[next(iter(self._responses))]

    def __delitem__(self, name: str) -> None:
        """Forget one, with its state."""
        _, n_bytes = self._responses.pop(name)
        self._n_bytes -= n_bytes
        self._release([name])

    def __iter__(self) -> Iterator[str]:
        """Names, the one that was not used for longest first."""
        return iter(self._responses)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._responses)

    def __contains__(self, name: object) -> bool:
        """Whether one is remembered."""
        return name in self._responses

    def clear(self) -> None:
        """Forget all."""
        names = list(self._responses)
        self._responses.clear()
        self._n_bytes = 0
        if names:
            self._release(names)
