"""Numbers to a device and back without waiting for it.

Both ways go through pinned memory, which torch keeps for reuse until the device is done with it.
On a CPU, where nothing is to be waited for, these are plain tensors.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from wkvm.kernels.streams import stream_beside_graphs

NUMPY_DTYPES = {torch.int64: np.int64, torch.int32: np.int32, torch.bool: np.bool_}
"""What is sent; numpy reads a list four times as fast as torch does."""


class Mark:
    """A point in the work of a device."""

    def __init__(
        self, event: torch.cuda.Event | None, spent: list[torch.cuda.Event] | None = None
    ) -> None:
        """``spent`` takes the event once it was waited for, to be used again."""
        self._event = event
        self._spent = spent

    def wait(self) -> None:
        """Wait until the device has come here. Other threads of the process run meanwhile.

        Once; a second call returns at once.
        """
        if self._event is not None:
            self._event.synchronize()
            if self._spent is not None:
                self._spent.append(self._event)
            self._event = None


class Transfers:
    """Transfers between the host and one device, in the order of the device's other work."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._is_gpu = device != "cpu"
        self._events = list[torch.cuda.Event]()
        self._copies = list[Tensor]()

    def up(self, numbers: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """Numbers as a tensor on the device."""
        host = torch.from_numpy(np.array(numbers, dtype=NUMPY_DTYPES[dtype]))
        if self._is_gpu:
            host = host.pin_memory()
        return host.to(self._device, non_blocking=True)

    def words_up(self, rows: Sequence[bytes], n_words: int) -> Tensor:
        """``[n, n_words]`` int32 of ``n`` strings of bytes, each filled up with zeros.

        The first byte is the lowest of the first word.
        """
        host = torch.zeros(len(rows), n_words * 4, dtype=torch.uint8, pin_memory=self._is_gpu)
        for row, given in zip(host, rows, strict=True):
            row[: len(given)] = torch.frombuffer(bytearray(given), dtype=torch.uint8)
        return host.view(torch.int32).to(self._device, non_blocking=True)

    def down(self, tensor: Tensor) -> Tensor:
        """A copy on the host: complete once a later ``mark`` was waited for."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._is_gpu)
        return host.copy_(tensor, non_blocking=True)

    def down_again(self, tensor: Tensor) -> Tensor:
        """As ``down``, for a tensor that is sent in every step: see ``give_back``."""
        if not self._copies:
            return self.down(tensor)
        return self._copies.pop().copy_(tensor, non_blocking=True)

    def give_back(self, copy: Tensor) -> None:
        """Have a copy that ``down_again`` made, and that was read, overwritten by the next one."""
        self._copies.append(copy)

    def mark(self) -> Mark:
        """The end of what was launched so far, in the queue that is current.

        Who waits for it sleeps: a thread that waits for a step must not take a core from the one
        that plans.
        """
        if not self._is_gpu:
            return Mark(None)
        events = self._events
        event = events.pop() if events else torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return Mark(event, events)


class Beside:
    """A second queue of work for the device, which runs beside what is launched meanwhile.

    On a CPU one thing is done after the other.
    """

    def __init__(self, device: str) -> None:
        is_gpu = device != "cpu"
        self._stream = stream_beside_graphs() if is_gpu else None

    def begin(self) -> None:
        """What is queued from here on comes after all that was launched before."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Within, what is launched is queued here."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.stream(self._stream):
                yield

    def join(self) -> None:
        """What is launched from here on comes after all that was queued."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
