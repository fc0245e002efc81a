"""What the step loop and the server ask of an engine. No torch here: a null engine fits too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from wkvm.core.errors import WkvmError
from wkvm.core.layout import StateLayout
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import Event, RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine serves, as clients are told on connecting.

    Attributes:
        model: the name under which the model is served.
        model_digest: hex SHA-256 over the weight files.
        layout_fingerprint: of one state.
        tokenizer_digest: hex SHA-256 of the tokenizer's file; empty if the checkpoint has none.
        vocab_size: ids are in ``[0, vocab_size)``.
        eos_ids: ids that end a turn unless a request says otherwise.
        n_slots: how many states can be live.
        max_model_len: limit on prompt plus ``max_tokens``; None for no limit. Never more than the
            pages of a guest that one request may get.
        takes_grammars: whether requests may have a grammar.
        layout: of one state; None for an engine without states.
        n_pages: of the guest pool; 0 for models without attention layers.
    """

    model: str
    model_digest: str
    layout_fingerprint: str
    tokenizer_digest: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    n_slots: int
    max_model_len: int | None
    takes_grammars: bool = False
    layout: StateLayout | None = None
    n_pages: int = 0


class RunnerLike(Protocol):
    """What runs an engine's steps: ``depth``, ``launch`` and ``collect`` are as of the engine."""

    @property
    def loads_beside(self) -> bool:
        """Whether pages of a guest are filled while other steps run, and it is told when."""
        ...

    @property
    def depth(self) -> int:
        """How many plans may be in flight, at least 1."""
        ...

    def launch(self, plan: StepPlan) -> None:
        """Begin a step. Never waits for the device. If it raises, nothing was begun."""
        ...

    def collect(self, plan: StepPlan) -> StepResult:
        """The result of the step that was launched first of those not collected."""
        ...


class EngineLike(Protocol):
    """An engine as its loop sees it.

    All methods but ``launch`` and ``collect`` do bookkeeping only, are called from the loop's
    thread and return at once. If the engine ``blocks``, these two are called from a worker
    thread, one at a time; meanwhile the other methods may be called. A plan is in flight from
    ``plan`` to its ``commit`` or ``fail``: at most ``depth`` are, and all of the four get them in
    the order in which they were made.
    ``now`` is in seconds, from a monotonic clock.
    """

    @property
    def info(self) -> EngineInfo:
        """What is served."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether steps take so long that the loop's thread must not wait for them."""
        ...

    @property
    def depth(self) -> int:
        """How many plans may be in flight, at least 1."""
        ...

    def reserve(self, n: int) -> tuple[int, ...]:
        """Ids for a spec of ``n`` choices that is submitted later, or never."""
        ...

    def submit(
        self, spec: RequestSpec, now: float, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Queue a request for each of ``params.n`` choices: all of them or none.

        Args:
            request_ids: as ``reserve`` gave them; None for new ones.

        Returns:
            Their ids in the order of the choices, never used before by this engine.

        Raises:
            RequestError: the request is wrong.
            CapacityError: the queue has no room for all, or the engine is draining.
        """
        ...

    def cancel(self, request_id: int, now: float) -> None:
        """End a request. Its EndEvent follows; unknown and ended requests are ignored."""
        ...

    def interrupt(self, request_id: int, now: float) -> None:
        """End a request as cancelled, with its state if it saves it.

        Its EndEvent follows when the state is on the host. Ids of steps in flight still come, and
        an end by one of them counts. Unknown and ended requests are ignored.
        """
        ...

    def snapshot(self, request_id: int) -> bool:
        """Have the state of a request told as it is after the steps in flight.

        Returns:
            Whether a SavedEvent will come, unless the request ends before; one for all that asked
            meanwhile. Else it is unknown, has ended or is about to.

        Raises:
            InvalidParameterError: what the request produces is not kept: it neither saves its
                state, nor started from one, nor has checkpoints.
        """
        ...

    def grant(self, request_id: int, n_tokens: int, now: float) -> None:
        """Add to a request's credit. Unknown and ended requests are ignored."""
        ...

    def hold(self, request_id: int, now: float) -> None:
        """Produce nothing more for a request until released. Unknown ones are ignored."""
        ...

    def release(self, request_id: int, now: float) -> None:
        """End a hold. Unknown requests and such that are not held are ignored."""
        ...

    def plan(self, now: float) -> StepPlan | None:
        """Expire what is overdue, admit what fits, and choose the next step's rows.

        Returns:
            None if there is nothing to run now. More may be found once a plan that is in flight
            was committed.
        """
        ...

    def launch(self, plan: StepPlan) -> None:
        """Begin a step. Never waits for the device. If it raises, nothing was begun.

        Raises:
            EngineFailedError: nothing can be run any more.
            WkvmError: ends the requests of the plan; the engine goes on.
            Exception: the same, as ``StepFailedError``.
        """
        ...

    def collect(self, plan: StepPlan) -> StepResult:
        """The result of the step that was launched first of those not collected.

        Returns when its ids are known. Raises as ``launch`` does. Either way the step is over.
        """
        ...

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Apply a step's result."""
        ...

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of a plan whose ``launch`` or ``collect`` raised, with ``error``."""
        ...

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        ...

    def next_deadline(self) -> float | None:
        """When ``plan`` should be called although nothing else happens; None for never."""
        ...

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from any thread, when ``plan`` may find something unasked for."""
        ...

    def drain(self) -> None:
        """Refuse new requests from now on; those that are queued or running go on."""
        ...

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...
