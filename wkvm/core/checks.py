"""What a request must satisfy before it is queued, beyond what its parameters say of themselves."""

from wkvm.core.beginning import check_beginning
from wkvm.core.config import EngineConfig
from wkvm.core.errors import InvalidParameterError, PromptTooLongError
from wkvm.core.foresight import Foresight
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import check_ids
from wkvm.core.waiting import WaitingLine

MAX_TIMEOUT_S = 2**63


def check_spec(
    spec: RequestSpec, vocab_size: int, eos_ids: tuple[int, ...], *, max_model_len: int | None
) -> tuple[int, ...]:
    """Check a request against the model and the limits. Linear in its ids.

    Returns:
        The ids that end it, each once: its own and, unless ignored, the model's.

    Raises:
        RequestError: it cannot be run, for the reason that the leaf says.
    """
    check_beginning(spec, vocab_size)
    params = spec.params
    n_prompt, max_tokens = len(spec.prompt), params.max_tokens
    if max_model_len is not None and n_prompt + max_tokens > max_model_len:
        raise PromptTooLongError(n_prompt, max_tokens, max_model_len)
    check_ids("prompt", spec.prompt, vocab_size)
    if spec.forced:
        if len(spec.forced) != max_tokens or params.n != 1 or spec.grammar is not None:
            raise ValueError("a forced output is all of one choice, without a grammar")
        check_ids("prompt", spec.forced, vocab_size)
    params.check_ids(vocab_size)
    stops = tuple(dict.fromkeys(params.stop_ids + (() if params.ignore_eos else eos_ids)))
    if params.min_tokens:
        # While stops are banned, something must be left to sample.
        allowed_ids = params.allowed_ids
        if len(stops) >= vocab_size:
            raise InvalidParameterError("min_tokens", "all ids are stop ids")
        if allowed_ids is not None and set(stops).issuperset(allowed_ids):
            raise InvalidParameterError("min_tokens", "all allowed ids are stop ids")
    _check_terms(spec)
    return stops


def check_n(spec: RequestSpec, config: EngineConfig) -> None:
    """Check that a request asks for no more choices than it may.

    Raises:
        InvalidParameterError: it does.
    """
    if spec.params.n > config.max_n:
        raise InvalidParameterError("n", f"{spec.params.n} is above {config.max_n}")


def check_room(
    spec: RequestSpec,
    config: EngineConfig,
    waiting: WaitingLine,
    foresight: Foresight,
    n_free: int,
) -> None:
    """Check that the line has room for a spec's choices, of whose tenant ``n_free`` may go on.

    Raises:
        QueueFullError: it has not.
    """
    tenant = spec.tenant
    # Those that the next plan admits do not count as waiting.
    n_waiting = waiting.n_requests(tenant) + spec.params.n - n_free
    if n_waiting <= 0:
        return
    if n_waiting > config.max_queue:
        raise foresight.full(config.max_queue, "requests of a tenant", spec)
    most = config.max_queue_of_all
    if (
        most is not None
        and len(waiting) + spec.params.n - n_free > most
        # Who takes less than an equal share is not kept out by those who take more.
        and n_waiting > most // waiting.n_tenants_with(tenant)
    ):
        raise foresight.full(most, "requests of all tenants", spec)
    if waiting.n_ids(tenant) + spec.n_ids > config.max_queued_tokens:
        raise foresight.full(config.max_queued_tokens, "prompt and allowed ids of a tenant", spec)


def _check_terms(spec: RequestSpec) -> None:
    if type(spec.priority) is not int:
        raise InvalidParameterError("priority", f"{spec.priority!r} is not an integer")
    if spec.timeout_s is not None and not _is_positive(spec.timeout_s):
        why = f"{spec.timeout_s!r} is not a positive number of seconds"
        raise InvalidParameterError("timeout_s", why)
    if spec.credit is not None and (type(spec.credit) is not int or spec.credit < 0):
        raise InvalidParameterError("credit", f"{spec.credit!r} is not a count")


def _is_positive(seconds: float) -> bool:
    # The bound keeps an int that no float can hold from being added to a clock.
    return type(seconds) in (int, float) and 0 < seconds <= MAX_TIMEOUT_S
