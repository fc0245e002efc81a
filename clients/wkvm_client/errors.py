"""The exceptions of the clients. Raise the leaf, catch the branch.

ClientError                  code, retryable, field, retry_after_ms
├── LinkError                the connection is at fault; every lane on it has ended
│   ├── ConnectFailedError       nobody answers at the address
│   ├── ConnectionLostError      the connection ended before the answer did
│   ├── GoingAwayError           the server takes no new lanes on this connection
│   ├── ClientClosedError        this client was closed
│   ├── PlaintextKeyError        a key would have crossed the network in the clear
│   ├── BadPeerError             the server sent something illegal
│   ├── HandshakeRefusedError    the server answered HELLO with an error
│   │   ├── UnauthenticatedError     no key, or a wrong one
│   │   ├── UnsupportedVersionError  no protocol version in common
│   │   ├── AuthTimeoutError         HELLO came too late
│   │   └── TooManyConnectionsError  the server has as many as it takes
│   └── DisconnectedError        the server said why it closes the connection
│       ├── ProtocolViolationError   it found our bytes illegal
│       ├── FrameTooLargeError       one of our frames was too large
│       ├── FrameTimeoutError        one of our frames arrived too slowly
│       ├── IdleTimeoutError         it heard nothing for too long
│       └── SlowConsumerError        we read too slowly
├── RequestError             the request is wrong; sending it again will not help
│   ├── InvalidParameterError    a field has a value that is not allowed
│   ├── TokenOutOfRangeError     an id that the vocabulary does not have
│   ├── EmptyPromptError         no ids to start from
│   ├── PromptTooLongError       more ids than the server takes
│   ├── RequestTooLargeError     more bytes than fit a frame; nothing was sent
│   └── UnsupportedOperationError    not something that this server does
├── CapacityError            no room now; the same request may succeed later
│   ├── OutOfSlotsError          fewer slots are free than were asked for
│   ├── QueueFullError           the server's waiting line is full
│   ├── TooManyLanesError        as many lanes are open as the connection may have
│   └── DrainingError            the server finishes what it has
├── ExecutionError           the request was good and could not be carried out
│   ├── InternalError            a bug of the server
│   ├── NonFiniteError           the logits held NaN or infinity
│   ├── StalledError             no credit was granted for too long
│   └── StepFailedError          the forward pass raised
├── DeadlineError            the server did not answer in time
│   ├── ConnectTimeoutError      while connecting
│   ├── RequestTimeoutError      until a request's deadline and the grace after it
│   └── ReplyTimeoutError        while a ping or a question for counters was open
└── UnknownServerError       a code that this client does not know
"""

from typing import ClassVar, Self

from wkvm_protocol.errors import ErrorCode


class ClientError(Exception):
    """Base of all errors that the clients raise on purpose.

    Attributes:
        code: the number that the server gave, or would have given; None where the
            server has no part in it.
        retryable: whether the same request may succeed later, or elsewhere. After a
            lost connection this does not say that nothing was done.
        field: the field of the request that is at fault, where one is.
        retry_after_ms: how long the server asks to wait; 0 where it did not ask.
    """

    default_code: ClassVar[ErrorCode | None] = None
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        retryable: bool | None = None,
        field: str = "",
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.code: int | None = self.default_code if code is None else code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.field = field
        self.retry_after_ms = retry_after_ms

    def again(self) -> Self:
        """A copy to raise: each consumer's traceback is its own."""
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        twin.__cause__ = self.__cause__
        return twin


# --- the connection -----------------------------------------------------------------------


class LinkError(ClientError):
    """The connection is at fault. Every lane on it has ended."""


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


# --- the request --------------------------------------------------------------------------


class RequestError(ClientError):
    """The request is wrong. Sending it again will not help."""


class InvalidParameterError(RequestError):
    """A field has a value that is not allowed."""

    default_code = ErrorCode.INVALID_PARAMETER


class TokenOutOfRangeError(RequestError):
    """A field names an id that the vocabulary does not have."""

    default_code = ErrorCode.TOKEN_OUT_OF_RANGE


class EmptyPromptError(RequestError):
    """There is no id to start from."""

    default_code = ErrorCode.EMPTY_PROMPT


class PromptTooLongError(RequestError):
    """The prompt, or prompt and max_tokens together, exceed the server's limit."""

    default_code = ErrorCode.PROMPT_TOO_LONG


class RequestTooLargeError(RequestError):
    """The request does not fit a frame. Nothing was sent."""

    def __init__(self, n_bytes: int, limit: int) -> None:
        super().__init__(f"the request takes {n_bytes} bytes, the server's limit is {limit}")
        self.n_bytes = n_bytes
        self.limit = limit


class UnsupportedOperationError(RequestError):
    """The server does not do this."""

    default_code = ErrorCode.UNSUPPORTED_OPERATION


# --- capacity -----------------------------------------------------------------------------


class CapacityError(ClientError):
    """No room now. The request was good; the same one may succeed later."""

    default_retryable = True


class OutOfSlotsError(CapacityError):
    """Fewer slots are free than were asked for."""

    default_code = ErrorCode.OUT_OF_SLOTS


class QueueFullError(CapacityError):
    """As many requests wait as may."""

    default_code = ErrorCode.QUEUE_FULL


class TooManyLanesError(CapacityError):
    """As many lanes are open as the connection may have."""

    default_code = ErrorCode.TOO_MANY_LANES


class DrainingError(CapacityError):
    """The server finishes what it has and takes nothing new."""

    default_code = ErrorCode.DRAINING


# --- execution ----------------------------------------------------------------------------


class ExecutionError(ClientError):
    """The request was good, and carrying it out failed."""


class InternalError(ExecutionError):
    """A bug of the server. Its log has the cause."""

    default_code = ErrorCode.INTERNAL


class NonFiniteError(ExecutionError):
    """The logits held NaN or infinity."""

    default_code = ErrorCode.NON_FINITE


class StalledError(ExecutionError):
    """No credit was granted for longer than a lane may hold its slot."""

    default_code = ErrorCode.STALLED


class StepFailedError(ExecutionError):
    """The forward pass raised."""

    default_code = ErrorCode.STEP_FAILED
    default_retryable = True


# --- time ---------------------------------------------------------------------------------


class DeadlineError(ClientError):
    """The server did not answer in time."""

    default_retryable = True

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")
        self.timeout_s = timeout_s


class ConnectTimeoutError(DeadlineError):
    """Connecting, HELLO included, took too long."""


class RequestTimeoutError(DeadlineError):
    """Neither the end of a request nor word of its time-out came in time. It was cancelled."""


class ReplyTimeoutError(DeadlineError):
    """A ping, or a question for counters, was not answered in time."""


class UnknownServerError(ClientError):
    """The server gave a code that this client does not know."""


BY_CODE: dict[ErrorCode, type[ClientError]] = {
    ErrorCode.PROTOCOL_VIOLATION: ProtocolViolationError,
    ErrorCode.FRAME_TOO_LARGE: FrameTooLargeError,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedVersionError,
    ErrorCode.UNAUTHENTICATED: UnauthenticatedError,
    ErrorCode.AUTH_TIMEOUT: AuthTimeoutError,
    ErrorCode.FRAME_TIMEOUT: FrameTimeoutError,
    ErrorCode.IDLE_TIMEOUT: IdleTimeoutError,
    ErrorCode.SLOW_CONSUMER: SlowConsumerError,
    ErrorCode.TOO_MANY_CONNECTIONS: TooManyConnectionsError,
    ErrorCode.INVALID_PARAMETER: InvalidParameterError,
    ErrorCode.TOKEN_OUT_OF_RANGE: TokenOutOfRangeError,
    ErrorCode.EMPTY_PROMPT: EmptyPromptError,
    ErrorCode.PROMPT_TOO_LONG: PromptTooLongError,
    ErrorCode.UNSUPPORTED_OPERATION: UnsupportedOperationError,
    ErrorCode.OUT_OF_SLOTS: OutOfSlotsError,
    ErrorCode.QUEUE_FULL: QueueFullError,
    ErrorCode.TOO_MANY_LANES: TooManyLanesError,
    ErrorCode.DRAINING: DrainingError,
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.NON_FINITE: NonFiniteError,
    ErrorCode.STALLED: StalledError,
    ErrorCode.STEP_FAILED: StepFailedError,
}
"""Which exception stands for which code. Total; no class stands for two."""


def error_of(
    code: int, message: str, *, retryable: bool, field: str = "", retry_after_ms: int = 0
) -> ClientError:
    """The exception for what a server said. Codes of later servers make an UnknownServerError.

    The server's word on ``retryable`` counts, not the table's.
    """
    try:
        leaf = BY_CODE[ErrorCode(code)]
    except ValueError:
        leaf = UnknownServerError
    return leaf(message, code=code, retryable=retryable, field=field, retry_after_ms=retry_after_ms)
