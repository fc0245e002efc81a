"""What a supervisor is told, by the protocol of systemd's ``sd_notify``: one datagram a message.

Nothing is told where nobody asked for it; and nobody who does not listen holds this process up.
"""

import contextlib
import os
import socket

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
PID_VARIABLE = "WATCHDOG_PID"


class Notifier:
    """Tells a supervisor how this process is. May be used from any thread; never raises.

    Args:
        address: of the supervisor's socket, a path or ``@`` and an abstract name; None for nobody.
        watchdog_s: how long the supervisor waits for a sign of life; None if it does not.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s

    @staticmethod
    def of_environment() -> "Notifier":
        """The supervisor that the environment names, for this process alone.

        The variables are removed, so that no child speaks in our name.
        """
        address = os.environ.pop(SOCKET_VARIABLE, "")
        interval = os.environ.pop(WATCHDOG_VARIABLE, "")
        pid = os.environ.pop(PID_VARIABLE, "")
        is_ours = not pid or pid == str(os.getpid())
        watchdog_s = int(interval) / 1e6 if is_ours and interval.isdecimal() else None
        return Notifier(address if address[:1] in ("/", "@") else None, watchdog_s or None)

    def ready(self) -> None:
        """Clients can connect."""
        self._tell("READY=1", "STATUS=serving")

    def stopping(self) -> None:
        """The drain has begun."""
        self._tell("STOPPING=1", "STATUS=draining")

    def failing(self) -> None:
        """The process ends because it cannot go on."""
        self._tell("STOPPING=1", "STATUS=the engine failed")

    def alive(self) -> None:
        """A sign of life."""
        if self.watchdog_s is not None:
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        address = self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send("\n".join(lines).encode())
