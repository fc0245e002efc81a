"""An engine that computes nothing: what is left is the cost of everything around a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wkvm.core.errors import QueueFullError, WkvmError
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import EndEvent, Event, RequestSpec, Status, TokensEvent
from wkvm.engine.interface import EngineInfo

VOCAB_SIZE = 65536
_PLAN = StepPlan(rows=())
_RESULT = StepResult(token_ids=())


@dataclass(slots=True, eq=False)
class _Row:
    """A request. ``first_id`` is what its output starts with.

    ``pause_at`` is the count of output at which something happens: it ends, or lacks credit.
    """

    first_id: int
    n_prompt: int
    max_tokens: int
    submitted_at: float
    n_granted: int | None
    held: bool = False
    n_output: int = 0
    pause_at: int = 0


class NullEngine:
    """Gives every request one id in every step, at once and without a model.

    Output counts up from the prompt's last id, so that a receiver can tell a lost, doubled or
    foreign id. Requests end by length only, never by a deadline.

    Args:
        vocab_size: above the highest id.
        tokenizer_digest: of whatever makes text of ids.
    """

    def __init__(
        self, n_slots: int = 1024, vocab_size: int = VOCAB_SIZE, tokenizer_digest: str = ""
    ) -> None:
        self._vocab_size = vocab_size
        self._info = EngineInfo(
            model="null",
            model_digest="0" * 64,
            layout_fingerprint="0" * 64,
            tokenizer_digest=tokenizer_digest,
            vocab_size=vocab_size,
            eos_ids=(),
            n_slots=n_slots,
            max_model_len=None,
        )
        self._n_submitted = 0
        self._rows = dict[int, _Row]()
        self._ready = dict[int, _Row]()
        self._events = list[Event]()

    @property
    def info(self) -> EngineInfo:
        """What is served: nothing."""
        return self._info

    @property
    def blocks(self) -> bool:
        """There is nothing to wait for."""
        return False

    @property
    def depth(self) -> int:
        """There is nothing to run ahead of."""
        return 1

    def reserve(self, n: int) -> tuple[int, ...]:
        """New ids."""
        first = self._n_submitted + 1
        self._n_submitted += n
        return tuple(range(first, first + n))

    def submit(
        self, spec: RequestSpec, now: float, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Take a request for each choice. There is no queue.

        Raises:
            QueueFullError: there are fewer free slots than choices; none was taken.
        """
        params = spec.params
        if len(self._rows) + params.n > self._info.n_slots:
            raise QueueFullError(0, "requests")
        request_ids = self.reserve(params.n) if request_ids is None else request_ids
        for request_id in request_ids:
            row = _Row(spec.prompt[-1] + 1, len(spec.prompt), params.max_tokens, now, spec.credit)
            self._rows[request_id] = row
            self._sort(request_id, row)
            if not params.max_tokens:
                self._end(request_id, row, Status.LENGTH, now, None)
        return request_ids

    def cancel(self, request_id: int, now: float) -> None:
        """End a request."""
        row = self._rows.get(request_id)
        if row is not None:
            self._end(request_id, row, Status.CANCELLED, now, None)

    def interrupt(self, request_id: int, now: float) -> None:
        """End a request: there is no state to be saved."""
        self.cancel(request_id, now)

    def snapshot(self, request_id: int) -> bool:
        """Nothing: there is no state."""
        del request_id
        return False

    def grant(self, request_id: int, n_tokens: int, now: float) -> None:
        """Add to a request's credit."""
        del now
        row = self._rows.get(request_id)
        if row is not None and row.n_granted is not None:
            row.n_granted += n_tokens
            self._sort(request_id, row)

    def hold(self, request_id: int, now: float) -> None:
        """Produce nothing for a request until released."""
        del now
        self._set_held(request_id, held=True)

    def release(self, request_id: int, now: float) -> None:
        """End a hold."""
        del now
        self._set_held(request_id, held=False)

    def plan(self, now: float) -> StepPlan | None:
        """The step of all requests that may produce, without its rows; None for no request."""
        del now
        return _PLAN if self._ready else None

    def launch(self, plan: StepPlan) -> None:
        """Nothing."""

    def collect(self, plan: StepPlan) -> StepResult:
        """Nothing."""
        del plan
        return _RESULT

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Give every request its id."""
        del plan, result
        request_ids = list(self._ready)
        indices, token_ids, paused = list[int](), list[int](), list[int]()
        vocab_size = self._vocab_size
        for request_id, row in self._ready.items():
            n_output = row.n_output
            indices.append(n_output)
            token_ids.append((row.first_id + n_output) % vocab_size)
            row.n_output = n_output = n_output + 1
            if n_output == row.pause_at:
                paused.append(request_id)
        self._events.append(TokensEvent(request_ids, indices, token_ids))
        for request_id in paused:
            row = self._rows[request_id]
            if row.n_output == row.max_tokens:
                self._end(request_id, row, Status.LENGTH, now, None)
            else:
                self._sort(request_id, row)

    def fail(self, plan: StepPlan, error: WkvmError, now: float) -> None:
        """End every request of the step."""
        del plan
        for request_id, row in list(self._ready.items()):
            self._end(request_id, row, Status.FINISHED_ERROR, now, error)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Nothing comes up by itself."""
        del wake

    def next_deadline(self) -> float | None:
        """There are no deadlines."""
        return None

    def drain(self) -> None:
        """Nothing; the loop refuses new requests by itself."""

    def stats(self) -> Mapping[str, int]:
        """How many requests there are."""
        n_slots, n_running = self._info.n_slots, len(self._rows)
        return {
            "n_slots": n_slots,
            "n_free_slots": n_slots - n_running,
            "n_queued": 0,
            "n_running": n_running,
        }

    def _set_held(self, request_id: int, *, held: bool) -> None:
        row = self._rows.get(request_id)
        if row is not None:
            row.held = held
            self._sort(request_id, row)

    def _sort(self, request_id: int, row: _Row) -> None:
        """Put a request among those that may produce, or take it from them."""
        n_granted = row.max_tokens if row.n_granted is None else row.n_granted
        row.pause_at = min(row.max_tokens, n_granted)
        if row.held or row.n_output >= row.pause_at:
            self._ready.pop(request_id, None)
        else:
            self._ready[request_id] = row

    def _end(
        self, request_id: int, row: _Row, status: Status, now: float, error: WkvmError | None
    ) -> None:
        del self._rows[request_id]
        self._ready.pop(request_id, None)
        total_s = now - row.submitted_at
        self._events.append(
            EndEvent(
                request_id, status, None, error, row.n_prompt, row.n_output, 0.0, total_s, total_s
            )
        )
