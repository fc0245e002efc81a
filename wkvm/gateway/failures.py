"""Errors as HTTP says them: a status, and OpenAI's body. One table from exceptions to these."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from wkvm_client import errors as client
from wkvm_client.errors import ClientError

from wkvm.gateway.errors import TemplateError, UnknownTokenError

INVALID = "invalid_request_error"
CONFLICT = "conflict_error"
FULL = "insufficient_storage_error"
SERVER = "server_error"
CANCELLED = "cancelled"
"""The code of a request that was cancelled by its name, or by a drain."""


@dataclass(slots=True)
class HttpError(Exception):
    """A request is answered by an error.

    Attributes:
        status: of the response.
        message: for people; names the field and says what to do.
        type: ``invalid_request_error``, ``authentication_error``, ``rate_limit_error``, ...
        param: the field of the body that is at fault.
        code: for programs, such as ``model_not_found``.
        retry_after_s: when to try again; None says nothing.
    """

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        """What people read."""
        return self.message


class ErrorObject(msgspec.Struct):
    """What went wrong; see ``HttpError``."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of an answer that is an error."""

    error: ErrorObject


MAX_MESSAGE = 1000
"""Characters. What a client sent may be in a message, and be long."""


def error_body(error: HttpError) -> bytes:
    """The JSON of an error, in a response and in an event of a stream alike."""
    body = ErrorObject(short_message(error), error.type, error.param, error.code)
    return msgspec.json.encode(ErrorBody(body))


def short_message(error: HttpError) -> str:
    """The message of an error, cut off where it is too long."""
    message = error.message
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ..."


def invalid(param: str | None, why: str, *, code: str | None = None) -> HttpError:
    """400: a field has a value that is not allowed."""
    message = why if param is None else f"{param}: {why}"
    return HttpError(400, message, param=param, code=code)


def renamed(error: HttpError, names: Mapping[str, str]) -> HttpError:
    """An error that calls the field at fault by another name, where ``names`` has one for it."""
    old = error.param or ""
    new = names.get(old)
    if new is None:
        return error
    message = error.message
    if message.startswith(f"{old}:"):
        message = new + message.removeprefix(old)
    return replace(error, message=message, param=new)


DEFAULT_RETRY_AFTER_S = 1.0

_WHERE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>(?P<field>\w+)?[^`]*)`$")
_NAMED = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<field>[^`]*)`")

_STATUSES: tuple[tuple[type[ClientError], int, str, str | None], ...] = (
    (client.UnauthenticatedError, 401, "authentication_error", "invalid_api_key"),
    (client.PromptTooLongError, 400, INVALID, "context_length_exceeded"),
    (client.RequestTooLargeError, 413, INVALID, "request_too_large"),
    (client.StateNotFoundError, 404, INVALID, "state_not_found"),
    (client.StateExistsError, 409, CONFLICT, "state_exists"),
    (client.StaleVersionError, 409, CONFLICT, "stale_version"),
    (client.KeyReusedError, 409, CONFLICT, "key_reused"),
    (client.StateMovedError, 409, CONFLICT, "state_moved"),
    (client.StateMismatchError, 422, INVALID, "state_mismatch"),
    (client.BadStateFileError, 422, INVALID, "bad_state_file"),
    (client.StateNotFiniteError, 422, INVALID, "state_not_finite"),
    (client.OperationCancelledError, 499, SERVER, CANCELLED),
    (client.RequestError, 400, INVALID, None),
    (client.DrainingError, 503, SERVER, "draining"),
    (client.GoingAwayError, 503, SERVER, "draining"),
    (client.QuotaError, 507, FULL, "quota_exceeded"),
    (client.StoreFullError, 507, FULL, "store_full"),
    (client.StepMemoryError, 503, SERVER, "step_memory"),
    (client.HostTierFullError, 503, SERVER, "host_tier_full"),
    (client.RateLimitedError, 429, "rate_limit_error", "rate_limit_exceeded"),
    (client.CapacityError, 429, "rate_limit_error", "overloaded"),
    (client.TooManyConnectionsError, 429, "rate_limit_error", "too_many_connections"),
    (client.StalledError, 408, SERVER, "stalled"),
    (client.MutationFailedError, 500, SERVER, "mutation_failed"),
    (client.StateDamagedError, 500, SERVER, "state_damaged"),
    (client.StoreFailedError, 503, SERVER, "store_failed"),
    (client.RequestOverError, 503, SERVER, "request_over"),
    (client.EngineFailedError, 503, SERVER, "engine_failed"),
    (client.ExecutionError, 500, SERVER, "execution_failed"),
    (client.DeadlineError, 408, SERVER, "timeout"),
    (client.LinkError, 503, SERVER, "engine_unavailable"),
    (ClientError, 500, SERVER, None),
)
"""The first row whose class fits counts."""

OPENAI_NAMES: Mapping[str, str] = {
    "allowed_ids": "allowed_token_ids",
    "grammar": "structured_outputs",
    "stop_ids": "stop_token_ids",
}
"""What bodies call the engine's fields, where they do not have its names."""


def http_error(error: Exception, names: Mapping[str, str]) -> HttpError | None:
    """What an exception is for an HTTP client; None for a bug.

    Args:
        error: HttpError, ClientError, or an error of the text layer.
        names: what the route's body calls the engine's fields; as ``OPENAI_NAMES``.
    """
    match error:
        case HttpError():
            return error
        case ClientError():
            return _of_client_error(error, names)
        case TemplateError():
            return invalid("messages", str(error))
        case UnknownTokenError():
            return invalid(None, str(error))
        case _:
            return None


def _of_client_error(error: ClientError, names: Mapping[str, str]) -> HttpError:
    status, kind, code = next(
        (status, kind, code) for leaf, status, kind, code in _STATUSES if isinstance(error, leaf)
    )
    message, param = str(error), names.get(error.field, error.field)
    if isinstance(error, client.ConnectFailedError):
        message = "the engine cannot be reached"  # the error's text says where it is
    if message.startswith(f"{error.field}:"):
        message = param + message.removeprefix(error.field)
    retry_after_s = None
    if error.retry_after_ms:
        retry_after_s = error.retry_after_ms / 1000
    elif status in (429, 503):
        retry_after_s = DEFAULT_RETRY_AFTER_S
    return HttpError(
        status,
        message,
        kind,
        param=param or None,
        code=code,
        retry_after_s=retry_after_s,
    )


def misfit(why: str) -> HttpError:
    """400, for what msgspec says of JSON that is not what a route takes."""
    if where := _WHERE.search(why):
        message = f"{where['path']}: {why[: where.start()]}" if where["path"] else why
        return HttpError(400, message, param=where["field"])
    if named := _NAMED.fullmatch(why):
        is_missing = named["what"] == "missing required"
        return invalid(named["field"], "is required" if is_missing else "there is no such field")
    return invalid(None, f"the body is not what this route takes: {why}")
