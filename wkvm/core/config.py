"""Settings of the engine and the server: frozen, validated on construction, never adjusted."""

from dataclasses import dataclass

from wkvm.core.errors import ConfigError

CUT_MULTIPLE = 64
"""A prompt is cut only after a multiple of this many tokens, counted from its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        n_slots: how many states can be live at once.
        max_num_batched_tokens: the budget of a step. Each running request gets its one
            token of decode in any case; prompts share what is left.
        max_queue: how many requests may wait for a slot.
        max_completed_requests: how many finished requests are remembered.
        max_model_len: limit on prompt plus ``max_tokens``; None for no limit.
        request_timeout_s: from submission to the end, for requests that name none.
        stall_timeout_s: how long a request without credit may hold its slot.
        device: ``auto``, ``cpu`` or ``cuda``.
        dtype: of weights and activations: ``auto`` (float32 on a CPU, the checkpoint's
            on a GPU), ``float32``, ``bfloat16`` or ``float16``.
        seed: base of the random numbers of requests that bring no seed; None draws one
            from the operating system.
        poison_freed_slots: fill freed slots with NaN. A debugging aid.
        n_threads: of the CPU path; None takes all cores.
    """

    n_slots: int = 64
    max_num_batched_tokens: int = 2048
    max_queue: int = 1024
    max_completed_requests: int = 1024
    max_model_len: int | None = None
    request_timeout_s: float = 600.0
    stall_timeout_s: float = 60.0
    device: str = "auto"
    dtype: str = "auto"
    seed: int | None = None
    poison_freed_slots: bool = False
    n_threads: int | None = None

    def __post_init__(self) -> None:
        _at_least("slots", self.n_slots, 1)
        _at_least("max-num-batched-tokens", self.max_num_batched_tokens, 1)
        _at_least("max-queue", self.max_queue, 0)
        _at_least("max-completed-requests", self.max_completed_requests, 0)
        if self.max_model_len is not None:
            _at_least("max-model-len", self.max_model_len, 1)
        if self.n_threads is not None:
            _at_least("threads", self.n_threads, 1)
        _positive("request-timeout-s", self.request_timeout_s)
        _positive("stall-timeout-s", self.stall_timeout_s)
        _one_of("device", self.device, ("auto", "cpu", "cuda"))
        _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError("seed", f"{self.seed} is not in [0, 2^64)")


def _at_least(setting: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(setting, f"{value} is below {low}")


def _positive(setting: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(setting, f"{value} is not a positive number of seconds")


def _one_of(setting: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(setting, f"{value!r} is not one of {', '.join(allowed)}")
