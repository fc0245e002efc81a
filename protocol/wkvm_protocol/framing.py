"""The length prefix: where one message ends and the next begins. Bytes only, no meaning.

A frame is a little-endian uint32, the length of the payload, and the payload.
"""

from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError

HEADER_BYTES = 4
_HTTP = int.from_bytes(b"HTTP", "little")
"""The length that an answer of HTTP seems to have: an easy mistake about ports."""


def encode_frame(payload: bytes, limit: int) -> bytes:
    """Put a payload into a frame.

    Returns:
        A new object each time: a transport may hold on to what it was given.

    Raises:
        LocalProtocolError: the payload is empty or longer than ``limit``.
    """
    n_bytes = len(payload)
    if not 0 < n_bytes <= limit:
        raise LocalProtocolError(f"a payload of {n_bytes} bytes; 1 to {limit} are allowed")
    return n_bytes.to_bytes(HEADER_BYTES, "little") + payload


class FrameReader:
    """Cuts a stream of bytes into payloads, however the transport cut it.

    ``feed`` stores, ``next_payload`` returns; call the latter until it gives None, and
    what stays stored is less than one frame of at most ``limit``. Memory grows with
    the bytes that came, not with the length that a frame claims.
    Every byte is copied twice at most, whether frames are many or one is long.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Longest payload to accept. May be changed: it applies to the next frame."""
        self._buffer = bytearray()
        self._start = 0
        self._error: RemoteProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """How many bytes are stored and not yet returned, length prefixes included."""
        return len(self._buffer) - self._start

    @property
    def mid_frame(self) -> bool:
        """Whether a frame was started and not finished, once ``next_payload`` gave None."""
        return len(self._buffer) > self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Store received bytes. After a violation they are dropped."""
        if self._error is not None:
            return
        if self._start:
            # front deletion moves a pointer: it costs nothing
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_payload(self) -> bytes | None:
        """Return the next whole payload, or None until more bytes are fed.

        Raises:
            RemoteProtocolError: the next frame is empty or too long. Its payload was not
                waited for; from now on nothing else happens but this error.
        """
        if self._error is not None:
            raise self._error
        buffer, start = self._buffer, self._start
        body = start + HEADER_BYTES
        if len(buffer) < body:
            return None
        n_bytes = int.from_bytes(buffer[start:body], "little")
        if not 0 < n_bytes <= self.limit:
            raise self._fail(n_bytes)
        end = body + n_bytes
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            payload = bytes(view[body:end])
        if end == len(buffer):
            buffer.clear()
            self._start = 0
        else:
            self._start = end
        return payload

    def _fail(self, n_bytes: int) -> RemoteProtocolError:
        self._buffer.clear()
        self._start = 0
        why = f"a frame of {n_bytes} bytes; the limit is {self.limit}"
        if n_bytes == _HTTP:
            why = "it speaks HTTP; the binary protocol has another port"
        self._error = (
            RemoteProtocolError(why, ErrorCode.FRAME_TOO_LARGE)
            if n_bytes
            else RemoteProtocolError("a frame of 0 bytes")
        )
        return self._error
