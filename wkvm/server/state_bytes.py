"""Bytes of states on a lane: what a client sends, and what it is sent. Both ways are bounded."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from blake3 import blake3
from wkvm_protocol import messages as wire

from wkvm.core.errors import BadStateFileError, StalledError
from wkvm.core.states import StateInfo
from wkvm.server.state_fields import info_message

WINDOW_BYTES = 4 * wire.MAX_CHUNK_BYTES
"""Bytes of one upload that may be on their way or wait to be used."""
TRANSFER_TIMEOUT_S = 30.0
"""How long the other side may keep bytes waiting, or the credit for them."""
WHOLE_TRANSFER_S = 600.0
"""How long all bytes of a state may take, so that a trickle of them holds nothing for ever."""
SLOWEST_RATE = 2**20
"""Bytes a second: the time that a large state has beyond that."""


class Peer(Protocol):
    """The other end of a lane."""

    def send(self, messages: list[wire.ServerMessage]) -> None:
        """Send messages with one write."""
        ...

    def room(self, request_id: int) -> int:
        """How many bytes of a state may be sent on a lane, as the client granted them."""
        ...

    async def output_room(self) -> int:
        """How many bytes may wait to be sent behind what is urgent, once it is one at least."""
        ...


class _Patience:
    """How long somebody may keep us waiting: each time, and in all.

    Args:
        whole_s: in all, and beyond it the time that ``n_bytes`` take at ``SLOWEST_RATE``.
    """

    def __init__(self, timeout_s: float, whole_s: float, n_bytes: int) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._whole_s = whole_s + n_bytes // SLOWEST_RATE
        self._due = self._loop.time() + self._whole_s

    async def until(self, event: asyncio.Event) -> None:
        """Wait for an event.

        Raises:
            TimeoutError: it took too long; the message says what.
        """
        if self._loop.time() >= self._due:
            raise TimeoutError(f"{self._whole_s:g} s in all")
        try:
            async with asyncio.timeout(self._timeout_s):
                await event.wait()
        except TimeoutError:
            raise TimeoutError(f"nothing for {self._timeout_s:g} s") from None


class Upload:
    """Bytes from a client, as many as were announced. Used by one task.

    Args:
        peer: who sends them.
        request_id: on which lane.
        n_bytes: how many there will be, at least 1.
        timeout_s: how long it may send nothing.
        whole_s: how long it may take, from now on; see ``_Patience``.
    """

    def __init__(
        self, peer: Peer, request_id: int, n_bytes: int, timeout_s: float, whole_s: float
    ) -> None:
        self._peer = peer
        self._request_id = request_id
        self._wait = _Patience(timeout_s, whole_s, n_bytes)
        self._n_to_grant = n_bytes
        self._n_to_come = n_bytes
        self._n_open = 0
        self._chunks = deque[bytes]()
        self._end: wire.StateBytesEnd | None = None
        self._arrived = asyncio.Event()
        self._hasher = blake3()

    def put(self, message: wire.StateChunk | wire.StateBytesEnd) -> None:
        """Take note of what came."""
        if isinstance(message, wire.StateChunk):
            self._chunks.append(message.data)
        else:
            self._end = message
        self._arrived.set()

    async def next(self) -> bytes | None:
        """The next bytes; None once all have come and the client has said so.

        Raises:
            BadStateFileError: it sends nothing for too long, or ends early, or the bytes are not
                those whose digest it gives.
        """
        self._grant()
        while not self._chunks:
            if self._end is not None:
                self._check_end(self._end)
                return None
            self._arrived.clear()
            try:
                await self._wait.until(self._arrived)
            except TimeoutError as error:
                raise BadStateFileError(
                    f"it takes too long ({error}), {self._n_to_come:,} bytes are missing"
                ) from None
        chunk = self._chunks.popleft()
        self._n_open -= len(chunk)
        self._n_to_come -= len(chunk)
        self._hasher.update(chunk)
        return chunk

    def _grant(self) -> None:
        """Let more come, as what came before was used."""
        n_bytes = min(WINDOW_BYTES - self._n_open, self._n_to_grant)
        if n_bytes and (self._n_open <= WINDOW_BYTES // 2 or n_bytes == self._n_to_grant):
            self._n_open += n_bytes
            self._n_to_grant -= n_bytes
            self._peer.send([wire.StateCredit(self._request_id, n_bytes)])

    def _check_end(self, end: wire.StateBytesEnd) -> None:
        if self._n_to_come:
            raise BadStateFileError(f"it ends {self._n_to_come:,} bytes early")
        if end.digest and end.digest != self._hasher.hexdigest():
            raise BadStateFileError("the bytes are not those that the digest stands for")


class Download:
    """Bytes to a client, which grants them as it likes. Used by one task."""

    def __init__(self, peer: Peer, request_id: int, timeout_s: float, whole_s: float) -> None:
        self._peer = peer
        self._request_id = request_id
        self._timeout_s = timeout_s
        self._whole_s = whole_s
        self._wait = _Patience(timeout_s, whole_s, 0)
        self._granted = asyncio.Event()

    def grant(self) -> None:
        """The client has granted more."""
        self._granted.set()

    async def send(
        self, n_bytes: int, info: StateInfo | None, chunks: Iterable[memoryview]
    ) -> wire.StateBytesEnd:
        """Say how many come, and send them; what says that all were sent is left to the caller.

        Raises:
            StalledError: the client granted nothing for too long.
        """
        state = None if info is None else info_message(info)
        self._wait = _Patience(self._timeout_s, self._whole_s, n_bytes)
        self._peer.send([wire.StateExportBegin(self._request_id, n_bytes, state)])
        hasher = blake3()
        for chunk in chunks:
            rest = chunk
            while len(rest):
                piece = bytes(rest[: await self._room()])
                hasher.update(piece)
                self._peer.send([wire.StateChunk(self._request_id, piece)])
                rest = rest[len(piece) :]
        return wire.StateBytesEnd(self._request_id, hasher.hexdigest())

    async def _room(self) -> int:
        """How long the next chunk may be; waits until it is one byte at least."""
        while not self._peer.room(self._request_id):
            self._granted.clear()
            try:
                await self._wait.until(self._granted)
            except TimeoutError:
                raise StalledError(self._timeout_s) from None
        n_bytes = await self._peer.output_room()
        return min(n_bytes, self._peer.room(self._request_id), wire.MAX_CHUNK_BYTES)
