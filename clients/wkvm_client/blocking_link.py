"""The blocking side of one connection: a plain socket, one system call to send and one to receive.

Time-outs are the kernel's (SO_RCVTIMEO): a Python socket with a timeout polls before
every read, which would double the system calls.
"""

import contextlib
import math
import select
import socket
import struct
import time

from wkvm_protocol.address import TcpAddress

from wkvm_client.addresses import Reachable
from wkvm_client.errors import (
    BadPeerError,
    ClientError,
    ConnectFailedError,
    ConnectTimeoutError,
    InvalidParameterError,
)
from wkvm_client.link_core import LinkCore
from wkvm_client.websocket import WebSocketAddress, WebSocketError, WebSocketTunnel

READ_BYTES = 64 * 1024
_TIMEVAL = struct.Struct("@ll")
SHORTEST_WAIT_S = 1e-3
LONGEST_POLL_MS = 2**31 - 1
PENDING_S = 0.5
"""How long taking what has arrived may last. A socket's buffer is emptied much faster."""
_NOTHING = memoryview(b"")


class Link:
    """One connection of a client.

    Frames that the core writes are queued; ``flush`` and ``push`` send them, several in
    one call.
    """

    def __init__(self, sock: socket.socket, tunnel: WebSocketTunnel | None = None) -> None:
        self._socket = sock
        self._tunnel = tunnel
        self._unsent: list[bytes] = []
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._receive_timeout_s = 0.0
        self._takes_bytes = True
        self._half_sent = _NOTHING
        self.not_before_s = 0.0
        """When a server that is going away wants to see us again."""
        self.core = LinkCore(self._queue, lambda: self.has_unsent)

    def handshake(self, api_key: str, deadline_s: float) -> None:
        """Say HELLO and wait for the answer.

        Raises:
            TimeoutError: it is ``deadline_s``.
            ClientError: the server refused, vanished or broke the protocol.
        """
        self.core.start(api_key)
        if not self.flush(deadline_s):
            raise TimeoutError
        while self.core.hello is None and self.core.error is None:
            if not self.receive(deadline_s):
                raise TimeoutError
        if self.core.error is not None:
            raise self.core.error.again()

    def flush(self, deadline_s: float | None = None) -> bool:
        """Send what is queued. Receives meanwhile if the server does not keep up with us.

        Returns:
            False if ``deadline_s``, on the monotonic clock, came first. The rest stays queued.
        """
        while not self.push():
            if not self.receive(deadline_s):
                return False
        return True

    def push(self) -> bool:
        """Send of what is queued as much as goes without waiting.

        Returns:
            Whether nothing is left.
        """
        try:
            while self.has_unsent and self._takes_bytes:
                if not self._half_sent:
                    self._half_sent = memoryview(b"".join(self._unsent))
                    self._unsent.clear()
                n_sent = self._socket.send(self._half_sent, socket.MSG_DONTWAIT)
                self._half_sent = self._half_sent[n_sent:]
        except BlockingIOError:
            return False
        except OSError as error:
            # else each Pong to what is read below would fail in the same way
            self._takes_bytes = False
            # what the server said before it closed is still there to read, and says more
            self.receive_pending()
            self._end(error)
        except BaseException:
            # nobody knows how much of a frame was sent: nothing can follow it
            self._end(None)
            raise
        return True

    @property
    def has_unsent(self) -> bool:
        """Whether something is queued."""
        return bool(self._half_sent or self._unsent)

    def receive(self, deadline_s: float | None) -> bool:
        """Wait until the server says something, takes what is queued, or has gone.

        Returns:
            False if ``deadline_s``, on the monotonic clock, came first.
        """
        core = self.core
        while core.error is None:
            timeout_s = core.ping_interval_s
            is_last = False
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                if not timeout_s or left_s < timeout_s:
                    timeout_s = max(left_s, SHORTEST_WAIT_S)
                    is_last = True
            if self.has_unsent:
                if self._wait_for_either(timeout_s):
                    self.receive_pending()
                    self.push()
                    break
                is_silent = True
            else:
                self._set_timeout(timeout_s)
                is_silent = not self._receive_some(0)
            if not is_silent:
                break
            if not is_last:
                core.silence()
                self.push()
                self._after()
        return True

    def receive_pending(self) -> None:
        """Take what has arrived, without waiting."""
        # a server that never stops talking must not keep us here
        stop_s = time.monotonic() + PENDING_S
        while self.core.error is None and self._receive_some(socket.MSG_DONTWAIT):
            if time.monotonic() >= stop_s:
                return

    def close(self, error: ClientError) -> None:
        """Close the socket, and end whatever is open with ``error``."""
        self.core.close(error)
        self._after()

    # --- inside ---------------------------------------------------------------------------

    def _receive_some(self, flags: int) -> bool:
        """Receive once. False if there was nothing, for as long as the socket waits."""
        try:
            n_bytes = self._socket.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(error)
            return True
        if n_bytes == 0:
            self._end(None)
            return True
        try:
            self._take(self._buffer[:n_bytes])
        except BaseException:
            # interrupted in the middle of a message: the rest would be misunderstood
            self._end(None)
            raise
        self._after()
        # a Pong that waited for the consumer would be late
        self.push()
        return True

    def _queue(self, frame: bytes) -> None:
        self._unsent.append(frame if self._tunnel is None else self._tunnel.wrap(frame))

    def _take(self, data: memoryview) -> None:
        tunnel = self._tunnel
        if tunnel is None:
            self.core.receive(data)
            return
        try:
            self.core.receive(tunnel.feed(bytes(data)))
        except WebSocketError as error:
            self.core.close(BadPeerError(str(error)))
            return
        if tunnel.replies:
            self._unsent.append(bytes(tunnel.replies))
            tunnel.replies.clear()
        if tunnel.is_over:
            self.core.end_of_stream()

    def _wait_for_either(self, timeout_s: float) -> bool:
        """Wait until something can be sent or received; 0 is for ever."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        timeout_ms = min(math.ceil(timeout_s * 1000), LONGEST_POLL_MS)
        return bool(poll.poll(timeout_ms or None))

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s == self._receive_timeout_s:
            return
        seconds = int(timeout_s)
        timeval = _TIMEVAL.pack(seconds, int((timeout_s - seconds) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._receive_timeout_s = timeout_s

    def _end(self, cause: OSError | None) -> None:
        self.core.end_of_stream(cause)
        self._after()

    def _after(self) -> None:
        core = self.core
        if core.going_away is not None and not self.not_before_s:
            self.not_before_s = time.monotonic() + core.going_away.retry_after_ms / 1000
        if core.is_drained:
            core.close(core.gone())
        if core.error is not None:
            self._socket.close()
            self._takes_bytes = False
            self._half_sent = _NOTHING
            self._unsent.clear()


def open_link(where: Reachable | socket.socket, *, api_key: str, timeout_s: float) -> Link:
    """Connect, or take over a connected socket, and shake hands.

    Raises:
        ConnectFailedError: nobody answers there.
        ConnectTimeoutError: not all of it was done within ``timeout_s``.
        ClientError: as ``Link.handshake``.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        sock = _connect(where, timeout_s)
    except TimeoutError as error:
        raise ConnectTimeoutError(timeout_s) from error
    except OSError as error:
        raise ConnectFailedError(f"{where}: {error.strerror or error}") from error
    try:
        sock.setblocking(True)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tunnel = None
        if isinstance(where, WebSocketAddress):
            tunnel = _upgraded(sock, where, api_key, deadline_s)
        link = Link(sock, tunnel)
        link.handshake(api_key, deadline_s)
    except TimeoutError as error:
        sock.close()
        raise ConnectTimeoutError(timeout_s) from error
    except (OSError, WebSocketError) as error:
        sock.close()
        raise ConnectFailedError(f"{where}: {error}") from error
    except BaseException:
        sock.close()
        raise
    return link


def _upgraded(
    sock: socket.socket, address: WebSocketAddress, api_key: str, deadline_s: float
) -> WebSocketTunnel:
    """Make a WebSocket of a connection.

    Raises:
        TimeoutError: it is ``deadline_s``.
        OSError, WebSocketError: the server does not.
    """
    tunnel = WebSocketTunnel(address, api_key)
    sock.settimeout(max(deadline_s - time.monotonic(), SHORTEST_WAIT_S))
    sock.sendall(tunnel.upgrade())
    while not tunnel.is_open:
        if time.monotonic() >= deadline_s:
            raise TimeoutError
        # one at a time: nothing of what follows may be taken
        data = sock.recv(1)
        if not data:
            raise WebSocketError("closed before the upgrade")
        tunnel.feed(data)
    sock.setblocking(True)
    return tunnel


def _connect(where: Reachable | socket.socket, timeout_s: float) -> socket.socket:
    if isinstance(where, socket.socket):
        return where
    if isinstance(where, WebSocketAddress) and where.is_encrypted:
        raise InvalidParameterError(
            "the blocking client has no TLS: use wkvm_client.aio", field="address"
        )
    if isinstance(where, TcpAddress | WebSocketAddress):
        return socket.create_connection((where.host, where.port), timeout_s)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(where.path)
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return sock
