"""An engine that computes nothing and is limited by nothing but its readers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wkvm.core.errors import DrainingError, WkvmError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import (
    EndEvent,
    Event,
    Logprobs,
    RequestSpec,
    Status,
    TokensEvent,
    TopLogprob,
)
from wkvm.engine.interface import EngineInfo

TOP = 20
LOGPROBS = Logprobs(7, -1.0, 1, tuple(TopLogprob(i, -1.0) for i in range(TOP)))


@dataclass
class _Request:
    max_tokens: int
    n_output: int = 0
    held: bool = False


class Fountain:
    """Each step gives one id, always 7, to every request that is not held.

    Log probabilities, where wanted, make each of these about 200 bytes on the wire.
    """

    def __init__(self) -> None:
        self.info = EngineInfo(
            model="fountain",
            model_digest="0" * 64,
            layout_fingerprint="0" * 64,
            tokenizer_digest="",
            vocab_size=64,
            eos_ids=(),
            n_slots=4096,
            max_model_len=None,
        )
        self.n_holds = 0
        self._requests = dict[int, _Request]()
        self._wants_logprobs = set[int]()
        self._events = list[Event]()
        self._n_submitted = 0
        self._draining = False

    def reserve(self, n: int) -> tuple[int, ...]:
        first = self._n_submitted + 1
        self._n_submitted += n
        return tuple(range(first, first + n))

    def submit(
        self, spec: RequestSpec, now: float, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        del now
        if self._draining:
            raise DrainingError
        request_ids = request_ids or self.reserve(spec.params.n)
        for request_id in request_ids:
            self._requests[request_id] = _Request(spec.params.max_tokens)
        if spec.params.logprobs is not None:
            self._wants_logprobs.update(request_ids)
        return request_ids

    def cancel(self, request_id: int, now: float) -> None:
        del now
        self._end(request_id, Status.CANCELLED)

    def interrupt(self, request_id: int, now: float) -> None:
        self.cancel(request_id, now)

    def snapshot(self, request_id: int) -> bool:
        del request_id
        return False

    def grant(self, request_id: int, n_tokens: int, now: float) -> None:
        del request_id, n_tokens, now

    def hold(self, request_id: int, now: float) -> None:
        del now
        self._requests[request_id].held = True
        self.n_holds += 1

    def release(self, request_id: int, now: float) -> None:
        del now
        self._requests[request_id].held = False

    @property
    def blocks(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        return 1

    @property
    def n_held(self) -> int:
        """How many requests are held."""
        return sum(request.held for request in self._requests.values())

    def plan(self, now: float) -> StepPlan | None:
        del now
        if all(request.held for request in self._requests.values()):
            return None
        return StepPlan(())

    def launch(self, plan: StepPlan) -> None:
        del plan

    def collect(self, plan: StepPlan) -> StepResult:
        del plan
        return StepResult(())

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        del plan, result, now
        for request_id, request in list(self._requests.items()):
            if request.held:
                continue
            logprobs = {0: LOGPROBS} if request_id in self._wants_logprobs else {}
            self._events.append(TokensEvent([request_id], [request.n_output], [7], logprobs))
            request.n_output += 1
            if request.n_output == request.max_tokens:
                self._end(request_id, Status.LENGTH)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        del plan, now
        raise error

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def set_wake(self, wake: Callable[[], None]) -> None:
        del wake

    def next_deadline(self) -> float | None:
        return None

    def drain(self) -> None:
        self._draining = True

    def stats(self) -> Mapping[str, int]:
        n_running = len(self._requests)
        return {
            "n_queued": 0,
            "n_running": n_running,
            "n_slots": 4096,
            "n_free_slots": 4096 - n_running,
        }

    def _end(self, request_id: int, status: Status) -> None:
        request = self._requests.pop(request_id, None)
        self._wants_logprobs.discard(request_id)
        if request is not None:
            self._events.append(
                EndEvent(request_id, status, None, None, 1, request.n_output, 0.0, 0.0, 0.0)
            )
