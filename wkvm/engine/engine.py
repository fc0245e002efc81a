"""The engine: a scheduler, an arena and a model, glued. Synchronous; time comes in as ``now``."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from wkvm.core.config import EngineConfig
from wkvm.core.errors import ConfigError, EngineFailedError, InvalidParameterError, WkvmError
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.prefixes import Budget
from wkvm.core.request import Event, RequestSpec, Status
from wkvm.core.sampling import Pooling
from wkvm.core.scheduler import Scheduler
from wkvm.core.start import Start
from wkvm.engine.faults import fault_of
from wkvm.engine.grammars import GrammarCompiler
from wkvm.engine.interface import EngineInfo, RunnerLike
from wkvm.engine.pooling import has_matrices
from wkvm.engine.runner import Runner
from wkvm.models.base import Model
from wkvm.state.arena import Arena
from wkvm.state.guest import n_tokens_of

logger = logging.getLogger(__name__)

SMALL_MODEL_BYTES = 64 * 2**20
"""Below this, a second thread slows a CPU's steps down: see ``bench/NOTES.md``."""

GPU_DECODE_PROMPT_TOKENS = 448
"""Prompt tokens beside rows that decode, on a GPU: a step with both is to take less than twice as
long as one in which 256 rows decode, and a long prompt less than three times as long as alone."""

FRESH_BRANCH = 2**63
"""Branches from here on belong to requests without a seed; those of a seed are small."""


MakeRunner: TypeAlias = Callable[[Model, Arena, EngineConfig], RunnerLike]
"""Makes what runs steps of a model over an arena of its own."""


def runner_of(model: Model, arena: Arena, config: EngineConfig) -> RunnerLike:
    """What runs steps on the model's device."""
    if model.info.device != "cpu":
        # Only here: importing Triton takes seconds, and a CPU needs none of it.
        from wkvm.engine.gpu import make_gpu_runner

        return make_gpu_runner(model, arena, config)
    return Runner(
        model,
        arena,
        poison_freed=config.poison_freed_slots,
        deterministic=config.deterministic,
    )


def _decode_prompt_tokens(model: Model, config: EngineConfig) -> int | None:
    if config.decode_prompt_tokens is None and model.info.device == "cuda":
        return GPU_DECODE_PROMPT_TOKENS
    return config.decode_prompt_tokens


def pages_of(model: Model, config: EngineConfig) -> int:
    """Pages of the guest pool; 0 for a model without a guest."""
    return 0 if model.layout.guest is None else config.n_pages


def budget_of(model: Model, config: EngineConfig) -> Budget | None:
    """What checkpoints of prompts may take; None where none are kept."""
    if not config.prefix_cache_bytes:
        return None
    layout, device_bytes = model.layout, config.prefix_cache_device_bytes
    page_bytes = 0 if layout.guest is None else layout.guest.page_bytes
    if device_bytes is None:
        # On a CPU a slot is host memory like any other; but pages are shared there, not copied.
        suits = model.info.device != "cpu" or layout.guest is not None
        of_all = config.n_slots * layout.record_bytes + pages_of(model, config) * page_bytes
        device_bytes = of_all // 2 if suits else 0
    return Budget(
        host_bytes=config.prefix_cache_bytes,
        device_bytes=device_bytes,
        every=config.prefix_cache_every,
        record_bytes=layout.record_bytes,
        page_bytes=page_bytes,
        off_grid=layout.guest is None and not config.deterministic,
    )


def _max_model_len(model: Model, config: EngineConfig) -> int | None:
    if model.layout.guest is None:
        return config.max_model_len
    most = config.max_pages_per_slot * PAGE_TOKENS
    return most if config.max_model_len is None else min(most, config.max_model_len)


def _arena(model: Model, config: EngineConfig) -> Arena:
    """The arena of an engine.

    Raises:
        ConfigError: there is no memory for it.
    """
    layout, n_pages = model.layout, pages_of(model, config)
    try:
        return Arena(layout, config.n_slots, model.info.device, n_pages=n_pages)
    except (MemoryError, RuntimeError) as error:  # torch has no more exact one on a CPU
        n_bytes = config.n_slots * layout.record_bytes
        if layout.guest is None:
            raise ConfigError("slots", f"no memory for {n_bytes} bytes of states") from error
        of_pages = n_pages * layout.guest.page_bytes
        raise ConfigError(
            "guest-tokens", f"no memory for {n_bytes} bytes of states and {of_pages} of their pages"
        ) from error


class Engine:
    """Serves requests over one loaded model, as ``EngineLike`` describes it.

    On a CPU it sets the number of torch's threads, for the whole process: as configured, or
    one for a small model, whose products are over before a second thread has started.

    Args:
        grammars: makes constraints of requests' grammars; None takes no such requests.
        make_runner: makes what runs the steps.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        served_name: str | None = None,
        tokenizer_digest: str = "",
        grammars: GrammarCompiler | None = None,
        make_runner: MakeRunner = runner_of,
    ) -> None:
        n_threads = config.n_threads
        if n_threads is None and model.info.weight_bytes < SMALL_MODEL_BYTES:
            n_threads = 1
        if n_threads is not None and model.info.device == "cpu":
            torch.set_num_threads(n_threads)
        self._info = EngineInfo(
            model=model.info.name if served_name is None else served_name,
            model_digest=model.info.digest,
            layout_fingerprint=model.layout.fingerprint,
            tokenizer_digest=tokenizer_digest,
            vocab_size=model.info.vocab_size,
            eos_ids=model.info.eos_ids,
            n_slots=config.n_slots,
            max_model_len=_max_model_len(model, config),
            takes_grammars=grammars is not None,
            layout=model.layout,
            n_pages=pages_of(model, config),
        )
        self._grammars = grammars
        arena = _arena(model, config)
        self._model = model
        self._runner = make_runner(model, arena, config)
        self._scheduler = Scheduler(
            config,
            vocab_size=model.info.vocab_size,
            eos_ids=model.info.eos_ids,
            depth=self._runner.depth,
            decode_prompt_tokens=_decode_prompt_tokens(model, config),
            blank=torch.zeros(model.layout.record_bytes, dtype=torch.uint8),
            has_guest=model.layout.guest is not None,
            loads_beside=self._runner.loads_beside,
            budget=budget_of(model, config),
        )
        self._seed = int.from_bytes(os.urandom(8)) if config.seed is None else config.seed
        self._n_reserved = 0

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        return self._info

    @property
    def model(self) -> Model:
        """What runs."""
        return self._model

    @property
    def blocks(self) -> bool:
        """A forward pass takes milliseconds."""
        return True

    @property
    def depth(self) -> int:
        """How many plans may be in flight: the runner's."""
        return self._runner.depth

    def reserve(self, n: int) -> tuple[int, ...]:
        """Ids for a spec of ``n`` choices that is submitted later, or never."""
        first = self._n_reserved + 1
        self._n_reserved += n
        return tuple(range(first, first + n))

    def submit(
        self, spec: RequestSpec, now: float, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Queue a request for each of ``params.n`` choices: all of them or none.

        An explicit seed and the number of the choice, as its branch, key the random numbers.
        Without a seed the key is one that no other request of this engine has; it repeats only
        where the configuration fixes the seed and requests come in the same order. But a single
        choice that begins from a state goes on with its key, unless it wants a fresh one.

        Args:
            request_ids: as ``reserve`` gave them; None for new ones.

        Returns:
            Their ids in the order of the choices, never used before by this engine.

        Raises:
            RequestError: the request is wrong.
            CapacityError: the queue has no room for all, or the engine is draining.
        """
        if spec.grammar is not None and self._grammars is None:
            raise InvalidParameterError("grammar", "this engine takes none")
        if spec.params.pooling is Pooling.STATE and not has_matrices(self._model.layout):
            raise InvalidParameterError("pooling", "this model has no recurrence of matrices")
        if spec.start is not None:
            self._check_start(spec.start)
        n, seed = spec.params.n, spec.params.seed
        request_ids = self.reserve(n) if request_ids is None else request_ids
        branches: Sequence[int] = range(n)
        memory = None if spec.start is None or spec.fresh_key else spec.start.memory
        if seed is None and n == 1 and memory is not None:
            seed, branches = memory.key.seed, (memory.key.branch,)
        elif seed is None:
            seed = self._seed
            branches = [FRESH_BRANCH + request_id for request_id in request_ids]
        self._scheduler.submit(request_ids, spec, seed=seed, branches=branches, now=now)
        return request_ids

    def _check_start(self, start: Start) -> None:
        layout, image = self._model.layout, start.record
        n_bytes = layout.image_bytes(start.n_computed)
        if (
            not isinstance(image, torch.Tensor)
            or image.dtype != torch.uint8
            or image.shape != (n_bytes,)
            or image.device.type != "cpu"
            or not image.is_contiguous()
        ):
            raise InvalidParameterError(
                "state",
                f"a state of {start.n_computed:,} tokens is {n_bytes:,} bytes in host memory here",
            )
        # Kernels take addresses from this count: it is believed only if the host knows it, too.
        if layout.guest is not None and n_tokens_of(layout, image) != start.n_computed:
            raise InvalidParameterError(
                "state",
                f"its record counts {n_tokens_of(layout, image):,} tokens in its pages, and not "
                f"{start.n_computed:,}",
            )

    def cancel(self, request_id: int, now: float) -> None:
        """End a request. Its EndEvent follows; unknown and ended requests are ignored."""
        self._scheduler.cancel(request_id, now)

    def interrupt(self, request_id: int, now: float) -> None:
        """End a request after the steps in flight, with its state if it saves it."""
        self._scheduler.interrupt(request_id, now)

    def snapshot(self, request_id: int) -> bool:
        """Have the state of a request told as it is after the steps in flight.

        Returns:
            Whether a SavedEvent will come, unless the request ends before.

        Raises:
            InvalidParameterError: what the request produces is not kept.
        """
        return self._scheduler.snapshot(request_id)

    def grant(self, request_id: int, n_tokens: int, now: float) -> None:
        """Add to a request's credit. Unknown and ended requests are ignored."""
        self._scheduler.grant(request_id, n_tokens, now)

    def hold(self, request_id: int, now: float) -> None:
        """Produce nothing more for a request until released. Unknown ones are ignored."""
        self._scheduler.hold(request_id, now)

    def release(self, request_id: int, now: float) -> None:
        """End a hold. Unknown requests and such that are not held are ignored."""
        self._scheduler.release(request_id, now)

    def plan(self, now: float) -> StepPlan | None:
        """Expire what is overdue, admit what fits, and choose the next step's rows."""
        if self._grammars is None:
            return self._scheduler.plan(now)
        self._bind(self._grammars, now)
        plan = self._scheduler.plan(now)
        self._grammars.want(self._scheduler.take_unbound())
        # What is known already needs no thread, and there may be nothing else to do.
        if self._bind(self._grammars, now) and plan is None:
            plan = self._scheduler.plan(now)
        return plan

    def _bind(self, grammars: GrammarCompiler, now: float) -> bool:
        """Hand over the constraints that are ready; whether there were any."""
        ready = grammars.turn(self._is_running)
        for request_id, outcome in ready:
            if isinstance(outcome, InvalidParameterError):
                self._scheduler.refuse(request_id, outcome, now)
            else:
                self._scheduler.bind(request_id, outcome)
        return bool(ready)

    def _is_running(self, request_id: int) -> bool:
        return self._scheduler.status(request_id) is Status.RUNNING

    def launch(self, plan: StepPlan) -> None:
        """Begin a step. Never waits for the device. Raises as ``EngineLike.launch`` says."""
        try:
            self._runner.launch(plan)
        except BaseException as error:
            raise fault_of(error, self._model.info.device) from error

    def collect(self, plan: StepPlan) -> StepResult:
        """The result of a step that was launched. Blocks until its ids are known."""
        try:
            return self._runner.collect(plan)
        except BaseException as error:
            raise fault_of(error, self._model.info.device) from error

    def run(self, plan: StepPlan) -> StepResult:
        """Launch a step and collect it; raises what the model raises."""
        self.launch(plan)
        return self.collect(plan)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply a step's result."""
        self._scheduler.commit(plan, result, now)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of a plan whose ``launch`` or ``collect`` raised, with ``error``."""
        self._scheduler.fail(plan, error, now)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        return self._scheduler.take_events()

    def next_deadline(self) -> float | None:
        """When ``plan`` should be called although nothing else happens; None for never."""
        return self._scheduler.next_deadline()

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from another thread, when ``plan`` may find something new."""
        if self._grammars is not None:
            self._grammars.wake = wake

    def drain(self) -> None:
        """Refuse new requests from now on; those that are queued or running go on."""
        self._scheduler.drain()

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        return self._scheduler.stats()

    def step(self, now: float) -> list[Event]:
        """Plan, run and commit one step, for use without a loop.

        Waits for a grammar that is being compiled if there is nothing else to do.

        A model that raises ends the step's requests with StepFailedError; the cause is logged.

        Returns:
            What happened; empty if there was nothing to do.

        Raises:
            EngineFailedError: the device is lost.
        """
        plan = self.plan(now)
        if plan is None and self._grammars is not None and self._grammars.wait():
            plan = self.plan(now)
        if plan is not None:
            try:
                result = self.run(plan)
            except EngineFailedError:
                raise
            except WkvmError as error:
                logger.exception("a step of %d rows failed", len(plan.rows))
                self.fail(plan, error, now)
            else:
                self.commit(plan, result, now)
        return self.take_events()
