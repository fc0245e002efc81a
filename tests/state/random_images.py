"""Images of small random states."""

import torch

from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.core.registry import Carried, Identity, SamplerMemory
from wkvm.state.image import StateImage

N_LAYERS, N_HEADS, HEAD, WIDTH = 3, 2, 4, 8


def layout(dtype: str = "float32", *, ring: bool = False) -> StateLayout:
    tensors = [
        TensorSpec("rwkv7.wkv", (N_LAYERS, N_HEADS, HEAD, HEAD), dtype),
        TensorSpec("rwkv7.att_shift", (N_LAYERS, WIDTH), "float32"),
        TensorSpec("rwkv7.ffn_shift", (N_LAYERS, WIDTH), "float32"),
    ]
    if ring:
        tensors.append(TensorSpec("rwkv7.ring", (N_LAYERS, N_HEADS, 7, 4, HEAD), "float32"))
        tensors.append(TensorSpec("rwkv7.ring_fill", (1,), "int32"))
    return StateLayout(tuple(tensors))


def image(
    seed: int = 0,
    dtype: str = "float32",
    *,
    ring: bool = False,
    waiting: int = 0,
    model: str = "aa",
    n_computed: int = 5,
) -> StateImage:
    """A random state; with ``waiting`` tokens in its ring, the other entries NaN."""
    of = layout(dtype, ring=ring)
    made = StateImage(
        identity=Identity(model_digest=model, fingerprint=of.fingerprint, tokenizer_digest="bb"),
        layout=of,
        carried=Carried(
            n_computed=n_computed,
            pending=(3,),
            sampler=SamplerMemory(seed=seed, branch=0, position=2, seen=(1, 3)),
        ),
        token_ids=torch.arange(seed, seed + n_computed, dtype=torch.int32).numpy().tobytes(),
        record=torch.zeros(of.record_bytes, dtype=torch.uint8),
    )
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in made.views().items():
        if name == "rwkv7.ring_fill":
            tensor.fill_(waiting)
        elif name == "rwkv7.ring":
            tensor.fill_(torch.nan)
            tensor[:, :, :waiting] = 1.0
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=draw))
    return made
