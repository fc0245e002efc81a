"""What a GPU does, on a CPU: decode steps over buffers, a sampler by slot, steps run ahead.

The device's part is done in ``launch`` here; the host still learns of it in ``collect`` only, and
what was freed, stopped or cancelled meanwhile comes as late as on a GPU.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.engine.driver import Driver
from tests.fakes import FakeModel, GuestModel
from wkvm.core.config import EngineConfig
from wkvm.core.plan import RowPlan, StepPlan
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import NOT_FINITE, GpuRunner
from wkvm.engine.graphs import DecodeGraphs
from wkvm.models.base import Batch, StateViews
from wkvm.state.arena import Arena


class FakeStep:
    """A decode step of the fake model."""

    def __init__(self, model: FakeModel, n_rows: int) -> None:
        self._model = model
        self.n_rows = n_rows
        self.plan = "fake"
        self.token_ids = torch.full((n_rows,), -7, dtype=torch.int64)
        self.slots = torch.full((n_rows,), -7, dtype=torch.int32)
        self.logits = torch.full((n_rows, model.info.vocab_size), torch.nan)

    def launch(self, states: StateViews) -> None:
        batch = Batch(
            token_ids=self.token_ids,
            slots=self.slots,
            lengths=(1,) * self.n_rows,
            slot_list=tuple(self.slots.tolist()),
            logit_rows=torch.arange(self.n_rows),
        )
        self.logits.copy_(self._model.forward(batch, states))


class SteppingModel(FakeModel):
    """The fake model, with decode steps."""

    def decode_step(  # type: ignore[override]
        self, n_rows: int, *, apart: bool = False
    ) -> FakeStep:
        return FakeStep(self, n_rows)


class SteppingGuestModel(GuestModel):
    """The fake model with a guest, with decode steps."""

    def decode_step(  # type: ignore[override]
        self, n_rows: int, *, apart: bool = False
    ) -> FakeStep:
        return FakeStep(self, n_rows)


class GreedySlots:
    """The likeliest id, by slot; knows stops, lengths and masks.

    Attributes:
        fed: the prompt ids of each slot, from ``feed``.
        forgotten: the slots that were given up, in order.
    """

    def __init__(self, n_slots: int) -> None:
        self.fed = dict[int, list[int]]()
        self.forgotten = list[int]()
        self._rows = dict[int, RowPlan]()
        self._next = dict[int, int]()
        self._n_output = dict[int, int]()
        self._done = [True] * n_slots

    def start(self, rows: Sequence[RowPlan]) -> None:
        for row in rows:
            self._rows[row.slot] = row
            self._n_output[row.slot] = row.n_output
            if row.position >= row.n_prompt:
                self._next[row.slot] = row.ids[0]
            self._done[row.slot] = False
            self.fed[row.slot] = []

    def feed(self, rows: Sequence[RowPlan]) -> None:
        for row in rows:
            self.fed[row.slot] += row.ids

    def forget(self, slots: Sequence[int]) -> None:
        self.forgotten += slots

    def remembered(self, slot: int) -> None:
        """It knows no penalties."""

    def read(self, whole: Tensor) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        raise AssertionError

    def begin(self, slots_in: Tensor, token_ids: Tensor, slots: Tensor) -> None:
        for at, slot in enumerate(slots_in.tolist()):
            is_live = slot >= 0 and not self._done[slot]
            slots[at] = slot if is_live else -1
            token_ids[at] = self._next[slot] if is_live else 0

    def end(
        self,
        logits: Tensor,
        slots: Tensor,
        masks: Tensor,
        has_mask: Tensor,
        out_ids: Tensor,
        out_flags: Tensor,
    ) -> None:
        for at, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            params, n_output = self._rows[slot].params, self._n_output[slot]
            row = logits[at].clone()
            out_flags[at] = 0 if bool(row.isfinite().all()) else NOT_FINITE
            stops = self._rows[slot].stops
            if n_output < params.min_tokens:
                row[list(stops)] = -torch.inf
            if has_mask[at]:
                words = masks[at].tolist()
                barred = [i for i in range(len(row)) if not words[i // 32] >> i % 32 & 1]
                row[barred] = -torch.inf
            token_id = int(row.argmax())
            out_ids[at] = self._next[slot] = token_id
            is_stop = token_id in stops and n_output >= params.min_tokens
            self._n_output[slot] = n_output + 1
            self._done[slot] = is_stop or n_output + 1 == params.max_tokens


def fake_gpu_runner(
    model: SteppingModel | SteppingGuestModel, arena: Arena, config: EngineConfig
) -> GpuRunner:
    """The runner of a GPU, over the fake model."""
    sampler = GreedySlots(config.n_slots)
    graphs = DecodeGraphs(model, arena.views, sampler, n_slots=config.n_slots)
    graphs.capture()
    return GpuRunner(model, arena, sampler, graphs, poison_freed=config.poison_freed_slots)


class AheadDriver(Driver):
    """A driver that runs one step ahead, as the loop does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 0.0
        self.outcomes = {}
        self.in_flight = deque[StepPlan]()

    def step(self) -> None:
        """Launch steps up to the engine's depth, and collect one."""
        self.now += 1
        while len(self.in_flight) < self.engine.depth:
            plan = self.engine.plan(self.now)
            self.note(self.engine.take_events())
            if plan is None:
                break
            self.engine.launch(plan)
            self.in_flight.append(plan)
        if self.in_flight:
            self._collect()

    def land(self) -> None:
        """Collect what is still in flight when every request has ended."""
        while self.in_flight:
            self._collect()

    def _collect(self) -> None:
        plan = self.in_flight.popleft()
        self.engine.commit(plan, self.engine.collect(plan), self.now)
        self.note(self.engine.take_events())
