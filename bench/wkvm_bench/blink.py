"""A checkpoint of wkvm's as a ``.pth`` file with BlinkDL's names, for peers that read these."""

import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

_WHOLE = {
    "model.embeddings.weight": "emb.weight",
    "model.norm.weight": "ln_out.weight",
    "model.norm.bias": "ln_out.bias",
    "lm_head.weight": "head.weight",
}
_PARTS = {
    "pre_norm": "ln0",
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "attn.g_norm": "att.ln_x",
    "attn.r_proj": "att.receptance",
    "attn.k_proj": "att.key",
    "attn.v_proj": "att.value",
    "attn.o_proj": "att.output",
}
_LOW_RANK = re.compile(r"attn\.([wavg])_lora\.lora\.(0\.weight|2\.weight|2\.bias)")
_DIGIT = {"0.weight": "1", "2.weight": "2", "2.bias": "0"}
_VECTOR = re.compile(r"att\.([wav]0|x_\w|k_k|k_a)|ffn\.x_k")


def write_pth(folder: Path, path: Path) -> None:
    """Write the safetensors files of ``folder`` as one float32 file at ``path``."""
    renamed = dict[str, Tensor]()
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            new_name, new = _rename(name, tensor.float())
            renamed[new_name] = new.contiguous()
    torch.save(renamed, path)


def _rename(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    if name in _WHOLE:
        return _WHOLE[name], tensor
    _, _, layer, part = name.split(".", 3)
    if found := _LOW_RANK.fullmatch(part):
        part = f"att.{found[1]}{_DIGIT[found[2]]}"
        if tensor.ndim == 2:
            tensor = tensor.t()
    else:
        stem, _, leaf = part.rpartition(".")
        part = f"{_PARTS[stem]}.{leaf}" if stem in _PARTS else part.replace("attn.", "att.")
    if _VECTOR.fullmatch(part):
        tensor = tensor.reshape(1, 1, -1)
    return f"blocks.{layer}.{part}", tensor
