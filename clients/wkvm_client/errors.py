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
│   ├── UnsupportedOperationError    not something that this server does
│   ├── OperationCancelledError  it was cancelled before it was done
│   ├── StateNotFoundError       no such state, or an expired one
│   ├── StateExistsError         the name is taken
│   ├── StaleVersionError        the state has moved on from the expected version
│   ├── StateMismatchError       a state of another model or layout
│   ├── BadStateFileError        bytes that are no state, or not a whole one
│   ├── StateNotFiniteError      the state would hold NaN or infinity
│   ├── KeyReusedError           an idempotency key that stands for another operation
│   └── StateMovedError          the state is at another server now
├── CapacityError            no room now; the same request may succeed later
│   ├── OutOfSlotsError          fewer slots are free than were asked for
│   ├── QueueFullError           the server's waiting line is full
│   ├── TooManyLanesError        as many lanes are open as the connection may have
│   ├── DrainingError            the server finishes what it has
│   ├── OverloadedError          more is asked of the server than it can do in time, or keep
│   ├── RateLimitedError         a tenant does something more often than it may
│   ├── StepMemoryError          the server's device had no memory for a step
│   ├── QuotaError               a tenant has as much as it may have
│   ├── StoreFullError           the server's disk has no room
│   └── HostTierFullError        its memory holds states that are nowhere else
├── ExecutionError           the request was good and could not be carried out
│   ├── InternalError            a bug of the server
│   ├── NonFiniteError           the logits held NaN or infinity
│   ├── StalledError             no credit was granted for too long
│   ├── StepFailedError          the forward pass raised
│   ├── EngineFailedError        the server's engine cannot go on
│   ├── MutationFailedError      a mutation raised
│   ├── StateDamagedError        the bytes of a state are not those that were kept
│   ├── StoreFailedError         the store of states could not be read or written
│   └── RequestOverError         it ended before there was a state to keep
├── DeadlineError            the server did not answer in time
│   ├── ConnectTimeoutError      while connecting
│   ├── RequestTimeoutError      until a request's deadline and the grace after it
│   └── ReplyTimeoutError        while a ping or a question for counters was open
└── UnknownServerError       a code that this client does not know
"""

from wkvm_protocol.errors import ErrorCode

from wkvm_client.error_branches import (
    CapacityError,
    ClientError,
    DeadlineError,
    ExecutionError,
    LinkError,
    RequestError,
)
from wkvm_client.link_errors import (
    AuthTimeoutError,
    BadPeerError,
    ClientClosedError,
    ConnectFailedError,
    ConnectionLostError,
    DisconnectedError,
    FrameTimeoutError,
    FrameTooLargeError,
    GoingAwayError,
    HandshakeRefusedError,
    IdleTimeoutError,
    PlaintextKeyError,
    ProtocolViolationError,
    SlowConsumerError,
    TooManyConnectionsError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from wkvm_client.state_errors import (
    BadStateFileError,
    HostTierFullError,
    KeyReusedError,
    MutationFailedError,
    QuotaError,
    RequestOverError,
    StaleVersionError,
    StateDamagedError,
    StateExistsError,
    StateMismatchError,
    StateMovedError,
    StateNotFiniteError,
    StateNotFoundError,
    StoreFailedError,
    StoreFullError,
)

__all__ = [
    "BY_CODE",
    "AuthTimeoutError",
    "BadPeerError",
    "BadStateFileError",
    "CapacityError",
    "ClientClosedError",
    "ClientError",
    "ConnectFailedError",
    "ConnectTimeoutError",
    "ConnectionLostError",
    "DeadlineError",
    "DisconnectedError",
    "DrainingError",
    "EmptyPromptError",
    "EngineFailedError",
    "ExecutionError",
    "FrameTimeoutError",
    "FrameTooLargeError",
    "GoingAwayError",
    "HandshakeRefusedError",
    "HostTierFullError",
    "IdleTimeoutError",
    "InternalError",
    "InvalidParameterError",
    "KeyReusedError",
    "LinkError",
    "MutationFailedError",
    "NonFiniteError",
    "OperationCancelledError",
    "OutOfSlotsError",
    "OverloadedError",
    "PlaintextKeyError",
    "PromptTooLongError",
    "ProtocolViolationError",
    "QueueFullError",
    "QuotaError",
    "RateLimitedError",
    "ReplyTimeoutError",
    "RequestError",
    "RequestOverError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "SlowConsumerError",
    "StaleVersionError",
    "StalledError",
    "StateDamagedError",
    "StateExistsError",
    "StateMismatchError",
    "StateMovedError",
    "StateNotFiniteError",
    "StateNotFoundError",
    "StepFailedError",
    "StepMemoryError",
    "StoreFailedError",
    "StoreFullError",
    "TokenOutOfRangeError",
    "TooManyConnectionsError",
    "TooManyLanesError",
    "UnauthenticatedError",
    "UnknownServerError",
    "UnsupportedOperationError",
    "UnsupportedVersionError",
    "error_of",
]

# --- the request --------------------------------------------------------------------------


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


class OperationCancelledError(RequestError):
    """The operation was cancelled before it was done. Nothing came of it."""

    default_code = ErrorCode.CANCELLED


# --- capacity -----------------------------------------------------------------------------


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


class OverloadedError(CapacityError):
    """More is asked of the server than it can do in time, or keep. It did nothing of this."""

    default_code = ErrorCode.OVERLOADED


class RateLimitedError(CapacityError):
    """The tenant does something more often than it may."""

    default_code = ErrorCode.RATE_LIMITED


class StepMemoryError(CapacityError):
    """The server's device had no memory for a step that the request was in."""

    default_code = ErrorCode.STEP_MEMORY


# --- execution ----------------------------------------------------------------------------


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


class EngineFailedError(ExecutionError):
    """The server's engine cannot go on; the server ends and is started anew."""

    default_code = ErrorCode.ENGINE_FAILED
    default_retryable = True


# --- time ---------------------------------------------------------------------------------


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
    ErrorCode.CANCELLED: OperationCancelledError,
    ErrorCode.STATE_NOT_FOUND: StateNotFoundError,
    ErrorCode.STATE_EXISTS: StateExistsError,
    ErrorCode.STALE_VERSION: StaleVersionError,
    ErrorCode.STATE_MISMATCH: StateMismatchError,
    ErrorCode.BAD_STATE_FILE: BadStateFileError,
    ErrorCode.STATE_NOT_FINITE: StateNotFiniteError,
    ErrorCode.KEY_REUSED: KeyReusedError,
    ErrorCode.STATE_MOVED: StateMovedError,
    ErrorCode.OUT_OF_SLOTS: OutOfSlotsError,
    ErrorCode.QUEUE_FULL: QueueFullError,
    ErrorCode.TOO_MANY_LANES: TooManyLanesError,
    ErrorCode.DRAINING: DrainingError,
    ErrorCode.OVERLOADED: OverloadedError,
    ErrorCode.RATE_LIMITED: RateLimitedError,
    ErrorCode.STEP_MEMORY: StepMemoryError,
    ErrorCode.QUOTA: QuotaError,
    ErrorCode.STORE_FULL: StoreFullError,
    ErrorCode.HOST_TIER_FULL: HostTierFullError,
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.NON_FINITE: NonFiniteError,
    ErrorCode.STALLED: StalledError,
    ErrorCode.STEP_FAILED: StepFailedError,
    ErrorCode.ENGINE_FAILED: EngineFailedError,
    ErrorCode.MUTATION_FAILED: MutationFailedError,
    ErrorCode.STATE_DAMAGED: StateDamagedError,
    ErrorCode.STORE_FAILED: StoreFailedError,
    ErrorCode.REQUEST_OVER: RequestOverError,
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
