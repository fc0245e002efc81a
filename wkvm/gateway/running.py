"""Which requests run, by whose they are and what they are called, so that they can be cancelled.

A registry alone: it cancels what it is asked to, and owns nothing.
"""

from collections.abc import Generator
from contextlib import contextmanager

from wkvm_client import aio


class Running:
    """The running requests of all tenants. A tenant neither finds nor hits another's.

    A name is the client's choice and may be used twice at once; a cancellation is of all.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[bytes, str], list[aio.Stream]] = {}

    def __len__(self) -> int:
        """How many names something runs under."""
        return len(self._streams)

    @contextmanager
    def joined(self, tenant: bytes, request_id: str, *streams: aio.Stream) -> Generator[None]:
        """Let the tenant cancel these by the request's name, until the block is left."""
        name = (tenant, request_id)
        self._streams.setdefault(name, []).extend(streams)
        try:
            yield
        finally:
            left = self._streams[name]
            for stream in streams:
                left.remove(stream)
            if not left:
                del self._streams[name]

    def cancel(self, tenant: bytes, request_id: str) -> bool:
        """Ask the engine to end what runs under a name.

        The streams end as cancelled, with the ids that they have.

        Returns:
            Whether anything does.
        """
        streams = self._streams.get((tenant, request_id), ())
        for stream in streams:
            stream.cancel()
        return bool(streams)
