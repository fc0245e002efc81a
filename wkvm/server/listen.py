"""Sockets to listen on: bound, or a ConfigError that says which setting is at fault."""

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wkvm.core.config import ServerConfig, is_loopback
from wkvm.core.errors import ConfigError

BACKLOG = 1024
"""Connections that the kernel takes before the server does."""
LOCK_PATIENCE_S = 2.0
"""How long another server may take to make its socket in the same folder."""


def bind_tcp(
    host: str,
    port: int,
    *,
    loopback_only: bool,
    setting: str = "binary-port",
    is_shared: bool = False,
) -> list[socket.socket]:
    """Bind every address that a host name stands for, all to the same port.

    Args:
        port: 0 takes a free one.
        loopback_only: refuse a name that stands for an address of another kind.
        setting: that names the port.
        is_shared: whether other sockets of this user may be bound to the same port in the same
            way; the kernel then spreads connections over them.

    Raises:
        ConfigError: the host is unknown or not allowed, or the port cannot be had.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError("host", f"{host!r} cannot be resolved: {error.strerror}") from error
    sockets = list[socket.socket]()
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            if loopback_only and not is_loopback(str(address[0])):
                raise ConfigError("host", f"{host!r} is not loopback: give a key")
            if sockets and not port:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sockets.append(_bind_one(family, address, setting, is_shared=is_shared))
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return sockets


def _bind_one(
    family: int, address: tuple[object, ...], setting: str, *, is_shared: bool
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("host", f"{address[0]} is no address of this machine") from error
        raise ConfigError(setting, f"{address[1]}: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


class UnixSocket:
    """A unix socket that listens, and its file, for this user alone.

    Args:
        setting: that names the path.

    Raises:
        ConfigError: another server listens there, the file is not a socket, or it cannot
            be made. A socket file that nobody listens on is replaced.
    """

    def __init__(self, path: str, *, setting: str = "binary-uds") -> None:
        self._setting = setting
        self.path = str(Path(path).absolute())
        # Bound and not yet listening, a socket looks like one that was left behind.
        with _alone_in(os.path.dirname(self.path)):
            self._listen(path)

    def _listen(self, path: str) -> None:
        _clear(self.path, self._setting)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # the mode has to be right from the first moment on: there is no later chmod
            old_umask = os.umask(0o177)
            try:
                self.socket.bind(self.path)
            finally:
                os.umask(old_umask)
            self.socket.listen(BACKLOG)
        except OSError as error:
            self.socket.close()
            raise ConfigError(self._setting, f"{path}: {error.strerror or error}") from error
        self.socket.setblocking(False)
        self._identity = _identity(self.path)

    def remove(self) -> None:
        """Remove the file, unless another has taken its place."""
        if self._identity is not None and _identity(self.path) == self._identity:
            os.unlink(self.path)
        self._identity = None


@contextmanager
def _alone_in(folder: str) -> Generator[None]:
    """Keep other servers from making sockets in a folder meanwhile.

    It is a courtesy among servers: whoever holds the lock for too long is not waited for, and
    where there is no folder to lock, making the socket says so.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        patience = time.monotonic() + LOCK_PATIENCE_S
        while time.monotonic() < patience:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _clear(path: str, setting: str) -> None:
    """Remove a socket file that nobody listens on."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(setting, f"{path}: {error.strerror or error}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(setting, f"{path}: there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as error:
            raise ConfigError(setting, f"{path}: {error.strerror or error}") from error
        else:
            raise ConfigError(setting, f"{path}: another server listens there")


@dataclass(frozen=True, slots=True)
class Listening:
    """Sockets that were bound together."""

    tcp: tuple[socket.socket, ...]
    unix: UnixSocket | None

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """All of them, TCP first."""
        return self.tcp if self.unix is None else (*self.tcp, self.unix.socket)

    def close(self) -> None:
        """Let go of everything that was bound."""
        if self.unix is not None:
            # Removed first: the path of a closed socket may be another server's already.
            self.unix.remove()
        for one in self.sockets:
            one.close()


def bind(
    host: str,
    port: int | None,
    uds: str | None,
    *,
    loopback_only: bool,
    settings: tuple[str, str] = ("binary-port", "binary-uds"),
) -> Listening:
    """Bind TCP, a unix socket or both: all of it, or nothing.

    Args:
        port: 0 takes a free one, None binds no TCP.
        uds: path of the unix socket; None binds none.
        loopback_only: as for ``bind_tcp``.
        settings: that name the port and the path.

    Raises:
        ConfigError: something of it cannot be had.
    """
    port_setting, uds_setting = settings
    tcp = tuple[socket.socket, ...]()
    if port is not None:
        tcp = tuple(bind_tcp(host, port, loopback_only=loopback_only, setting=port_setting))
    try:
        unix = None if uds is None else UnixSocket(uds, setting=uds_setting)
    except BaseException:
        for one in tcp:
            one.close()
        raise
    return Listening(tcp, unix)


def listen(config: ServerConfig) -> Listening:
    """Bind what the settings name: all of it, or nothing.

    Raises:
        ConfigError: something of it cannot be had.
    """
    return bind(
        config.host, config.binary_port, config.binary_uds, loopback_only=not config.api_keys
    )


def check_addresses(config: ServerConfig) -> None:
    """Bind what the settings name and let go of it: what takes long need not be done in vain.

    Nothing is kept meanwhile, so that clients are refused and not left waiting.

    Raises:
        ConfigError: as ``listen``, now.
    """
    listen(config).close()
