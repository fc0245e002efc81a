"""An RWKV-7 checkpoint of Hugging Face's names as a GGUF file, for llama.cpp.

Names, shapes and keys are those that llama.cpp's loader of this architecture asks for. The file
has no tokenizer: prompts are ids.
"""

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

_WHOLE = {
    "model.embeddings.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.norm.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
    "model.layers.0.pre_norm.weight": "token_embd_norm.weight",
    "model.layers.0.pre_norm.bias": "token_embd_norm.bias",
}
_PARTS = {
    "attn_norm": "attn_norm",
    "ffn_norm": "attn_norm_2",
    "attn.g_norm": "time_mix_ln",
    "attn.r_proj": "time_mix_receptance",
    "attn.k_proj": "time_mix_key",
    "attn.v_proj": "time_mix_value",
    "attn.o_proj": "time_mix_output",
    "ffn.key": "channel_mix_key",
    "ffn.value": "channel_mix_value",
}
_VECTORS = {
    "attn.k_k": "time_mix_k_k",
    "attn.k_a": "time_mix_k_a",
    "attn.r_k": "time_mix_r_k",
    "ffn.x_k": "channel_mix_lerp_k",
}
_LOW_RANK = re.compile(r"attn\.([wavg])_lora\.lora\.(0\.weight|2\.weight|2\.bias)")
_DIGIT = {"0.weight": "1", "2.weight": "2", "2.bias": "0"}
_MIXES = "rwkvag"
"""In the order in which they are one tensor."""
LARGE = 1 << 16
"""Numbers of a tensor that is a large matrix. The low-rank maps are none."""
CONTEXT = 1 << 20
"""The file must name one; the architecture has none."""


def write_gguf(folder: Path, path: Path, *, is_half: bool) -> None:
    """Write a model folder as one file.

    Args:
        is_half: large matrices in float16; all else is in float32 in any case.

    Raises:
        ImportError: ``gguf`` is not installed.
    """
    gguf: Any = importlib.import_module("gguf")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tensors = dict[str, Tensor]()
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    writer = gguf.GGUFWriter(path, "rwkv7")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(0)
    writer.add_wkv_head_size(config["head_dim"])
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_decay_lora_rank(config["decay_low_rank_dim"])
    writer.add_iclr_lora_rank(config["a_low_rank_dim"])
    writer.add_value_residual_mix_lora_rank(config["v_low_rank_dim"])
    writer.add_gate_lora_rank(config["gate_low_rank_dim"])
    kind = gguf.LlamaFileType
    writer.add_file_type(kind.MOSTLY_F16 if is_half else kind.ALL_F32)
    for name, tensor in _renamed(tensors, config["num_hidden_layers"]):
        dtype = torch.float16 if is_half and tensor.numel() >= LARGE else torch.float32
        writer.add_tensor(name, tensor.to(dtype).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(tensors: Mapping[str, Tensor], n_layers: int) -> Iterator[tuple[str, Tensor]]:
    """All tensors by the names of GGUF."""
    for name, tensor in tensors.items():
        if name in _WHOLE:
            yield _WHOLE[name], tensor
        elif (new := _name(name)) is not None:
            yield new, tensor.flatten() if name.endswith("r_k") else tensor.squeeze()
    for layer in range(n_layers):
        mixes = [tensors[f"model.layers.{layer}.attn.x_{one}"].flatten() for one in _MIXES]
        yield f"blk.{layer}.time_mix_lerp_fused.weight", torch.stack(mixes)[:, None, None]
    if "model.layers.0.attn.v_lora.lora.0.weight" not in tensors:
        # The first layer has none. The loader wants one all the same, of the size of another.
        for digit, part in (("0", "2.bias"), ("1", "0.weight"), ("2", "2.weight")):
            other = tensors[f"model.layers.0.attn.a_lora.lora.{part}"]
            yield f"blk.0.time_mix_v{digit}.weight", other.squeeze()


def _name(name: str) -> str | None:
    """Of a tensor of a layer; None of one that is part of another."""
    _, _, layer, part = name.split(".", 3)
    if found := _LOW_RANK.fullmatch(part):
        return f"blk.{layer}.time_mix_{found[1]}{_DIGIT[found[2]]}.weight"
    if part in _VECTORS:
        return f"blk.{layer}.{_VECTORS[part]}.weight"
    stem, _, leaf = part.rpartition(".")
    return f"blk.{layer}.{_PARTS[stem]}.{leaf}" if stem in _PARTS else None
