"""Images of small random states."""

import torch

from wkvm.core.layout import (
    GUEST_PAGES,
    GUEST_TOKENS,
    GuestSpec,
    StateLayout,
    TensorSpec,
    guest_tokens,
)
from wkvm.core.registry import Carried, Identity, SamplerMemory
from wkvm.state.guest import tail_of
from wkvm.state.image import StateImage

N_LAYERS, N_HEADS, HEAD, WIDTH = 3, 2, 4, 8


W = 4
"""Inputs that a convolution sees at once."""

FAMILIES = {
    "rwkv7": (("wkv", (N_HEADS, HEAD, HEAD)), ("att_shift", (WIDTH,)), ("ffn_shift", (WIDTH,))),
    "mamba2": (("ssm", (N_HEADS, HEAD, 6)), ("conv", (W - 1, WIDTH))),
    "gdn": (("delta", (N_HEADS, HEAD, 6)), ("conv", (W - 1, WIDTH))),
    "kda": (("delta", (N_HEADS, HEAD, HEAD)), ("conv", (W - 1, WIDTH))),
}
"""Of each family its matrices and then its shifts: names, and shapes of a layer."""

GUEST = GuestSpec(n_layers=2, n_parts=2, n_heads=3, head_dim=2, dtype="float32")
KINDS = [*FAMILIES, "mamba2+guest", "gdn+guest"]


def layout(dtype: str = "float32", *, ring: bool = False, kind: str = "rwkv7") -> StateLayout:
    family, _, guest = kind.partition("+")
    tensors = [
        TensorSpec(f"{family}.{name}", (N_LAYERS, *shape), dtype if at == 0 else "float32")
        for at, (name, shape) in enumerate(FAMILIES[family])
    ]
    if ring:
        tensors.append(TensorSpec("rwkv7.ring", (N_LAYERS, N_HEADS, 7, 4, HEAD), "float32"))
        tensors.append(TensorSpec("rwkv7.ring_fill", (1,), "int32"))
    if guest:
        return StateLayout((*tensors, guest_tokens()), GUEST)
    return StateLayout(tuple(tensors))


def image(
    seed: int = 0,
    dtype: str = "float32",
    *,
    ring: bool = False,
    waiting: int = 0,
    model: str = "aa",
    n_computed: int = 5,
    kind: str = "rwkv7",
    pages: int | None = None,
) -> StateImage:
    """A random state; with ``waiting`` tokens in its ring, the other entries NaN.

    Args:
        pages: the seed of its pages, where that is another one.
    """
    of = layout(dtype, ring=ring, kind=kind)
    made = StateImage(
        identity=Identity(model_digest=model, fingerprint=of.fingerprint, tokenizer_digest="bb"),
        layout=of,
        carried=Carried(
            n_computed=n_computed,
            pending=(3,),
            sampler=SamplerMemory(seed=seed, branch=0, position=2, seen=(1, 3)),
        ),
        token_ids=torch.arange(seed, seed + n_computed, dtype=torch.int32).numpy().tobytes(),
        record=torch.zeros(of.image_bytes(n_computed), dtype=torch.uint8),
    )
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in made.views().items():
        if name == "rwkv7.ring_fill":
            tensor.fill_(waiting)
        elif name == "rwkv7.ring":
            tensor.fill_(torch.nan)
            tensor[:, :, :waiting] = 1.0
        elif name == GUEST_TOKENS:
            tensor.fill_(n_computed)
        elif name == GUEST_PAGES:
            of_pages = torch.Generator().manual_seed(seed if pages is None else pages)
            tensor.copy_(torch.randn(tensor.shape, generator=of_pages))
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=draw))
    if (tail := tail_of(of, made.record, n_computed)) is not None:
        tail.zero_()
    return made
