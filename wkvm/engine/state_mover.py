"""States between the slots of a device and host memory, beside the steps.

Each way goes through a few buffers on the device. A step waits for a copy within the device alone,
microseconds; what goes over the bus has a queue of its own. Pinned memory is torch's: its
allocator hands a block out again when no tensor holds it and the device is done with it. On a
CPU one copy is made after the other.

A copy of 12.8 MB takes 250 us, and each call of torch that names no stream asks which is current
for 5 of them: calls are few here, and say on which stream.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wkvm.core.saving import MAX_SAVES
from wkvm.engine.transfers import Mark
from wkvm.kernels.streams import stream_beside_graphs

N_BUFFERS = MAX_SAVES
"""For each way. The next state that goes there waits, on the device, for the first of these."""

N_READY = 4 * MAX_SAVES
"""States for which pinned memory is there from the start: more take milliseconds the first time."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A state on its way to the host."""

    record: Tensor
    mark: Mark

    def wait(self) -> Tensor:
        """Wait until it is there; ``[record_bytes]`` uint8."""
        self.mark.wait()
        return self.record


@dataclass(slots=True, eq=False)
class _Buffer:
    """Room for one state on the device.

    Attributes:
        filled: when a state is in it.
        free: when nothing that was queued uses it any more.
        holds: the record on the host that was copied into it last.
    """

    memory: Tensor
    filled: torch.cuda.Event
    free: torch.cuda.Event | None = None
    holds: "weakref.ref[Tensor] | None" = None


@dataclass(slots=True, eq=False)
class _Way:
    """One direction: buffers in turn, and the queue of what goes over the bus."""

    buffers: list[_Buffer]
    stream: torch.cuda.Stream | None
    n_used: int = field(default=0)

    def next(self) -> _Buffer:
        self.n_used += 1
        return self.buffers[self.n_used % len(self.buffers)]


class StateMover:
    """Moves states of ``record_bytes`` between one device and the host. Nothing here waits.

    All of it is launched by one thread, on its current stream: the device's other work there comes
    before a state goes down, and after one went up.

    Args:
        page_bytes: what may go down with a record: the page that is still being written. The full
            ones are the business of ``page_mover``.
    """

    def __init__(self, record_bytes: int, device: str, *, page_bytes: int = 0) -> None:
        self._record_bytes = record_bytes
        self._most_bytes = record_bytes + page_bytes
        self._is_gpu = device != "cpu"
        self._down = self._way(device)
        self._up = self._way(device)
        if self._is_gpu:
            ready = [self._host_record(record_bytes) for _ in range(N_READY)]
            del ready

    def down(self, state: Tensor, page: Tensor | None = None) -> Copy:
        """Send a state to the host, as it is after what was launched before.

        Args:
            state: ``[record_bytes]`` uint8 on the device. What is launched next may overwrite it.
            page: ``[page_bytes]`` uint8 likewise; it comes behind the record.

        Raises:
            RuntimeError: there is no pinned memory.
        """
        parts = (state,) if page is None else (state, page)
        n = sum(map(len, parts))
        host, way = self._host_record(n), self._down
        if way.stream is None:
            _put(parts, host)
            return Copy(host, Mark(None))
        buffer = way.next()
        current = torch.cuda.current_stream()
        if buffer.free is not None:
            current.wait_event(buffer.free)
        _put(parts, buffer.memory)
        buffer.filled.record(current)
        way.stream.wait_event(buffer.filled)
        with torch.cuda.stream(way.stream):
            host.copy_(buffer.memory[:n], non_blocking=True)
        # Who waits for it spins: to be woken would take a third as long as the copy does.
        buffer.free = torch.cuda.Event()  # type: ignore[no-untyped-call]
        buffer.free.record(way.stream)
        return Copy(host, Mark(buffer.free))

    @contextmanager
    def up(self, record: Tensor) -> Iterator[Tensor]:
        """Bring a state to the device. Within, launch what copies it from there.

        The record of one of the last states that went up is not sent again: records never change.
        A record in memory that is not pinned is copied by the host first.

        Args:
            record: uint8 in host memory; the first ``record_bytes`` of it go up.
        """
        way, n = self._up, self._record_bytes
        if way.stream is None:
            yield record[:n]
            return
        current = torch.cuda.current_stream()
        buffer = self._holder(record)
        if buffer is None:
            buffer = way.next()
            pinned = record[:n] if record.is_pinned() else self._host_record(n).copy_(record[:n])
            if buffer.free is not None:
                way.stream.wait_event(buffer.free)
            with torch.cuda.stream(way.stream):
                buffer.memory[:n].copy_(pinned, non_blocking=True)
            buffer.filled.record(way.stream)
            current.wait_event(buffer.filled)
            buffer.holds = weakref.ref(record)
        yield buffer.memory[:n]
        if buffer.free is None:
            buffer.free = torch.cuda.Event()  # type: ignore[no-untyped-call]
        buffer.free.record(current)

    def _holder(self, record: Tensor) -> _Buffer | None:
        for buffer in self._up.buffers:
            if buffer.holds is not None and buffer.holds() is record:
                return buffer
        return None

    def _way(self, device: str) -> _Way:
        if not self._is_gpu:
            return _Way([], None)
        memory = torch.empty(N_BUFFERS, self._most_bytes, dtype=torch.uint8, device=device)
        buffers = [_Buffer(one, torch.cuda.Event()) for one in memory]  # type: ignore[no-untyped-call]
        return _Way(buffers, stream_beside_graphs())

    def _host_record(self, n_bytes: int) -> Tensor:
        # Outside of a step's inference mode: others may write to what they load into it.
        with torch.inference_mode(mode=False):
            whole = torch.empty(self._most_bytes, dtype=torch.uint8, pin_memory=self._is_gpu)
            return whole[:n_bytes]


def _put(parts: Iterable[Tensor], target: Tensor) -> None:
    """Copy tensors to the beginning of another, one behind the other."""
    at = 0
    for part in parts:
        target[at : at + len(part)].copy_(part, non_blocking=True)
        at += len(part)
