"""Tensors of a checkpoint straight to a GPU: read by several threads, through pinned memory.

What is on the way is bounded, on the host and on the device, whatever the size of the checkpoint.
"""

import logging
import os
import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError
from wkvm.models.safetensors_file import StoredTensor, reading

logger = logging.getLogger("wkvm.models")

N_THREADS = 4
CHUNK_BYTES = 16 << 20
"""Read and copied at a time. There are two pinned buffers of this size for each thread."""

AHEAD_BYTES = 512 << 20
"""Of tensors that are on their way to the device at a time, if one alone is not larger."""

PROGRESS_S = 2.0
"""How often it is logged how far loading is."""


def uploaded(
    tensors: Iterable[StoredTensor | Tensor], n_bytes: int, *, device: str = "cuda"
) -> Iterator[Tensor]:
    """Each tensor on the device, contiguous and in the dtype it is stored in, in the order given.

    Those on the CPU are mapped files. The stream that is current at ``next`` may use the tensor at
    once.

    Args:
        tensors: whatever order suits; reading is fastest in the order of the files.
        n_bytes: of all of them, for the log.
        device: a GPU.

    Raises:
        CorruptCheckpointError: a file ends before one of its tensors does, or cannot be read.
    """
    progress = _Progress(n_bytes)
    with _Uploader(device) as uploader:
        waiting = deque[_Arriving]()
        n_ahead = 0
        for tensor in tensors:
            while waiting and n_ahead + _nbytes(tensor) > AHEAD_BYTES:
                arriving = waiting.popleft()
                n_ahead -= arriving.bytes.nbytes
                yield arriving.wait()
                progress.add(arriving.bytes.nbytes)
            waiting.append(uploader.send(tensor))
            n_ahead += waiting[-1].bytes.nbytes
        while waiting:
            arriving = waiting.popleft()
            yield arriving.wait()
            progress.add(arriving.bytes.nbytes)
    progress.done()


def _nbytes(tensor: StoredTensor | Tensor) -> int:
    return tensor.stop - tensor.start if isinstance(tensor, StoredTensor) else tensor.nbytes


class _Progress:
    """Says in the log how far it is."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes
        self._n_done = 0
        self._began = self._said = time.monotonic()

    def add(self, n_bytes: int) -> None:
        self._n_done += n_bytes
        now = time.monotonic()
        if now - self._said >= PROGRESS_S:
            self._said = now
            percent = 100 * self._n_done // max(self._n_bytes, 1)
            logger.info("weights: %d%% of %.1f GB", percent, self._n_bytes / 1e9)

    def done(self) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = self._n_done / seconds / 1e9
        logger.info("weights: %.1f GB in %.1f s, %.1f GB/s", self._n_done / 1e9, seconds, rate)


@dataclass(frozen=True, slots=True)
class _Arriving:
    """A tensor on its way.

    Attributes:
        bytes: of it, on the device.
        dtype, shape: what they are.
        chunks: of each, the event that its copy is done.
    """

    bytes: Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple["Future[torch.cuda.Event]", ...]

    def wait(self) -> Tensor:
        """The tensor, for the current stream."""
        stream = torch.cuda.current_stream()
        for chunk in self.chunks:
            stream.wait_event(chunk.result())
        return self.bytes.view(self.dtype).view(self.shape)


class _Uploader:
    """Threads that read, pinned buffers that are read into, and a stream that copies from them."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = ThreadPoolExecutor(N_THREADS, "wkvm-upload")
        self._files = dict[Path, int]()
        self._buffers: queue.SimpleQueue[tuple[Tensor, torch.cuda.Event]] = queue.SimpleQueue()
        for _ in range(2 * N_THREADS):
            buffer = torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
            self._buffers.put((buffer, torch.cuda.Event()))  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Who stops asking early, as after an error, must not wait for all that was to come.
        self._pool.shutdown(cancel_futures=True)
        self._stream.synchronize()
        for descriptor in self._files.values():
            os.close(descriptor)

    def send(self, tensor: StoredTensor | Tensor) -> _Arriving:
        """Begin to bring a tensor to the device."""
        source: Tensor | None = None
        if isinstance(tensor, StoredTensor):
            if tensor.path not in self._files:
                with reading(tensor.path):
                    self._files[tensor.path] = os.open(tensor.path, os.O_RDONLY)
        else:
            source = tensor.contiguous().flatten().view(torch.uint8)
        on_device = torch.empty(_nbytes(tensor), dtype=torch.uint8, device=self._device)
        # The memory may have been somebody's whose last kernel still runs.
        is_ours = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_ours.record()
        chunks = tuple(
            self._pool.submit(self._copy, tensor, source, on_device, at, is_ours)
            for at in range(0, on_device.nbytes, CHUNK_BYTES)
        )
        return _Arriving(on_device, tensor.dtype, tuple(tensor.shape), chunks)

    def _copy(
        self,
        tensor: StoredTensor | Tensor,
        source: Tensor | None,
        on_device: Tensor,
        at: int,
        is_ours: torch.cuda.Event,
    ) -> torch.cuda.Event:
        """In a thread: one chunk, from byte ``at`` of the tensor on."""
        n_bytes = min(CHUNK_BYTES, on_device.nbytes - at)
        buffer, copied = self._buffers.get()
        try:
            copied.synchronize()
            if isinstance(tensor, StoredTensor):
                _read(tensor, self._files[tensor.path], at, buffer[:n_bytes])
            elif source is not None:
                buffer[:n_bytes].copy_(source[at : at + n_bytes])
            # Of both kinds of tensor, whichever the caller's are.
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                self._stream.wait_event(is_ours)
                on_device[at : at + n_bytes].copy_(buffer[:n_bytes], non_blocking=True)
                copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                copied.record(self._stream)
        finally:
            self._buffers.put((buffer, copied))
        return copied


def _read(tensor: StoredTensor, descriptor: int, at: int, buffer: Tensor) -> None:
    """Fill a buffer from byte ``at`` of a tensor on.

    Raises:
        CorruptCheckpointError: the file ends before, or cannot be read.
    """
    view, n_read = memoryview(buffer.numpy()), 0  # type: ignore[arg-type]
    while n_read < len(view):
        with reading(tensor.path):
            n = os.preadv(descriptor, [view[n_read:]], tensor.start + at + n_read)
        if n == 0:
            why = "the file became shorter while it was read"
            raise CorruptCheckpointError(str(tensor.path), why)
        n_read += n
