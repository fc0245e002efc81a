"""Exceptions as error codes: one table, total over the exceptions that can reach a client."""

import logging
import math
from collections.abc import Mapping

from wkvm_protocol.connection import failure
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Failed, StateMoved

from wkvm.core.errors import (
    BadStateFileError,
    CapacityError,
    CheckpointError,
    ConfigError,
    DrainingError,
    EmptyPromptError,
    EngineFailedError,
    ExecutionError,
    HostTierFullError,
    InvalidParameterError,
    KeyReusedError,
    MissingExtraError,
    MutationFailedError,
    NonFiniteError,
    OutOfSlotsError,
    OverloadedError,
    PromptTooLongError,
    QueueFullError,
    QuotaError,
    RateLimitedError,
    RequestError,
    RequestOverError,
    StaleVersionError,
    StalledError,
    StateDamagedError,
    StateExistsError,
    StateMismatchError,
    StateMovedError,
    StateNotFiniteError,
    StateNotFoundError,
    StepFailedError,
    StepMemoryError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    TokenOutOfRangeError,
    WkvmError,
)

logger = logging.getLogger("wkvm.server")

RETRY_AFTER_MS = 1000
"""What a client is told to wait for room where nothing is known of when there will be some."""


CODES: dict[type[WkvmError], ErrorCode] = {
    RequestError: ErrorCode.INVALID_PARAMETER,
    InvalidParameterError: ErrorCode.INVALID_PARAMETER,
    TokenOutOfRangeError: ErrorCode.TOKEN_OUT_OF_RANGE,
    EmptyPromptError: ErrorCode.EMPTY_PROMPT,
    PromptTooLongError: ErrorCode.PROMPT_TOO_LONG,
    StateNotFoundError: ErrorCode.STATE_NOT_FOUND,
    StateExistsError: ErrorCode.STATE_EXISTS,
    StaleVersionError: ErrorCode.STALE_VERSION,
    StateMismatchError: ErrorCode.STATE_MISMATCH,
    BadStateFileError: ErrorCode.BAD_STATE_FILE,
    StateNotFiniteError: ErrorCode.STATE_NOT_FINITE,
    KeyReusedError: ErrorCode.KEY_REUSED,
    StateMovedError: ErrorCode.STATE_MOVED,
    CapacityError: ErrorCode.QUEUE_FULL,
    OutOfSlotsError: ErrorCode.OUT_OF_SLOTS,
    QueueFullError: ErrorCode.QUEUE_FULL,
    OverloadedError: ErrorCode.OVERLOADED,
    RateLimitedError: ErrorCode.RATE_LIMITED,
    StepMemoryError: ErrorCode.STEP_MEMORY,
    DrainingError: ErrorCode.DRAINING,
    QuotaError: ErrorCode.QUOTA,
    StoreFullError: ErrorCode.STORE_FULL,
    HostTierFullError: ErrorCode.HOST_TIER_FULL,
    ExecutionError: ErrorCode.STEP_FAILED,
    NonFiniteError: ErrorCode.NON_FINITE,
    StalledError: ErrorCode.STALLED,
    StepFailedError: ErrorCode.STEP_FAILED,
    EngineFailedError: ErrorCode.ENGINE_FAILED,
    RequestOverError: ErrorCode.REQUEST_OVER,
    MutationFailedError: ErrorCode.MUTATION_FAILED,
    StateDamagedError: ErrorCode.STATE_DAMAGED,
    StoreFailedError: ErrorCode.STORE_FAILED,
    # these end the process before it serves, or are bugs where they come later
    CheckpointError: ErrorCode.INTERNAL,
    StoreError: ErrorCode.INTERNAL,
    ConfigError: ErrorCode.INTERNAL,
    MissingExtraError: ErrorCode.INTERNAL,
}
"""Each class without subclasses is here or takes the code of its nearest listed base."""

INTERNAL_MESSAGE = "an internal error; see the server's log"


def code_of(error: BaseException) -> ErrorCode:
    """The code of an exception; INTERNAL for all that wkvm does not raise on purpose."""
    for base in type(error).__mro__:
        if base in CODES:
            return CODES[base]
    return ErrorCode.INTERNAL


def failed(request_id: int, error: BaseException) -> Failed:
    """The message that tells a client why its lane is closed.

    It repeats no id, no text and no path. An unexpected exception is logged with its
    traceback, and the client learns only that there was one.
    """
    code = code_of(error)
    field = ""
    if code is ErrorCode.INTERNAL:
        logger.error("internal error on a lane", exc_info=error)
        message = INTERNAL_MESSAGE
    elif isinstance(error, TokenOutOfRangeError):
        field = error.field
        message = f"{field}: an id is not in [0, {error.vocab_size})"
    else:
        message = str(error)
        if isinstance(error, InvalidParameterError):
            field = error.field
        elif isinstance(error, EmptyPromptError | PromptTooLongError):
            field = "prompt"
    retry_after_ms = 0
    if isinstance(error, CapacityError):
        after_s = error.retry_after_s
        retry_after_ms = RETRY_AFTER_MS if after_s is None else math.ceil(after_s * 1000)
    return failure(request_id, code, message, field=field, retry_after_ms=retry_after_ms)


def refusal(
    request_id: int, error: BaseException, names: Mapping[str, str] | None = None
) -> Failed | StateMoved:
    """As ``failed``, for a client that knows of states: it learns where a state is now.

    Args:
        names: what its message calls the fields that may be at fault, where they are not called
            so by who carries it out.
    """
    if isinstance(error, StateMovedError):
        return StateMoved(request_id, str(error), error.target, error.moved_to)
    if names and isinstance(error, InvalidParameterError) and error.field in names:
        error = InvalidParameterError(names[error.field], error.why)
    return failed(request_id, error)
