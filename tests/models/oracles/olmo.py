"""OLMo-Hybrid: Gated DeltaNet with norms before, attention with norms after."""

from typing import Any

from tests.models.oracles.case import Architecture, Case, Config, Refusal

LINEAR, FULL = "linear_attention", "full_attention"

BASE: dict[str, object] = {
    "vocab_size": 97,
    "hidden_size": 30,
    "intermediate_size": 26,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 18,
    "linear_value_head_dim": 14,
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
    "rms_norm_eps": 1e-3,
    "pad_token_id": 0,
    "eos_token_id": 2,
}

PARTS = ("q_conv1d", "k_conv1d", "v_conv1d")


def _changed(**fields: object) -> dict[str, object]:
    return {**BASE, **fields}


def _convolutions(config: Config, tensors: dict[str, Any]) -> dict[str, Any]:
    """By mixer, all its convolutions: transformers writes them in three equal parts."""
    import torch

    mixers = [name.removesuffix(".q_conv1d.weight") for name in tensors if ".q_conv1d." in name]
    return {
        mixer: torch.cat([tensors[f"{mixer}.{part}.weight"] for part in PARTS]) for mixer in mixers
    }


def published(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """Convolutions of queries, keys and values apart, and norms after attention named so."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    found = dict(tensors)
    for mixer, whole in _convolutions(config, tensors).items():
        for part, weight in zip(PARTS, whole.split((keys, keys, values)), strict=True):
            found[f"{mixer}.{part}.weight"] = weight.clone()
    for index, kind in enumerate(config["layer_types"]):
        if kind == FULL:
            layer = f"model.layers.{index}"
            norm = found.pop(f"{layer}.feedforward_layer_norm.weight")
            found[f"{layer}.post_attention_layernorm.weight"] = norm
    return config, found


def fused(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The names that transformers' modules have."""
    found = dict(tensors)
    for mixer, whole in _convolutions(config, tensors).items():
        for part in PARTS:
            del found[f"{mixer}.{part}.weight"]
        found[f"{mixer}.conv1d.weight"] = whole
    renamed = {"attention_layer_norm": "input_layernorm"}
    renamed["feedforward_layer_norm"] = "post_attention_layernorm"
    for old, new in renamed.items():
        found = {name.replace(old, new): tensor for name, tensor in found.items()}
    return config, found


ARCHITECTURE = Architecture(
    class_name="OlmoHybridForCausalLM",
    config_class="OlmoHybridConfig",
    model_type="olmo_hybrid",
    family="gdn",
    tensors=("gdn.delta", "gdn.conv"),
    guest="keys and values",
    supported="key heads shared by value heads, any sizes of keys and values, eigenvalues down to "
    "-1 or 0, any order of layers, positions or none, tied and untied",
    cases=(
        Case("three values a key, no positions", BASE, published),
        Case(
            "positions, no negative eigenvalues, tied",
            _changed(
                rope_parameters={"rope_type": "default", "rope_theta": 700.0},
                hidden_size=36,
                linear_num_value_heads=4,
                linear_allow_neg_eigval=False,
                tie_word_embeddings=True,
                num_key_value_heads=6,
                linear_conv_kernel_dim=3,
            ),
            fused,
            draw=3,
        ),
        Case(
            "attention first, as transformers writes it",
            _changed(
                layer_types=[FULL, LINEAR, FULL, LINEAR],
                linear_num_key_heads=3,
                linear_num_value_heads=3,
                linear_key_head_dim=10,
                linear_value_head_dim=10,
                rms_norm_eps=1e-6,
            ),
        ),
    ),
    refusals=(
        Refusal({"hidden_act": "gelu"}, "hidden_act"),
        Refusal({"attention_bias": True}, "attention_bias"),
        Refusal({"linear_num_key_heads": 4}, "linear_num_value_heads"),
        Refusal({"num_key_value_heads": 4}, "num_attention_heads"),
        Refusal({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        Refusal({"layer_types": [LINEAR] * 4}, "layer_types"),
        Refusal({"rope_parameters": None}, "rope_theta"),
        Refusal({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1.0}}, "rope_type"),
    ),
    ignored=("mtp.",),
)
