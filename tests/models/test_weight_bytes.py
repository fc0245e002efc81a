"""How many bytes the weights of a model take, said before there are any."""

from pathlib import Path

import pytest
import torch

from tests.models.tiny_rwkv7 import Tiny, random_weights, write_pth
from wkvm.core.errors import ConfigError
from wkvm.kernels.weight import quantised
from wkvm.models.registry import load_model
from wkvm.models.rwkv7_params import load_parameters, read_shape, weight_bytes
from wkvm.models.weights import open_checkpoint

LARGE = ("receptance.weight", "key.weight", "value.weight", "output.weight")
FIRST_STAGES = ("att.w1", "att.a1", "att.v1", "att.g1")


@pytest.mark.parametrize("quantization", ["none", "fp8", "int8"])
def test_weights_take_the_bytes_that_are_said(tmp_path: Path, quantization: str) -> None:
    checkpoint = open_checkpoint(write_pth(tmp_path / "tiny.pth", random_weights(Tiny())))
    shape = read_shape(checkpoint)
    n_bytes = 0
    for name, tensor in load_parameters(checkpoint, shape):
        matrix = tensor.to(torch.bfloat16)
        if name.endswith(LARGE):
            n_bytes += quantised(matrix, quantization).nbytes
        elif name.endswith(FIRST_STAGES):
            n_bytes += quantised(matrix.t(), quantization).nbytes
        else:
            n_bytes += matrix.nbytes
    assert weight_bytes(shape, 2, quantization) == n_bytes


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_a_cpu_refuses_quantised_weights(tmp_path: Path, quantization: str) -> None:
    path = write_pth(tmp_path / "tiny.pth", random_weights(Tiny()))
    with pytest.raises(ConfigError, match="needs a GPU"):
        load_model(path, device="cpu", quantization=quantization)
