"""The exceptions that concern the connection: leaves of the tree in ``wkvm_client.errors``."""

from wkvm_protocol.errors import ErrorCode

from wkvm_client.error_branches import LinkError


class ConnectFailedError(LinkError):
    """No connection could be made."""

    default_retryable = True


class ConnectionLostError(LinkError):
    """The connection ended before the answer did. Ids may have been produced and paid for."""

    default_retryable = True


class GoingAwayError(LinkError):
    """The server takes no new lanes on this connection, and another one was not to be had."""

    default_retryable = True


class ClientClosedError(LinkError):
    """This client was closed."""


class PlaintextKeyError(LinkError):
    """A key would have crossed the network in the clear. Nothing was sent."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"an API key for {host} would be readable on the way: use a tunnel or a unix socket, "
            "or pass allow_plaintext_key=True"
        )
        self.host = host


class BadPeerError(LinkError):
    """The server sent something illegal, and the connection was closed."""


class HandshakeRefusedError(LinkError):
    """The server answered HELLO with an error."""


class UnauthenticatedError(HandshakeRefusedError):
    """There was no key, or it is not one of the server's."""

    default_code = ErrorCode.UNAUTHENTICATED


class UnsupportedVersionError(HandshakeRefusedError):
    """Client and server have no protocol version in common."""

    default_code = ErrorCode.UNSUPPORTED_VERSION


class AuthTimeoutError(HandshakeRefusedError):
    """HELLO came too late."""

    default_code = ErrorCode.AUTH_TIMEOUT


class TooManyConnectionsError(HandshakeRefusedError):
    """The server has as many connections as it takes."""

    default_code = ErrorCode.TOO_MANY_CONNECTIONS
    default_retryable = True


class DisconnectedError(LinkError):
    """The server said why it closes the connection."""


class ProtocolViolationError(DisconnectedError):
    """The server found our bytes illegal."""

    default_code = ErrorCode.PROTOCOL_VIOLATION


class FrameTooLargeError(DisconnectedError):
    """One of our frames exceeded the server's limit."""

    default_code = ErrorCode.FRAME_TOO_LARGE


class FrameTimeoutError(DisconnectedError):
    """One of our frames arrived too slowly."""

    default_code = ErrorCode.FRAME_TIMEOUT


class IdleTimeoutError(DisconnectedError):
    """The server heard nothing from us for too long."""

    default_code = ErrorCode.IDLE_TIMEOUT


class SlowConsumerError(DisconnectedError):
    """We read too slowly."""

    default_code = ErrorCode.SLOW_CONSUMER
