"""Codes that cross the wire, and the two kinds of protocol error."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """What went wrong, for a connection (Error) or a lane (Failed)."""

    # the connection: Error, then the connection closes
    PROTOCOL_VIOLATION = 100
    FRAME_TOO_LARGE = 101
    UNSUPPORTED_VERSION = 102
    UNAUTHENTICATED = 103
    AUTH_TIMEOUT = 104
    FRAME_TIMEOUT = 105
    IDLE_TIMEOUT = 106
    SLOW_CONSUMER = 107
    TOO_MANY_CONNECTIONS = 108
    # the request: Failed; sending it again will not help
    INVALID_PARAMETER = 200
    TOKEN_OUT_OF_RANGE = 201
    EMPTY_PROMPT = 202
    PROMPT_TOO_LONG = 203
    UNSUPPORTED_OPERATION = 204
    CANCELLED = 205
    STATE_NOT_FOUND = 210
    STATE_EXISTS = 211
    STALE_VERSION = 212
    STATE_MISMATCH = 213
    BAD_STATE_FILE = 214
    STATE_NOT_FINITE = 215
    KEY_REUSED = 216
    STATE_MOVED = 217
    # capacity: Failed; the same request may succeed later
    OUT_OF_SLOTS = 300
    QUEUE_FULL = 301
    TOO_MANY_LANES = 302
    DRAINING = 303
    OVERLOADED = 304
    RATE_LIMITED = 305
    STEP_MEMORY = 306
    QUOTA = 310
    STORE_FULL = 311
    HOST_TIER_FULL = 312
    # execution: Failed
    INTERNAL = 500
    NON_FINITE = 501
    STALLED = 502
    STEP_FAILED = 503
    ENGINE_FAILED = 504
    MUTATION_FAILED = 510
    STATE_DAMAGED = 511
    STORE_FAILED = 512
    REQUEST_OVER = 513

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, or elsewhere."""
        return self in RETRYABLE


RETRYABLE = frozenset(
    {
        ErrorCode.TOO_MANY_CONNECTIONS,
        ErrorCode.OUT_OF_SLOTS,
        ErrorCode.QUEUE_FULL,
        ErrorCode.TOO_MANY_LANES,
        ErrorCode.DRAINING,
        ErrorCode.OVERLOADED,
        ErrorCode.RATE_LIMITED,
        ErrorCode.STEP_MEMORY,
        ErrorCode.QUOTA,
        ErrorCode.STORE_FULL,
        ErrorCode.HOST_TIER_FULL,
        ErrorCode.STEP_FAILED,
        ErrorCode.ENGINE_FAILED,
    }
)


class ProtocolError(Exception):
    """Base of the two kinds."""


class LocalProtocolError(ProtocolError):
    """We tried to send something illegal. A bug on this side; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal. The connection has to be closed.

    Attributes:
        code: what a server says of it in its Error message.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.PROTOCOL_VIOLATION) -> None:
        super().__init__(message)
        self.code = code
