"""Weights straight to a GPU: the same bytes as by way of the CPU, and files that end early."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Tiny, random_weights, write_folder, write_pth
from wkvm.core.errors import CorruptCheckpointError
from wkvm.models import upload
from wkvm.models.rwkv7_params import load_parameters, read_shape
from wkvm.models.safetensors_file import StoredTensor
from wkvm.models.upload import uploaded
from wkvm.models.weights import open_checkpoint

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["folder", "pth"])
@pytest.mark.parametrize("ahead", [1, 1 << 20])
def test_parameters_on_a_gpu_are_those_on_the_cpu(
    tmp_path: Path, kind: str, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Tiny(width=128, ffn_width=320)
    weights = {name: tensor.bfloat16() for name, tensor in random_weights(tiny).items()}
    path = (
        write_folder(tmp_path / "model", tiny, weights)
        if kind == "folder"
        else write_pth(tmp_path / "model.pth", weights)
    )
    # Several chunks a tensor, the last of them short.
    monkeypatch.setattr(upload, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(upload, "AHEAD_BYTES", ahead)
    checkpoint = open_checkpoint(path)
    shape = read_shape(checkpoint)
    on_cpu = dict(load_parameters(checkpoint, shape))
    on_gpu = dict(load_parameters(checkpoint, shape, "cuda"))
    assert on_gpu.keys() == on_cpu.keys()
    for name, tensor in on_gpu.items():
        assert tensor.is_cuda
        assert tensor.dtype == on_cpu[name].dtype
        assert torch.equal(tensor.cpu(), on_cpu[name]), name


def test_a_file_that_ends_early_is_a_corrupt_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    tensors: list[StoredTensor | Tensor] = [
        StoredTensor(path, torch.uint8, (60,), 0, 60),
        StoredTensor(path, torch.uint8, (60,), 60, 120),
    ]
    arriving = uploaded(tensors, 120)
    assert next(arriving).shape == (60,)
    with pytest.raises(CorruptCheckpointError):
        next(arriving)
