"""Decode steps as captured graphs: one for each bucket of rows, all over the same buffers.

A graph holds a whole step: the sampler's ``begin``, the model's launch and the sampler's
``end``. Which slots it works on, and which ids their grammars allow, it reads from the buffers.
Where nothing can be captured, as on a CPU, a replay is the launches themselves: so all but the
capture can be tested there.
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from wkvm.core.plan import RowPlan
from wkvm.models.base import DecodeStep, Model, StateViews

BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows of the graphs. More rows than the last are several replays."""

ID_BYTES = 8
"""Of a row's id as it comes back from the device; a byte of flags comes with it."""

PAD = -1
"""The slot of a row that is none."""


class StepSampler(Protocol):
    """What of the sampler is part of a captured step; see ``wkvm.engine.slot_table``."""

    def begin(self, slots_in: Tensor, token_ids: Tensor, slots: Tensor) -> None:
        """Fill in what the rows absorb; the slot of a row that is over becomes ``PAD``."""
        ...

    def end(
        self,
        logits: Tensor,
        slots: Tensor,
        masks: Tensor,
        has_mask: Tensor,
        out_ids: Tensor,
        out_flags: Tensor,
    ) -> None:
        """Choose the next id of each row."""
        ...


class SlotSampler(StepSampler, Protocol):
    """The sampler, with all it knows by slot on the device."""

    def start(self, rows: Sequence[RowPlan]) -> None:
        """Take the parameters of requests that begin."""
        ...

    def feed(self, rows: Sequence[RowPlan]) -> None:
        """Take note of the prompt ids of these rows."""
        ...

    def forget(self, slots: Sequence[int]) -> None:
        """Give up what is kept for slots that were freed."""
        ...

    def remembered(self, slot: int) -> Tensor | None:
        """The penalty counts of a slot, on the device; None if it has none."""
        ...

    def read(self, whole: Tensor) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        """The same on the host, by id: see ``SavedRecord``."""
        ...


class Replay(NamedTuple):
    """One replay of a step.

    Attributes:
        start, n_rows: which of the step's decode rows.
        bucket: rows of the graph, at least ``n_rows``.
    """

    start: int
    n_rows: int
    bucket: int


def buckets_for(n_slots: int) -> tuple[int, ...]:
    """The buckets that steps of at most ``n_slots`` rows need, smallest first."""
    fitting = [bucket for bucket in BUCKETS if bucket < n_slots]
    larger = BUCKETS[len(fitting) : len(fitting) + 1]
    return (*fitting, *larger)


def replays_of(n_rows: int, buckets: Sequence[int]) -> list[Replay]:
    """How a step of that many decode rows is replayed.

    All replays but the last are of the largest bucket, and full; the last is of the smallest
    that holds the rest.
    """
    largest, replays = buckets[-1], list[Replay]()
    start = 0
    while n_rows - start > largest:
        replays.append(Replay(start, largest, largest))
        start += largest
    if rest := n_rows - start:
        bucket = next(bucket for bucket in buckets if bucket >= rest)
        replays.append(Replay(start, rest, bucket))
    return replays


Progress: TypeAlias = Callable[[int, int], None]
"""Told how many kinds of kernels are ready, and of how many."""


class DecodeGraphs:
    """The graphs of one model over one arena.

    Attributes:
        buckets: rows of the graphs, smallest first.
        slots: ``[B]`` int32, input, with B the largest bucket: the slots of the rows, and
            ``PAD`` for the others of a bucket.
        masks: ``[B, ceil(V / 32)]`` int32, input: bit ``i % 32`` of word ``i // 32`` is set if a
            row may choose id i.
        has_mask: ``[B]`` bool, input: whether a row's mask counts.
        ids: ``[B]`` int64, output: the chosen ids. Those of pad rows mean nothing.
        flags: ``[B]`` uint8, output: as the sampler's ``end`` gives them.
        out: ``ids`` and ``flags`` as bytes, to be read in one transfer.
    """

    def __init__(
        self, model: Model, states: StateViews, sampler: StepSampler, *, n_slots: int
    ) -> None:
        """Make the buffers. ``capture`` comes before the first replay."""
        device, vocab_size = model.info.device, model.info.vocab_size
        self.buckets = buckets_for(n_slots)
        B = self.buckets[-1]
        self.slots = torch.full((B,), PAD, dtype=torch.int32, device=device)
        self.masks = torch.zeros(B, -(-vocab_size // 32), dtype=torch.int32, device=device)
        self.has_mask = torch.zeros(B, dtype=torch.bool, device=device)
        n_bytes = B * (ID_BYTES + 1)
        self.out = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
        self.ids, self.flags = ids_and_flags(self.out)
        self._model = model
        self._states = states
        self._sampler = sampler
        # The largest first: the others are views of its buffers.
        self._steps = {n: _step_of(model, n) for n in reversed(self.buckets)}
        self._replays = dict[int, Callable[[], None]]()

    def logits(self, bucket: int) -> Tensor:
        """``[bucket, V]`` float32: as the model gave them in the last replay of that bucket."""
        return self._steps[bucket].logits

    def replay(self, bucket: int) -> None:
        """Launch a step of that many rows, and return."""
        self._replays[bucket]()

    def capture(
        self, progress: Progress | None = None, *, beside: Sequence[Callable[[], None]] = ()
    ) -> None:
        """Make every bucket ready. States are left as they are.

        Kernels that were never compiled on this machine are compiled, by several threads: that
        is what takes time, so ``progress`` is told of it.

        Args:
            beside: what else is to be launched for the first time, each in a thread of its own.
        """
        self.slots.fill_(PAD)
        if not self.slots.is_cuda:
            for n in self.buckets:
                self._replays[n] = self._launcher(n)
            return
        self._compile(progress, beside)
        pool = torch.cuda.graph_pool_handle()
        for n in reversed(self.buckets):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._launch(n)
            self._replays[n] = graph.replay

    def _compile(self, progress: Progress | None, beside: Sequence[Callable[[], None]]) -> None:
        """Launch every kernel once, on pad rows: nothing is compiled or loaded in a capture.

        A thread for each kind of step, and one for the sampler. Steps that run at once must not
        share buffers, so these are made for the purpose, one a thread at a time.
        """
        kinds = dict[Hashable, list[int]]()
        for n, step in self._steps.items():
            kinds.setdefault(step.plan, []).append(n)
        tasks = [self._launch_sampler, *beside]
        tasks += [partial(self._launch_apart, rows) for rows in kinds.values()]
        with ThreadPoolExecutor(len(tasks)) as threads:
            running = [threads.submit(task) for task in tasks]
            for n_done, done in enumerate(as_completed(running), start=1):
                done.result()
                if progress is not None:
                    progress(n_done, len(tasks))
        torch.cuda.synchronize()

    @torch.inference_mode()
    def _launch_apart(self, rows: Sequence[int]) -> None:
        for n in rows:
            step = _step_of(self._model, n, apart=True)
            step.launch(self._states)

    @torch.inference_mode()
    def _launch_sampler(self) -> None:
        for n, step in self._steps.items():
            self._begin(n, step)
            self._end(n, step)

    def _launcher(self, n: int) -> Callable[[], None]:
        return lambda: self._launch(n)

    def _launch(self, n: int) -> None:
        step = self._steps[n]
        self._begin(n, step)
        step.launch(self._states)
        self._end(n, step)

    def _begin(self, n: int, step: DecodeStep) -> None:
        self._sampler.begin(self.slots[:n], step.token_ids, step.slots)

    def _end(self, n: int, step: DecodeStep) -> None:
        self._sampler.end(
            step.logits,
            step.slots,
            self.masks[:n],
            self.has_mask[:n],
            self.ids[:n],
            self.flags[:n],
        )


def ids_and_flags(out: Tensor) -> tuple[Tensor, Tensor]:
    """``[B]`` int64 and ``[B]`` uint8: views of what ``DecodeGraphs.out`` holds as bytes."""
    n_id_bytes = out.numel() // (ID_BYTES + 1) * ID_BYTES
    return out[:n_id_bytes].view(torch.int64), out[n_id_bytes:]


def _step_of(model: Model, n_rows: int, *, apart: bool = False) -> DecodeStep:
    step = model.decode_step(n_rows, apart=apart)
    if step is None:
        raise ValueError(f"{model.info.name} on {model.info.device} has no decode step")
    return step
