"""States between the slots of a device and host memory, beside the steps.

Each way goes through a few buffers on the device. A step waits for a copy within the device alone,
microseconds; what goes over the bus has a queue of its own. Pinned memory is torch's: its
allocator hands a block out again when no tensor holds it and the device is done with it. On a
CPU one copy is made after the other.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wkvm.core.saving import MAX_SAVES
from wkvm.engine.transfers import Mark, Transfers
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
        free: when nothing that was queued uses it any more.
        holds: the record on the host that was copied into it last.
    """

    memory: Tensor
    free: torch.cuda.Event | None
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

    Attributes:
        spins: whether who waits for a copy from now on keeps a core for it: see ``Transfers.mark``.
    """

    def __init__(
        self,
        record_bytes: int,
        device: str,
        transfers: Transfers,
        *,
        page_bytes: int = 0,
        spins: bool = False,
    ) -> None:
        self.spins = spins
        self._record_bytes = record_bytes
        self._most_bytes = record_bytes + page_bytes
        self._is_gpu = device != "cpu"
        self._transfers = transfers
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
            return Copy(host, self._transfers.mark(spins=self.spins))
        buffer = way.next()
        current = torch.cuda.current_stream()
        if buffer.free is not None:
            current.wait_event(buffer.free)
        _put(parts, buffer.memory)
        way.stream.wait_stream(current)
        with torch.cuda.stream(way.stream):
            host.copy_(buffer.memory[:n], non_blocking=True)
            buffer.free = _event(buffer.free)
            return Copy(host, self._transfers.mark(spins=self.spins))

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
            with torch.cuda.stream(way.stream):
                if buffer.free is not None:
                    way.stream.wait_event(buffer.free)
                buffer.memory[:n].copy_(pinned, non_blocking=True)
            buffer.holds = weakref.ref(record)
            current.wait_stream(way.stream)
        yield buffer.memory[:n]
        buffer.free = _event(buffer.free)

    def _holder(self, record: Tensor) -> _Buffer | None:
        for buffer in self._up.buffers:
            if buffer.holds is not None and buffer.holds() is record:
                return buffer
        return None

    def _way(self, device: str) -> _Way:
        if not self._is_gpu:
            return _Way([], None)
        memory = torch.empty(N_BUFFERS, self._most_bytes, dtype=torch.uint8, device=device)
        return _Way([_Buffer(one, None) for one in memory], stream_beside_graphs())

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


def _event(event: torch.cuda.Event | None) -> torch.cuda.Event:
    """The end of what is queued in the current stream; ``event`` is used again."""
    event = torch.cuda.Event() if event is None else event  # type: ignore[no-untyped-call]
    event.record()
    return event
