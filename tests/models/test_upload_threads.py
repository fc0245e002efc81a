"""What brings weights to a GPU, with the CPU in its place: threads, chunks, and files that fail."""

import errno
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Tiny, random_weights, write_folder
from wkvm.core.errors import CorruptCheckpointError
from wkvm.models import upload
from wkvm.models.safetensors_file import StoredTensor
from wkvm.models.upload import uploaded
from wkvm.models.weights import open_checkpoint


class AtOnce:
    """A stream or an event of a device that has done everything at once."""

    def synchronize(self) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait_event(self, event: object) -> None: ...


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    empty: Callable[..., Tensor] = torch.empty

    def unpinned(*shape: Any, pin_memory: bool = False, **more: Any) -> Tensor:
        del pin_memory
        return empty(*shape, **more)

    monkeypatch.setattr(torch, "empty", unpinned)
    monkeypatch.setattr(torch.cuda, "Stream", AtOnce)
    monkeypatch.setattr(torch.cuda, "Event", AtOnce)
    monkeypatch.setattr(torch.cuda, "current_stream", AtOnce)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(upload, "CHUNK_BYTES", 64)


def stored(path: Path, sizes: list[int]) -> list[StoredTensor | Tensor]:
    tensors, start = list[StoredTensor | Tensor](), 0
    for size in sizes:
        tensors.append(StoredTensor(path, torch.uint8, (size,), start, start + size))
        start += size
    return tensors


@pytest.mark.parametrize("ahead", [1, 300, 1 << 20])
def test_every_byte_arrives_in_order(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "AHEAD_BYTES", ahead)
    rng = random.Random(ahead)
    data, path = rng.randbytes(5000), tmp_path / "file"
    path.write_bytes(data)
    sizes = [0, 1, 63, 64, 65, 128, 1000, 0, 700]
    tensors = stored(path, sizes)
    matrix = torch.arange(60, dtype=torch.float32).view(5, 12)
    arrived = list(uploaded([*tensors, matrix.T, torch.tensor(7.0)], 5000, device="cpu"))
    assert b"".join(bytes(one.tolist()) for one in arrived[:-2]) == data[: sum(sizes)]
    assert torch.equal(arrived[-2], matrix.T)
    assert arrived[-1] == torch.tensor(7.0)


def test_a_file_that_ends_early_is_named_and_nothing_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    n_open = len(os.listdir("/proc/self/fd"))
    arriving = uploaded(stored(path, [60, 500]), 560, device="cpu")
    assert next(arriving).shape == (60,)
    with pytest.raises(CorruptCheckpointError, match="became shorter"):
        next(arriving)
    assert len(os.listdir("/proc/self/fd")) <= n_open


def test_a_disk_that_fails_is_a_checkpoint_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CorruptCheckpointError, match="Input/output"):
        list(uploaded(stored(path, [500, 500]), 1000, device="cpu"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_file_that_is_gone_when_its_data_is_wanted_is_named(tmp_path: Path, device: str) -> None:
    tiny = Tiny()
    folder = write_folder(tmp_path / "model", tiny, random_weights(tiny))
    checkpoint = open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors: cannot be read"):
        list(checkpoint.load_all(list(checkpoint.stored)[:2], device))
    with pytest.raises(CorruptCheckpointError, match="cannot be read"):
        checkpoint.digest()
