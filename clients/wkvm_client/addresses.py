"""Where to connect, and whether a key may go there."""

import ipaddress

from wkvm_protocol.address import Address, TcpAddress, parse_address

from wkvm_client.errors import InvalidParameterError, PlaintextKeyError


def resolve(address: str | Address, *, api_key: str | None, allow_plaintext_key: bool) -> Address:
    """Read an address, and make sure that a key would not cross a network in the clear.

    Raises:
        InvalidParameterError: it is not an address.
        PlaintextKeyError: there is a key, the address is TCP and beyond loopback, and
            ``allow_plaintext_key`` is not set.
    """
    try:
        parsed = parse_address(address) if isinstance(address, str) else address
    except ValueError as error:
        raise InvalidParameterError(str(error), field="address") from None
    if (
        api_key
        and not allow_plaintext_key
        and isinstance(parsed, TcpAddress)
        and not is_loopback(parsed.host)
    ):
        raise PlaintextKeyError(parsed.host)
    return parsed


def is_loopback(host: str) -> bool:
    """Whether what is sent to a host stays on this machine. Names other than localhost do not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
