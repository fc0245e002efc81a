"""Pages of a guest between a device and host memory, beside the steps, by threads.

A session of many tokens has gigabytes of pages: to send them takes as long as many steps, and so
would it take to pin as much memory. So an image is ordinary memory. A thread for each way moves it
through a few pinned blocks, on a queue of the device of its own: whoever launches steps says which
pages, and asks later whether they are there. Pages that are on their way are nobody else's
(``wkvm.core.guests``), and nobody writes to them.

On a CPU, where this is for tests, a turn moves what one job names.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor

from wkvm.kernels.streams import stream_beside_graphs
from wkvm.state.guest import GuestPool, runs

logger = logging.getLogger(__name__)

BLOCK_BYTES = 8 * 2**20
"""What crosses the bus at once: enough for its full rate."""

N_BLOCKS = 4
"""For each way, pinned: while some are on the bus, the processor fills or empties another."""


@dataclass(slots=True, eq=False)
class Job:
    """Pages that are to be moved, all of them or, after an error, some.

    Attributes:
        pages: on the device.
        host: ``[len(pages) * page_bytes]`` uint8 in host memory.
        after: a point in the device's work that comes before.
        then: what is done in the same thread when they are moved.
        error: what was raised.
    """

    pages: Sequence[int]
    host: Tensor
    after: torch.cuda.Event | None
    then: Callable[[], None] | None
    error: BaseException | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until it is over, or for so long."""
        self._over.wait(timeout_s)

    def run(self, move: Callable[["Job"], None]) -> None:
        """Do it. Never raises."""
        try:
            # Whatever mode the tensors are of.
            with torch.inference_mode():
                move(self)
                if self.then is not None:
                    self.then()
        except BaseException as error:
            logger.exception("%d pages could not be moved", len(self.pages))
            self.error = error
        finally:
            self._over.set()


class PageMover:
    """Moves pages of one pool, each way in the order in which it is asked for. Nothing here waits.

    All is launched by one thread, on its current stream.
    """

    def __init__(self, pool: GuestPool) -> None:
        self._down = _Way(pool, _PinnedDown) if pool.pages.is_cuda else _Turns(pool, pool.read)
        self._up = _Way(pool, _PinnedUp) if pool.pages.is_cuda else _Turns(pool, pool.fill)

    def down(
        self, pages: Sequence[int], target: Tensor, *, then: Callable[[], None] | None = None
    ) -> Job:
        """Copy pages to host memory, as they are after what was launched before.

        Until it is over nobody may write to them.
        """
        return self._down.put(pages, target, then)

    def up(self, pages: Sequence[int], source: Tensor) -> Job:
        """Fill pages from host memory, after what was launched before.

        Until it is over nobody may read them.
        """
        return self._up.put(pages, source, None)

    def turn(self) -> None:
        """On a CPU, move what the oldest job of each way names."""
        for way in (self._down, self._up):
            if isinstance(way, _Turns):
                way.turn()


class _Turns:
    """One direction on a CPU."""

    def __init__(self, pool: GuestPool, move: Callable[[Sequence[int], Tensor], None]) -> None:
        self._move = move
        self._jobs = deque[Job]()

    def put(self, pages: Sequence[int], host: Tensor, then: Callable[[], None] | None) -> Job:
        job = Job(pages, host, None, then)
        self._jobs.append(job)
        return job

    def turn(self) -> None:
        if self._jobs:
            self._jobs.popleft().run(lambda job: self._move(job.pages, job.host))


class _Way:
    """One direction on a GPU: a thread, a stream, and blocks of pinned memory in turn."""

    def __init__(self, pool: GuestPool, make: "Callable[[GuestPool], _Pinned]") -> None:
        self._jobs = SimpleQueue[Job]()
        self._pinned = make(pool)
        # A daemon, so that a transfer cannot keep the process from ending.
        threading.Thread(target=self._run, name="wkvm-pages", daemon=True).start()

    def put(self, pages: Sequence[int], host: Tensor, then: Callable[[], None] | None) -> Job:
        after = torch.cuda.Event()  # type: ignore[no-untyped-call]
        after.record()
        job = Job(pages, host, after, then)
        self._jobs.put(job)
        return job

    def _run(self) -> None:
        while True:
            self._jobs.get().run(self._pinned.move)


class _Pinned:
    """Blocks of pinned memory, each with the event after which it may be used again."""

    def __init__(self, pool: GuestPool) -> None:
        self._page_bytes = pool.spec.page_bytes
        self._device = pool.page_bytes.view(-1)
        self._stream = stream_beside_graphs()
        blocks = torch.empty(N_BLOCKS, BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
        # Blocking: a thread that waits must not take a core from those that plan and launch.
        self._blocks = [(one, torch.cuda.Event(blocking=True)) for one in blocks]  # type: ignore[no-untyped-call]

    def move(self, job: Job) -> None:
        """Carry out a job; it is over when this returns."""
        with torch.cuda.stream(self._stream):
            if job.after is not None:
                self._stream.wait_event(job.after)
            self._move(job)
        for _, event in self._blocks:
            event.synchronize()

    def _move(self, job: Job) -> None:
        raise NotImplementedError

    def _pieces(self, pages: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """What of the pool goes to or from what of the host at once: both starts, and how much."""
        size = self._page_bytes
        for at, first, n in runs(pages):
            for start in range(0, n * size, BLOCK_BYTES):
                yield first * size + start, at * size + start, min(n * size - start, BLOCK_BYTES)


class _PinnedDown(_Pinned):
    def _move(self, job: Job) -> None:
        full = deque[tuple[int, int, int]]()
        for number, (there, here, n) in enumerate(self._pieces(job.pages)):
            if len(full) == N_BLOCKS:
                self._empty(job, *full.popleft())
            which = number % N_BLOCKS
            block, event = self._blocks[which]
            block[:n].copy_(self._device[there : there + n], non_blocking=True)
            event.record()
            full.append((which, here, n))
        while full:
            self._empty(job, *full.popleft())

    def _empty(self, job: Job, which: int, here: int, n: int) -> None:
        block, event = self._blocks[which]
        event.synchronize()
        job.host[here : here + n].copy_(block[:n])


class _PinnedUp(_Pinned):
    def _move(self, job: Job) -> None:
        for number, (there, here, n) in enumerate(self._pieces(job.pages)):
            block, event = self._blocks[number % N_BLOCKS]
            event.synchronize()  # at once, if it was never recorded
            block[:n].copy_(job.host[here : here + n])
            self._device[there : there + n].copy_(block[:n], non_blocking=True)
            event.record()
