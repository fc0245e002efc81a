"""Where to connect, and whether a key may go there."""

import ipaddress
from typing import TypeAlias

from wkvm_protocol.address import Address, TcpAddress, parse_address

from wkvm_client.errors import InvalidParameterError, PlaintextKeyError
from wkvm_client.websocket import WebSocketAddress, parse_websocket_address

Reachable: TypeAlias = Address | WebSocketAddress
"""What a client can connect to."""


def resolve(
    address: str | Reachable, *, api_key: str | None, allow_plaintext_key: bool
) -> Reachable:
    """Read an address, and make sure that a key would not cross a network in the clear.

    Raises:
        InvalidParameterError: it is not an address.
        PlaintextKeyError: there is a key, the address is TCP and beyond loopback, and
            ``allow_plaintext_key`` is not set.
    """
    try:
        parsed = _parsed(address) if isinstance(address, str) else address
    except ValueError as error:
        raise InvalidParameterError(str(error), field="address") from None
    match parsed:
        case TcpAddress(host=host) | WebSocketAddress(host=host, is_encrypted=False):
            if api_key and not allow_plaintext_key and not is_loopback(host):
                raise PlaintextKeyError(host)
        case _:
            pass
    return parsed


def _parsed(text: str) -> Reachable:
    if text.startswith(("ws:", "wss:")):
        return parse_websocket_address(text)
    return parse_address(text)


def is_loopback(host: str) -> bool:
    """Whether what is sent to a host stays on this machine. Names other than localhost do not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
