"""Models that the tools for a GPU run: released shapes with random weights, and the bundled one."""

from pathlib import Path

import torch
from torch import Tensor

from wkvm.models.rwkv7_params import Rwkv7Shape

BUNDLED = Path(__file__).resolve().parents[1] / "wkvm/bundled/rwkv7-tinystories"


def shape_of(name: str, n_layers: int | None = None) -> Rwkv7Shape:
    """One of the shapes of released models."""
    L, C, ranks = {
        "1.5B": (24, 2048, (96, 96, 64, 256)),
        "7.2B": (32, 4096, (128, 128, 96, 480)),
    }[name]
    return Rwkv7Shape(
        vocab_size=65536,
        n_layers=n_layers or L,
        width=C,
        n_heads=C // 64,
        head_size=64,
        ffn_width=4 * C,
        ranks=dict(zip("wavg", ranks, strict=True)),
        layer_norm_eps=1e-5,
        group_norm_eps=64e-5,
        tied=False,
        n_parameters=0,
    )


def random_parameters(shape: Rwkv7Shape, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    """Parameters on the GPU as ``load_parameters`` yields them."""
    C, F, V = shape.width, shape.ffn_width, shape.vocab_size
    draw = torch.Generator("cuda").manual_seed(seed)
    p: dict[str, Tensor] = {}

    def normal(name: str, *size: int, std: float, mean: float = 0.0) -> None:
        values = torch.randn(*size, generator=draw, device="cuda", dtype=torch.float32)
        p[name] = (values * std + mean).to(dtype)

    def norm(name: str) -> None:
        normal(f"{name}.weight", C, std=0.1, mean=1.0)
        normal(f"{name}.bias", C, std=0.1)

    normal("emb.weight", V, C, std=0.5)
    normal("head.weight", V, C, std=C**-0.5)
    norm("blocks.0.ln0")
    norm("ln_out")
    for index in range(shape.n_layers):
        block = f"blocks.{index}"
        att = f"{block}.att"
        norm(f"{block}.ln1")
        norm(f"{block}.ln2")
        norm(f"{att}.ln_x")
        p[f"{att}.x"] = torch.rand(6, C, generator=draw, device="cuda").to(dtype)
        p[f"{block}.ffn.x_k"] = torch.rand(C, generator=draw, device="cuda").to(dtype)
        for letter, rank in shape.ranks.items():
            if letter == "v" and index == 0:
                continue
            normal(f"{att}.{letter}1", C, rank, std=C**-0.5)
            normal(f"{att}.{letter}2", rank, C, std=rank**-0.5)
        normal(f"{att}.w0", C, std=1.5, mean=-2.0)
        normal(f"{att}.a0", C, std=0.5)
        if index:
            normal(f"{att}.v0", C, std=0.5)
        normal(f"{att}.k_k", C, std=0.2, mean=0.7)
        normal(f"{att}.k_a", C, std=0.1, mean=1.0)
        normal(f"{att}.r_k", C, std=0.2)
        for name in ("receptance", "key", "value", "output"):
            normal(f"{att}.{name}.weight", C, C, std=C**-0.5)
        normal(f"{block}.ffn.key.weight", F, C, std=C**-0.5)
        normal(f"{block}.ffn.value.weight", C, F, std=F**-0.5)
    return p
