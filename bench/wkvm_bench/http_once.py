"""A connection that sends one HTTP request after the other, and reads whole answers."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from wkvm_bench.harness import BenchError

MAX_ANSWER_BYTES = 2**22
TIMEOUT_S = 120.0


def http_request(
    method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """A request as bytes; a body of None is none at all."""
    data = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


class HttpConnection:
    """One connection, kept from request to request. It is made with the first.

    Args:
        path: of the server's socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and read its answer, also where that is a stream of events.

        Returns:
            Its status and its body, of a stream with the lengths of its chunks in between.

        Raises:
            BenchError: the connection ended before the answer did, or it took too long.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(
                        self._path, limit=MAX_ANSWER_BYTES
                    )
                reader, writer = self._streams
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                status = int(head[9:12])
                _, chunked, _ = head.partition(b"transfer-encoding: chunked")
                if chunked:
                    return status, await reader.readuntil(b"\r\n0\r\n\r\n")
                _, _, rest = head.partition(b"content-length: ")
                n_bytes = int(rest.partition(b"\r\n")[0] or b"0")
                return status, await reader.readexactly(n_bytes)
        except (TimeoutError, EOFError, ConnectionError) as error:
            raise BenchError(f"no answer to {request[:200]!r}: {error!r}") from error

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is None:
            return
        _, writer = self._streams
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
