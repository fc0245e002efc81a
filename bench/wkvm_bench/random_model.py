"""Checkpoints of released shapes with random weights: finite, and bounded in all they compute."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a model; ``ranks`` of the low-rank maps w, a, v, g."""

    n_layers: int
    width: int
    vocab_size: int
    ranks: tuple[int, int, int, int]


SIZES = {
    "tiny": Size(2, 128, 512, (32, 32, 32, 64)),
    "0.2B": Size(12, 768, 65_536, (64, 64, 32, 128)),
    "1.5B": Size(24, 2048, 65_536, (96, 96, 64, 256)),
    "7.2B": Size(32, 4096, 65_536, (128, 128, 96, 480)),
}
HEAD_SIZE = 64


def write_suitable(path: Path, *, smoke: bool) -> tuple[str, str]:
    """Write what a benchmark runs on this machine: 1.5B in bfloat16 for a GPU, else a tiny model.

    Returns:
        The device, ``cuda`` or ``cpu``, and which of ``SIZES`` it is.
    """
    device = "cuda" if torch.cuda.is_available() and not smoke else "cpu"
    size, dtype = ("1.5B", torch.bfloat16) if device == "cuda" else ("tiny", torch.float32)
    write_random(path, SIZES[size], dtype=dtype, device=device)
    return device, size


def write_random(path: Path, size: Size, *, dtype: torch.dtype, device: str) -> None:
    """Write a ``.pth`` file under BlinkDL's names.

    Args:
        device: where the numbers are drawn; a GPU takes seconds for billions of them.
    """
    torch.save({name: tensor.to(dtype).cpu() for name, tensor in _weights(size, device)}, path)


def _weights(size: Size, device: str) -> Iterator[tuple[str, Tensor]]:
    C, V = size.width, size.vocab_size
    draw = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, std: float, mean: float = 0.0) -> Tensor:
        return torch.randn(*shape, generator=draw, device=device) * std + mean

    def vector(std: float, mean: float = 0.0) -> Tensor:
        return normal(1, 1, C, std=std, mean=mean)

    def norm(name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", normal(C, std=0.1, mean=1.0)
        yield f"{name}.bias", normal(C, std=0.1)

    yield "emb.weight", normal(V, C, std=0.5)
    yield from norm("blocks.0.ln0")
    for index in range(size.n_layers):
        block = f"blocks.{index}"
        att, ffn = f"{block}.att", f"{block}.ffn"
        yield from norm(f"{block}.ln1")
        yield from norm(f"{block}.ln2")
        for letter in "rwkvag":
            yield f"{att}.x_{letter}", torch.rand(1, 1, C, generator=draw, device=device)
        for letter, rank in zip("wavg", size.ranks, strict=True):
            if letter != "v" or index:
                yield f"{att}.{letter}1", normal(C, rank, std=C**-0.5)
                yield f"{att}.{letter}2", normal(rank, C, std=rank**-0.5)
        yield f"{att}.w0", vector(1.5, -2.0)
        yield f"{att}.a0", vector(0.5)
        if index:
            yield f"{att}.v0", vector(0.5)
        yield f"{att}.k_k", vector(0.2, 0.7)
        yield f"{att}.k_a", vector(0.1, 1.0)
        yield f"{att}.r_k", normal(C // HEAD_SIZE, HEAD_SIZE, std=0.2)
        for name in ("receptance", "key", "value", "output"):
            yield f"{att}.{name}.weight", normal(C, C, std=C**-0.5)
        yield from norm(f"{att}.ln_x")
        yield f"{ffn}.x_k", torch.rand(1, 1, C, generator=draw, device=device)
        yield f"{ffn}.key.weight", normal(4 * C, C, std=C**-0.5)
        yield f"{ffn}.value.weight", normal(C, 4 * C, std=(4 * C) ** -0.5)
    yield from norm("ln_out")
    yield "head.weight", normal(V, C, std=C**-0.5)


_PARTS = {
    "ln0": "pre_norm",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "att.ln_x": "attn.g_norm",
    "att.receptance": "attn.r_proj",
    "att.key": "attn.k_proj",
    "att.value": "attn.v_proj",
    "att.output": "attn.o_proj",
}
_WHOLE = {"emb": "model.embeddings", "ln_out": "model.norm", "head": "lm_head"}
_LOW_RANK = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}


def write_random_folder(folder: Path, size: Size) -> None:
    """Write the model of ``write_random`` in float16 as a folder, under Hugging Face's names.

    Not in bfloat16, whose smallest values float16 lacks: a matrix of small ones would be kept in
    float32 by who keeps in float16 what fits.
    """
    folder.mkdir()
    tensors = dict[str, Tensor]()
    for name, tensor in _weights(size, "cpu"):
        new_name, value = _published(name, tensor)
        tensors[new_name] = value.to(torch.float16).contiguous()
    save_file(tensors, folder / "model.safetensors")
    w, a, v, g = size.ranks
    config = {
        "model_type": "rwkv7",
        "architectures": ["RWKV7ForCausalLM"],
        "hidden_size": size.width,
        "intermediate_size": 4 * size.width,
        "num_hidden_layers": size.n_layers,
        "num_heads": size.width // HEAD_SIZE,
        "head_dim": HEAD_SIZE,
        "vocab_size": size.vocab_size,
        "decay_low_rank_dim": w,
        "a_low_rank_dim": a,
        "v_low_rank_dim": v,
        "gate_low_rank_dim": g,
        "norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def _published(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """A tensor of BlinkDL's name under Hugging Face's."""
    stem, _, leaf = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{leaf}", tensor
    _, layer, part = name.split(".", 2)
    before = f"model.layers.{layer}"
    if found := re.fullmatch(r"att\.([wavg])([012])", part):
        value = tensor.flatten() if found[2] == "0" else tensor.t()
        return f"{before}.attn.{found[1]}_lora.lora.{_LOW_RANK[found[2]]}", value
    stem, _, leaf = part.rpartition(".")
    if stem in _PARTS:
        return f"{before}.{_PARTS[stem]}.{leaf}", tensor
    part = part.replace("att.", "attn.")
    return (
        f"{before}.{part}",
        tensor.flatten() if tensor.dim() == 3 and "x_" not in part else tensor,
    )
