"""Packing weights: from parameters that come one by one as from all at once."""

import importlib.util
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Tiny, random_weights, write_folder
from wkvm.models.rwkv7_params import load_parameters, read_shape
from wkvm.models.weights import open_checkpoint

# Found, not imported: Triton prints at the end of each process that imported it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_parameters_that_come_one_by_one_are_packed_alike(
    tmp_path: Path, quantization: str
) -> None:
    from wkvm.models.rwkv7_packed import Rwkv7Decode

    tiny = Tiny(n_layers=3)
    checkpoint = open_checkpoint(write_folder(tmp_path, tiny, random_weights(tiny)))
    shape = read_shape(checkpoint)
    whole = Rwkv7Decode(shape, dict(load_parameters(checkpoint, shape)), quantization=quantization)
    single = Rwkv7Decode(shape, load_parameters(checkpoint, shape), quantization=quantization)
    assert torch.equal(whole.table, single.table)
    assert torch.equal(whole.head.values, single.head.values)
    assert torch.equal(whole.vectors, single.vectors)
    for one, other in zip(whole.layers, single.layers, strict=True):
        assert torch.equal(one.first.values, other.first.values)
        assert torch.equal(one.second, other.second)
        assert torch.equal(one.ffn_value.values, other.ffn_value.values)


def test_a_layer_is_dropped_once_it_is_packed(tmp_path: Path) -> None:
    """So the GPU never holds all of a model twice."""
    from wkvm.models.rwkv7_packed import Rwkv7Decode

    tiny = Tiny(n_layers=4)
    checkpoint = open_checkpoint(write_folder(tmp_path, tiny, random_weights(tiny)))
    shape = read_shape(checkpoint)
    alive = list[weakref.ref[Tensor]]()
    most = 0

    def watched() -> Iterator[tuple[str, Tensor]]:
        nonlocal most
        for name, tensor in load_parameters(checkpoint, shape):
            if name.endswith("att.key.weight"):
                alive.append(weakref.ref(tensor))
            most = max(most, sum(ref() is not None for ref in alive))
            yield name, tensor

    Rwkv7Decode(shape, watched())
    assert len(alive) == tiny.n_layers
    assert most <= 2
