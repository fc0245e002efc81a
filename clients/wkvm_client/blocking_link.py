"""The blocking side of one connection: a plain socket, one system call to send and one to receive.

Time-outs are the kernel's (SO_RCVTIMEO): a Python socket with a timeout polls before
every read, which would double the system calls.
"""

import contextlib
import select
import socket
import struct
import time

from wkvm_protocol.address import Address, TcpAddress

from wkvm_client.errors import ClientError, ConnectFailedError, ConnectTimeoutError
from wkvm_client.session import MAX_MISSES, Session

READ_BYTES = 64 * 1024
_TIMEVAL = struct.Struct("@ll")
SHORTEST_WAIT_S = 1e-3


class Link:
    """One connection of a client.

    Frames that the session writes are queued; ``flush`` sends them, several in one call.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._unsent: list[bytes] = []
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._receive_timeout_s = 0.0
        self._flushing = False
        self.not_before_s = 0.0
        """When a server that is going away wants to see us again."""
        self.session = Session(self._unsent.append)

    def handshake(self, api_key: str, deadline_s: float) -> None:
        """Say HELLO and wait for the answer.

        Raises:
            TimeoutError: it is ``deadline_s``.
            ClientError: the server refused, vanished or broke the protocol.
        """
        self.session.start(api_key)
        self.flush()
        while self.session.hello is None and self.session.error is None:
            if not self.receive(deadline_s):
                raise TimeoutError
        if self.session.error is not None:
            raise self.session.error.again()

    def flush(self) -> None:
        """Send what is queued. Receives meanwhile if the server does not keep up with us."""
        if self._flushing or not self._unsent:
            return
        # what is queued while a frame is half sent must not get into its middle
        self._flushing = True
        try:
            while self._unsent:
                data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
                self._unsent.clear()
                self._send(data)
        finally:
            self._flushing = False

    def receive(self, deadline_s: float | None) -> bool:
        """Wait until the server says something, or until the connection has ended.

        Returns:
            False if ``deadline_s``, on the monotonic clock, came first.
        """
        session = self.session
        while session.error is None:
            timeout_s = session.ping_interval_s
            is_last = False
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                if not timeout_s or left_s < timeout_s:
                    timeout_s = max(left_s, SHORTEST_WAIT_S)
                    is_last = True
            self._set_timeout(timeout_s)
            try:
                n_bytes = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                if not is_last:
                    session.silence()
                    self.flush()
                    self._after()
                continue
            except OSError as error:
                self._end(error)
                break
            self._received(n_bytes)
            break
        return True

    def receive_pending(self) -> None:
        """Take what has arrived, without waiting."""
        while self.session.error is None:
            try:
                n_bytes = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(error)
                return
            self._received(n_bytes)

    def close(self, error: ClientError) -> None:
        """Close the socket, and end whatever is open with ``error``."""
        self.session.close(error)
        self._socket.close()

    # --- inside ---------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        if self.session.error is not None:
            return
        try:
            n_sent = self._send_some(data)
            while n_sent < len(data):
                self._wait_for_room()
                self.receive_pending()
                if self.session.error is not None:
                    return
                n_sent += self._send_some(memoryview(data)[n_sent:])
        except OSError as error:
            # what the server said before it closed is still there to read, and says more
            self.receive_pending()
            self._end(error)
        except BaseException:
            # a frame may be half sent: nothing can follow it
            self._end(None)
            raise

    def _wait_for_room(self) -> None:
        """Wait until something can be sent, or received first.

        Raises:
            OSError: neither was possible for as long as unanswered pings may take.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        patience_s = self.session.ping_interval_s * (MAX_MISSES + 1)
        if not poll.poll(patience_s * 1000 or None):
            raise OSError(f"the server took nothing for {patience_s:g} s")

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s == self._receive_timeout_s:
            return
        seconds = int(timeout_s)
        timeval = _TIMEVAL.pack(seconds, int((timeout_s - seconds) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._receive_timeout_s = timeout_s

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _received(self, n_bytes: int) -> None:
        if n_bytes == 0:
            self._end(None)
            return
        self.session.receive(self._buffer[:n_bytes])
        self._after()
        # a Pong that waited for the consumer would be late
        self.flush()

    def _end(self, cause: OSError | None) -> None:
        self.session.end_of_stream(cause)
        self._after()

    def _after(self) -> None:
        session = self.session
        if session.going_away is not None and not self.not_before_s:
            self.not_before_s = time.monotonic() + session.going_away.retry_after_ms / 1000
        if session.is_drained:
            session.close(session.gone())
        if session.error is not None:
            self._socket.close()


def open_link(where: Address | socket.socket, *, api_key: str, timeout_s: float) -> Link:
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
        link = Link(sock)
        link.handshake(api_key, deadline_s)
    except TimeoutError as error:
        sock.close()
        raise ConnectTimeoutError(timeout_s) from error
    except BaseException:
        sock.close()
        raise
    return link


def _connect(where: Address | socket.socket, timeout_s: float) -> socket.socket:
    if isinstance(where, socket.socket):
        return where
    if isinstance(where, TcpAddress):
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
