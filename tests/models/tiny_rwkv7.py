"""Random small RWKV-7 checkpoints, under either naming, and the running of rows through a model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from wkvm.models.base import Batch, Model
from wkvm.state.arena import Arena

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Tiny:
    """Sizes of a random model."""

    n_layers: int = 2
    width: int = 64
    head_size: int = 64
    vocab_size: int = 97
    ffn_width: int = 128
    ranks: tuple[int, int, int, int] = (16, 8, 16, 24)  # w, a, v, g


def random_weights(tiny: Tiny, seed: int = 0) -> Weights:
    """Weights under BlinkDL's names, with his axes of length 1, float32."""
    C, F = tiny.width, tiny.ffn_width
    draw = torch.Generator().manual_seed(seed)
    weights = Weights()

    def normal(name: str, *shape: int, std: float, mean: float = 0.0) -> None:
        weights[name] = torch.randn(*shape, generator=draw) * std + mean

    def norm(name: str) -> None:
        normal(f"{name}.weight", C, std=0.1, mean=1.0)
        normal(f"{name}.bias", C, std=0.1)

    normal("emb.weight", tiny.vocab_size, C, std=0.5)
    norm("blocks.0.ln0")
    for index in range(tiny.n_layers):
        block = f"blocks.{index}"
        norm(f"{block}.ln1")
        norm(f"{block}.ln2")
        att = f"{block}.att"
        for letter in "rwkvag":
            weights[f"{att}.x_{letter}"] = torch.rand(1, 1, C, generator=draw)
        for letter, rank in zip("wavg", tiny.ranks, strict=True):
            if letter == "v" and index == 0:
                continue
            normal(f"{att}.{letter}1", C, rank, std=0.1)
            normal(f"{att}.{letter}2", rank, C, std=0.3 if letter == "g" else 0.1)
        normal(f"{att}.w0", 1, 1, C, std=1.5, mean=-2.0)
        normal(f"{att}.a0", 1, 1, C, std=0.5)
        if index > 0:
            normal(f"{att}.v0", 1, 1, C, std=0.5)
        normal(f"{att}.k_k", 1, 1, C, std=0.2, mean=0.7)
        normal(f"{att}.k_a", 1, 1, C, std=0.1, mean=1.0)
        normal(f"{att}.r_k", C // tiny.head_size, tiny.head_size, std=0.2)
        for name in ("receptance", "key", "value", "output"):
            normal(f"{att}.{name}.weight", C, C, std=C**-0.5)
        norm(f"{att}.ln_x")
        weights[f"{block}.ffn.x_k"] = torch.rand(1, 1, C, generator=draw)
        normal(f"{block}.ffn.key.weight", F, C, std=C**-0.5)
        normal(f"{block}.ffn.value.weight", C, F, std=F**-0.5)
    norm("ln_out")
    normal("head.weight", tiny.vocab_size, C, std=C**-0.5)
    return weights


_FOLDER_NAMES = (
    ("emb.", "model.embeddings."),
    ("ln_out.", "model.norm."),
    ("head.", "lm_head."),
    ("blocks.", "model.layers."),
    (".ln0.", ".pre_norm."),
    (".ln1.", ".attn_norm."),
    (".ln2.", ".ffn_norm."),
    (".att.ln_x.", ".att.g_norm."),
    (".att.receptance.", ".att.r_proj."),
    (".att.key.", ".att.k_proj."),
    (".att.value.", ".att.v_proj."),
    (".att.output.", ".att.o_proj."),
    (".att.", ".attn."),
)


def folder_weights(weights: Weights) -> Weights:
    """The same weights under the names, and in the shapes, of flash-linear-attention."""
    renamed = Weights()
    for name, tensor in weights.items():
        leaf = name.rpartition(".")[2]
        parent = (
            name.removesuffix(leaf).replace("blocks.", "model.layers.").replace(".att.", ".attn.")
        )
        if len(leaf) == 2 and leaf[1] in "012" and leaf[0] in "wavg":
            part = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}[leaf[1]]
            value = tensor.flatten() if leaf[1] == "0" else tensor.t()
            renamed[f"{parent}{leaf[0]}_lora.lora.{part}"] = value.contiguous()
            continue
        if leaf in ("k_k", "k_a") or name.endswith("ffn.x_k"):
            tensor = tensor.flatten()
        for blink, fla in _FOLDER_NAMES:
            name = name.replace(blink, fla)
        renamed[name] = tensor.contiguous()
    return renamed


def folder_config(tiny: Tiny) -> dict[str, object]:
    """A ``config.json`` that the oracles read too."""
    w, a, v, g = tiny.ranks
    return {
        "model_type": "rwkv7",
        "architectures": ["RWKV7ForCausalLM"],
        "hidden_size": tiny.width,
        "head_dim": tiny.head_size,
        "num_heads": tiny.width // tiny.head_size,
        "num_hidden_layers": tiny.n_layers,
        "vocab_size": tiny.vocab_size,
        "intermediate_size": tiny.ffn_width,
        "decay_low_rank_dim": w,
        "a_low_rank_dim": a,
        "v_low_rank_dim": v,
        "gate_low_rank_dim": g,
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "hidden_act": "sqrelu",
        "attn": None,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def write_folder(folder: Path, tiny: Tiny, weights: Weights, **config: object) -> Path:
    """A folder with ``model.safetensors``; ``weights`` under BlinkDL's names."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(folder_weights(weights), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(folder_config(tiny) | config))
    return folder


def write_pth(path: Path, weights: Weights) -> Path:
    """A ``.pth`` file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights, path)
    return path


Row = tuple[int, Sequence[int]]
"""A slot, and the ids it absorbs."""


def batch_of(rows: Sequence[Row], device: str = "cpu", *, all_logits: bool = False) -> Batch:
    """A step; logits after each row's last token, or after every token."""
    slots = tuple(slot for slot, _ in rows)
    lengths = tuple(len(ids) for _, ids in rows)
    ids = [token_id for _, row in rows for token_id in row]
    ends = torch.tensor(lengths).cumsum(0) - 1
    return Batch(
        token_ids=torch.tensor(ids, dtype=torch.int64, device=device),
        slots=torch.tensor(slots, dtype=torch.int32, device=device),
        lengths=lengths,
        slot_list=slots,
        logit_rows=(torch.arange(len(ids)) if all_logits else ends).to(device),
    )


def run_alone(model: Model, ids: Sequence[int], cuts: Sequence[int] = ()) -> tuple[Tensor, Arena]:
    """Logits after each of ``ids``, absorbed in pieces that end at ``cuts``, and the state."""
    arena = Arena(model.layout, 1, model.info.device)
    edges = [0, *cuts, len(ids)]
    pieces = [
        model.forward(
            batch_of([(0, ids[start:stop])], model.info.device, all_logits=True), arena.views
        )
        for start, stop in pairwise(edges)
    ]
    return torch.cat(pieces), arena
