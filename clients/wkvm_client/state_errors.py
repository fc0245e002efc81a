"""The exceptions that concern states: leaves of the tree in ``wkvm_client.errors``."""

from wkvm_protocol.errors import ErrorCode

from wkvm_client.error_branches import CapacityError, ExecutionError, RequestError


class StateNotFoundError(RequestError):
    """There is no such state, or it has expired. Nothing was computed in its place."""

    default_code = ErrorCode.STATE_NOT_FOUND


class StateExistsError(RequestError):
    """The name is taken."""

    default_code = ErrorCode.STATE_EXISTS


class StaleVersionError(RequestError):
    """The state has moved on from the version that was expected. Nothing was kept."""

    default_code = ErrorCode.STALE_VERSION


class StateMismatchError(RequestError):
    """The state belongs to another model, another layout or another tokenizer."""

    default_code = ErrorCode.STATE_MISMATCH


class BadStateFileError(RequestError):
    """What was given as a state is none, or not a whole one."""

    default_code = ErrorCode.BAD_STATE_FILE


class StateNotFiniteError(RequestError):
    """The state would hold NaN or infinity. Nothing was kept."""

    default_code = ErrorCode.STATE_NOT_FINITE


class KeyReusedError(RequestError):
    """The idempotency key stands for another operation, or for other parameters."""

    default_code = ErrorCode.KEY_REUSED


class StateMovedError(RequestError):
    """The state is at another server now.

    Attributes:
        target: the address of that server; empty where it was not told.
        state: what the state is called there, as ``NAME@VERSION``.
    """

    default_code = ErrorCode.STATE_MOVED
    target = ""
    state = ""


class QuotaError(CapacityError):
    """The tenant has as many states, or as many bytes of them, as it may have."""

    default_code = ErrorCode.QUOTA


class StoreFullError(CapacityError):
    """The server's disk has no room for another state."""

    default_code = ErrorCode.STORE_FULL


class HostTierFullError(CapacityError):
    """The server's memory is full of states that are nowhere else."""

    default_code = ErrorCode.HOST_TIER_FULL


class MutationFailedError(ExecutionError):
    """A mutation raised, or returned what is no state. Nothing was kept."""

    default_code = ErrorCode.MUTATION_FAILED


class StateDamagedError(ExecutionError):
    """The bytes of the state are not those that were kept. They were put aside, and not used."""

    default_code = ErrorCode.STATE_DAMAGED


class StoreFailedError(ExecutionError):
    """The store of states could not be read or written. What was there before still holds."""

    default_code = ErrorCode.STORE_FAILED


class RequestOverError(ExecutionError):
    """What was to make or save a state ended before there was one. Nothing was kept."""

    default_code = ErrorCode.REQUEST_OVER
