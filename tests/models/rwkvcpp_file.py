"""Reading the weight files of rwkv.cpp, so that its golden data can be compared with."""

import struct
from pathlib import Path

import torch
from torch import Tensor

_DTYPES = {0: torch.float32, 1: torch.float16}


def read_rwkvcpp(path: Path) -> dict[str, Tensor]:
    """The tensors under BlinkDL's names and in his shapes, float32."""
    data = bytearray(path.read_bytes())
    magic, version, *_ = struct.unpack_from("<6i", data)
    assert (magic, version) == (0x67676D66, 101)
    at, tensors = 24, dict[str, Tensor]()
    while at < len(data):
        n_axes, n_key, kind = struct.unpack_from("<3i", data, at)
        shape = struct.unpack_from(f"<{n_axes}i", data, at + 12)[::-1]
        at += 12 + 4 * n_axes
        name = data[at : at + n_key].decode()
        at += n_key
        dtype, count = _DTYPES[kind], 1
        for n in shape:
            count *= n
        tensor = torch.frombuffer(data, dtype=dtype, count=count, offset=at)
        tensors[name] = tensor.view(shape).float()
        at += count * dtype.itemsize
    return _in_blink_shapes(tensors)


def _in_blink_shapes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    blink = dict[str, Tensor]()
    for name, tensor in tensors.items():
        prefix, _, leaf = name.rpartition(".")
        if leaf == "x_rwkvag":
            for letter, mix in zip("rwkvag", tensor.view(6, -1), strict=True):
                blink[f"{prefix}.x_{letter}"] = mix.clone()
        elif len(leaf) == 2 and leaf[0] in "wavg" and leaf[1] in "12":
            blink[name] = tensor.t().contiguous()
        elif leaf == "r_k":
            blink[name] = tensor.reshape(-1, 64).clone()
        else:
            blink[name] = tensor.clone()
    return blink
