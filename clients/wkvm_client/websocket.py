"""The client's side of a WebSocket (RFC 6455), without I/O: a stream of frames in messages.

What a connection writes is cut into frames of the protocol, and each payload becomes one binary
message; each binary message that comes becomes a frame again. So whoever drives a connection over
a socket can drive it over a WebSocket.
"""

import base64
import hashlib
import os
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from wkvm_protocol.framing import HEADER_BYTES
from wkvm_protocol.messages import MAX_FRAME_BYTES

PROTOCOL = "wkvm.v1"
KEY_PROTOCOL = "wkvm.key."
DEFAULT_PATH = "/v1/ws"
MAX_ANSWER_BYTES = 16 * 1024
"""Of the answer to the upgrade."""
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FINAL, _MASKED = 0x80, 0x80
_MAX_CONTROL_BYTES = 125


class WebSocketError(Exception):
    """The server refused the upgrade, or broke the rules of WebSocket."""


@dataclass(frozen=True, slots=True)
class WebSocketAddress:
    """Where a server takes WebSockets. ``str()`` gives the text form back."""

    host: str
    port: int
    path: str
    is_encrypted: bool

    def __str__(self) -> str:
        scheme = "wss" if self.is_encrypted else "ws"
        return f"{scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """Host and port, as HTTP has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_websocket_address(text: str) -> WebSocketAddress:
    """Read ``ws://HOST[:PORT][/PATH]`` or ``wss://...``.

    Raises:
        ValueError: it is none of these.
    """
    parts = urlsplit(text)
    path = parts.path if parts.path not in ("", "/") else DEFAULT_PATH
    is_plain = path.isascii() and path.isprintable() and " " not in path
    if parts.scheme not in ("ws", "wss") or not parts.hostname or not is_plain:
        raise ValueError(f"{text!r} is not an address like ws://HOST:PORT/v1/ws")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{text!r}: a host, a port and a path are expected, and nothing else")
    is_encrypted = parts.scheme == "wss"
    port = parts.port if parts.port is not None else (443 if is_encrypted else 80)
    return WebSocketAddress(parts.hostname, port, path, is_encrypted)


class WebSocketTunnel:
    """One WebSocket, from the upgrade to its end.

    Args:
        api_key: for the upgrade, which a server with keys does not make without one; it comes as
            a subprotocol, in which it may hold any character.

    Attributes:
        replies: bytes to send that nobody asked for: answers to pings and to a close.
        is_open: whether the server has taken the upgrade.
        is_over: whether a close came; nothing comes after it.
    """

    def __init__(self, address: WebSocketAddress, api_key: str = "") -> None:
        self._address = address
        self._offered = [PROTOCOL]
        if api_key:
            key = (
                base64.urlsafe_b64encode(api_key.encode("utf-8", "surrogatepass"))
                .decode()
                .rstrip("=")
            )
            self._offered.append(f"{KEY_PROTOCOL}{key}")
        self._key = base64.b64encode(secrets.token_bytes(16))
        self._received = bytearray()
        self._written = bytearray()
        self._message = bytearray()
        self._is_in_message = False
        self.replies = bytearray()
        self.is_open = False
        self.is_over = False

    def upgrade(self) -> bytes:
        """The request to send first."""
        lines = (
            f"GET {self._address.path} HTTP/1.1",
            f"Host: {self._address.authority}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key.decode()}",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {', '.join(self._offered)}",
        )
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def wrap(self, data: bytes) -> bytes:
        """Bytes of the stream of frames as messages, as far as frames are whole."""
        written, sent = self._written, bytearray()
        written += data
        while len(written) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(written[:HEADER_BYTES], "little")
            if len(written) < end:
                break
            sent += _framed(_BINARY, bytes(written[HEADER_BYTES:end]))
            del written[:end]
        return bytes(sent)

    def feed(self, data: bytes) -> bytes:
        """Take what the server sent; returns what of the stream of frames that completes.

        Raises:
            WebSocketError: the server refused the upgrade, or broke a rule.
        """
        self._received += data
        if not self.is_open and not self._take_answer():
            return b""
        stream = bytearray()
        while not self.is_over and (part := self._next_part()) is not None:
            opcode, is_final, payload = part
            self._take(opcode, is_final, payload, stream)
        return bytes(stream)

    # --- inside ---------------------------------------------------------------------------

    def _take_answer(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > MAX_ANSWER_BYTES:
                raise WebSocketError("the answer to the upgrade has no end")
            return False
        head = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        del self._received[: end + 4]
        status = head[0].split(" ", 2)
        if len(status) < 2 or status[0] != "HTTP/1.1" or status[1] != "101":
            raise WebSocketError(f"the upgrade was refused: {head[0][:100]!r}")
        fields = dict[str, str]()
        for line in head[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        accept = base64.b64encode(hashlib.sha1(self._key + _GUID, usedforsecurity=False).digest())
        if fields.get("sec-websocket-accept") != accept.decode():
            raise WebSocketError("the server's answer is not to this upgrade")
        if fields.get("sec-websocket-protocol") != PROTOCOL:
            raise WebSocketError(f"the server does not speak {PROTOCOL}")
        if fields.get("sec-websocket-extensions"):
            raise WebSocketError("the server uses an extension that was not offered")
        self.is_open = True
        return True

    def _next_part(self) -> tuple[int, bool, bytes] | None:
        received = self._received
        if len(received) < 2:
            return None
        first, second = received[0], received[1]
        if first & 0x70 or second & _MASKED:
            raise WebSocketError("a frame with reserved bits, or masked")
        length, start = second & 0x7F, 2
        if length >= 126:
            n_bytes = 2 if length == 126 else 8
            if len(received) < 2 + n_bytes:
                return None
            start = 2 + n_bytes
            length = int.from_bytes(received[2:start], "big")
        is_control = first & 0x08
        if length > (_MAX_CONTROL_BYTES if is_control else MAX_FRAME_BYTES):
            raise WebSocketError(f"a frame of {length} bytes")
        if is_control and not first & _FINAL:
            raise WebSocketError("a control frame in pieces")
        if len(received) < start + length:
            return None
        payload = bytes(received[start : start + length])
        del received[: start + length]
        return first & 0x0F, bool(first & _FINAL), payload

    def _take(self, opcode: int, is_final: bool, payload: bytes, stream: bytearray) -> None:
        match opcode:
            case 0x0 | 0x2:
                if (opcode == _CONTINUED) != self._is_in_message:
                    raise WebSocketError("a message begins within another, or none goes on")
                self._message += payload
                self._is_in_message = not is_final
                if len(self._message) > MAX_FRAME_BYTES:
                    raise WebSocketError(f"a message of more than {MAX_FRAME_BYTES} bytes")
                if is_final:
                    stream += len(self._message).to_bytes(HEADER_BYTES, "little") + self._message
                    self._message.clear()
            case 0x9:
                self.replies += _framed(_PONG, payload)
            case 0xA:
                pass
            case 0x8:
                self.is_over = True
                self.replies += _framed(_CLOSE, payload[:2])
            case _:
                raise WebSocketError(f"a frame of kind {opcode}, where messages are binary")


def close_frame() -> bytes:
    """What to send before leaving: there is nothing wrong."""
    return _framed(_CLOSE, (1000).to_bytes(2, "big"))


def _framed(opcode: int, payload: bytes) -> bytes:
    """One frame of a client: masked."""
    length = len(payload)
    if length < 126:
        head = bytes((_FINAL | opcode, _MASKED | length))
    elif length < 2**16:
        head = bytes((_FINAL | opcode, _MASKED | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, _MASKED | 127)) + length.to_bytes(8, "big")
    mask = os.urandom(4)
    pattern = (mask * (length // 4 + 1))[:length]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")
    return head + mask + masked.to_bytes(length, "big")
