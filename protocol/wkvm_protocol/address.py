"""Where a server listens, as text and as a value. No sockets here.

``tcp://HOST:PORT``, with an IPv6 host in brackets, or ``unix:///ABSOLUTE/PATH``.
"""

from dataclasses import dataclass
from typing import TypeAlias

MAX_UNIX_PATH_BYTES = 107
"""What a socket address of Linux holds."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP address. ``str()`` gives the text form back."""

    host: str
    """A name, or an IPv4 or IPv6 address without brackets."""
    port: int
    """0 to 65535; a listener takes 0 as any free one."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket. ``str()`` gives the text form back."""

    path: str
    """Absolute."""

    def __str__(self) -> str:
        return f"unix://{self.path}"


Address: TypeAlias = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Read ``tcp://HOST:PORT``, ``tcp://[::1]:PORT``, ``unix:///PATH`` or ``unix:/PATH``.

    Raises:
        ValueError: it is none of these. The message says what is wrong.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "tcp" and rest.startswith("//"):
        return _tcp(text, rest[2:])
    if colon and scheme == "unix":
        return _unix(text, rest.removeprefix("//"))
    raise ValueError(f"{text!r} is not an address: tcp://HOST:PORT or unix:///PATH is expected")


def _tcp(text: str, rest: str) -> TcpAddress:
    host, colon, port = rest.rpartition(":")
    if not colon or host.endswith(":"):
        raise ValueError(f"{text!r} names no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(f"{text!r}: brackets are for IPv6 addresses")
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address goes in brackets, tcp://[::1]:PORT")
    if not host:
        raise ValueError(f"{text!r} names no host")
    if any(c in "[]/@?#" or c.isspace() for c in host) or not host.isprintable():
        raise ValueError(f"{text!r}: {host!r} is not a host")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"{text!r}: {port!r} is not a port, 0 to 65535")
    return TcpAddress(host, int(port))


def _unix(text: str, path: str) -> UnixAddress:
    if not path.startswith("/"):
        raise ValueError(f"{text!r}: an absolute path is expected, unix:///PATH")
    if path.endswith("/"):
        raise ValueError(f"{text!r} names no file")
    if "\0" in path:
        raise ValueError(f"{text!r}: a path holds no NUL")
    n_bytes = len(path.encode("utf-8", "surrogateescape"))
    if n_bytes > MAX_UNIX_PATH_BYTES:
        raise ValueError(
            f"{text!r}: a path of {n_bytes} bytes; a unix socket takes {MAX_UNIX_PATH_BYTES}"
        )
    return UnixAddress(path)
