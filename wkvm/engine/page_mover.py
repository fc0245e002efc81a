"""Pages of a guest between a device and host memory, beside the steps, by threads.

A session of many tokens has gigabytes of pages: to send them takes as long as many steps, and so
would it take to pin as much memory. So an image is ordinary memory. A thread for each way moves it
through a few pinned blocks, on a queue of the device of its own, with others that copy between
these and the image: whoever launches steps says which pages, and asks later whether they are there.
Pages that are on their way are nobody else's
(``wkvm.core.guests``), and nobody writes to them.

On a CPU, where this is for tests, a turn moves what one job names.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.kernels.streams import stream_beside_graphs
from wkvm.state.guest import GuestPool, runs

logger = logging.getLogger(__name__)

BLOCK_BYTES = 8 * 2**20
"""What crosses the bus at once: enough for its full rate."""

N_BLOCKS = 8
"""For each way, pinned: while some are on the bus, processors fill or empty others."""

N_HANDS = 4
"""Threads of each way that fill or empty them."""


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
    """One direction on a GPU: a thread that launches, a stream, and what ``_Pinned`` has."""

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


class _Hands:
    """Threads that copy within host memory: one alone reaches a fifth of what the bus does."""

    def __init__(self) -> None:
        self._tasks = SimpleQueue[tuple[Future[None], Callable[[], None]]]()
        for number in range(N_HANDS):
            name = f"wkvm-pages-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, task: Callable[[], None]) -> Future[None]:
        """Have it done; what it raises is in the result."""
        done = Future[None]()
        self._tasks.put((done, task))
        return done

    def _run(self) -> None:
        while True:
            done, task = self._tasks.get()
            try:
                with torch.inference_mode():
                    task()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - whoever waits raises it
                done.set_exception(error)


Piece: TypeAlias = tuple[int, int, int, int]
"""Where bytes begin in the pool, in the job's host memory and in a block, and how many they are."""


@dataclass(slots=True, eq=False)
class _Block:
    """Pinned memory of ``BLOCK_BYTES``.

    Attributes:
        event: recorded after the copies over the bus.
        in_hand: what a hand has to do with it.
    """

    memory: Tensor
    event: torch.cuda.Event
    in_hand: Future[None] | None = None

    def settle(self) -> None:
        """Wait for the hand; raise what it raised."""
        if self.in_hand is not None:
            in_hand, self.in_hand = self.in_hand, None
            in_hand.result()


class _Pinned:
    """Blocks of pinned memory in turn, between the bus and the hands."""

    def __init__(self, pool: GuestPool) -> None:
        self._page_bytes = pool.spec.page_bytes
        self._device = pool.page_bytes.view(-1)
        self._stream = stream_beside_graphs()
        self._hands = _Hands()
        blocks = torch.empty(N_BLOCKS, BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
        # Blocking: a thread that waits must not take a core from those that plan and launch.
        self._blocks = [_Block(one, torch.cuda.Event(blocking=True)) for one in blocks]  # type: ignore[no-untyped-call]

    def move(self, job: Job) -> None:
        """Carry out a job; it is over when this returns."""
        with torch.cuda.stream(self._stream):
            if job.after is not None:
                self._stream.wait_event(job.after)
            try:
                self._move(job)
                for block in self._blocks:
                    block.settle()
            finally:
                # Whatever went wrong, nobody has a hand in the job's memory any more.
                wait(block.in_hand for block in self._blocks if block.in_hand is not None)
                for block in self._blocks:
                    block.in_hand = None
                    block.event.synchronize()

    def _move(self, job: Job) -> None:
        raise NotImplementedError

    def _loads(self, pages: Sequence[int]) -> Iterator[list[Piece]]:
        """What goes into one block after the other."""
        size, load, filled = self._page_bytes, list[Piece](), 0
        for at, first, n in runs(pages):
            there, here, left = first * size, at * size, n * size
            while left:
                some = min(left, BLOCK_BYTES - filled)
                load.append((there, here, filled, some))
                there, here, left, filled = there + some, here + some, left - some, filled + some
                if filled == BLOCK_BYTES:
                    yield load
                    load, filled = [], 0
        if load:
            yield load


class _PinnedDown(_Pinned):
    def _move(self, job: Job) -> None:
        for number, load in enumerate(self._loads(job.pages)):
            block = self._blocks[number % N_BLOCKS]
            block.settle()
            for there, _, at, n in load:
                block.memory[at : at + n].copy_(self._device[there : there + n], non_blocking=True)
            block.event.record(self._stream)
            block.in_hand = self._hands.do(partial(_empty, block, job.host, load))


def _empty(block: _Block, host: Tensor, load: list[Piece]) -> None:
    block.event.synchronize()
    for _, here, at, n in load:
        host[here : here + n].copy_(block.memory[at : at + n])


class _PinnedUp(_Pinned):
    def _move(self, job: Job) -> None:
        loads = enumerate(self._loads(job.pages))
        waiting = deque[tuple[_Block, list[Piece]]]()
        for number, load in loads:
            if len(waiting) == N_BLOCKS:
                self._send(*waiting.popleft())
            block = self._blocks[number % N_BLOCKS]
            block.in_hand = self._hands.do(partial(_fill, block, job.host, load))
            waiting.append((block, load))
        while waiting:
            self._send(*waiting.popleft())

    def _send(self, block: _Block, load: list[Piece]) -> None:
        block.settle()
        for there, _, at, n in load:
            self._device[there : there + n].copy_(block.memory[at : at + n], non_blocking=True)
        block.event.record(self._stream)


def _fill(block: _Block, host: Tensor, load: list[Piece]) -> None:
    block.event.synchronize()  # at once, if it was never recorded
    for _, here, at, n in load:
        block.memory[at : at + n].copy_(host[here : here + n])
