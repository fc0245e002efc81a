"""Reading safetensors files that may be damaged.

The file is measured against its own header before a byte of data is read, and it is read, not
mapped: a file that is cut short while it is mapped ends the process with a signal.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The dtypes that weights may have, by their names in the header."""

MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies.

    Attributes:
        path: of the file.
        dtype: as stored.
        shape: as stored.
        start, stop: byte offsets from the start of the file.
    """

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    def load(self) -> Tensor:
        """Read it into memory of its own.

        Raises:
            CorruptCheckpointError: the file ends before the tensor does, or cannot be read.
        """
        tensor = torch.empty(self.stop - self.start, dtype=torch.uint8)
        buffer = memoryview(tensor.numpy())  # type: ignore[arg-type]
        with reading(self.path), self.path.open("rb") as file:
            file.seek(self.start)
            n_read = file.readinto(buffer)
        if n_read != self.stop - self.start:
            raise CorruptCheckpointError(
                str(self.path), "the file became shorter while it was read"
            )
        return tensor.view(self.dtype).view(self.shape)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Within, a file whose headers were read is read again.

    Raises:
        CorruptCheckpointError: the system does not let it, as when the file is gone or the disk
            fails.
    """
    try:
        yield
    except OSError as error:
        raise CorruptCheckpointError(str(path), f"cannot be read: {error}") from error


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by name, without reading their data.

    Raises:
        CorruptCheckpointError: the header is no header, or the file is not as long as its header
            says, or tensors overlap or leave gaps.
        UnsupportedModelError: a tensor's dtype is not one of ``DTYPES``.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        n_header = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or n_header > min(size - 8, MAX_HEADER_BYTES):
            raise CorruptCheckpointError(
                str(path), f"the header does not fit a file of {size} bytes"
            )
        raw = file.read(n_header)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(str(path), f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CorruptCheckpointError(str(path), "the header is not an object")
    header.pop("__metadata__", None)
    tensors = {name: _stored(path, name, entry, 8 + n_header) for name, entry in header.items()}
    end = 8 + n_header
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != end:
            raise CorruptCheckpointError(
                str(path),
                f"{name} starts at byte {tensor.start}, the tensor before it ends at {end}",
            )
        end = tensor.stop
    if end != size:
        raise CorruptCheckpointError(
            str(path), f"the file has {size} bytes, its header describes {end}"
        )
    return tensors


def _stored(path: Path, name: str, entry: Any, data_start: int) -> StoredTensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptCheckpointError(str(path), f"{name}: not a description of a tensor") from error
    numbers = (*shape, start, stop)
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in numbers):
        raise CorruptCheckpointError(str(path), f"{name}: not a description of a tensor")
    if dtype not in DTYPES:
        raise UnsupportedModelError(str(path), f"{name} is of dtype {dtype}")
    if stop - start != prod(shape) * DTYPES[dtype].itemsize:
        raise CorruptCheckpointError(
            str(path), f"{name}: {stop - start} bytes for shape {list(shape)} of {dtype}"
        )
    return StoredTensor(path, DTYPES[dtype], shape, data_start + start, data_start + stop)
