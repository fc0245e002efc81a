"""Qwen3-Next and Qwen3.5: Gated DeltaNet and attention with gates, dense and with experts."""

from typing import Any

from tests.models.oracles.case import Architecture, Case, Config, Refusal

BASE: dict[str, object] = {
    "vocab_size": 97,
    "hidden_size": 28,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    # What is next to nothing, as some outputs of a head of 12 are, is not blown up by its norm.
    "rms_norm_eps": 1e-3,
    "eos_token_id": 2,
}

EXPERTS: dict[str, object] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 9,
    "shared_expert_intermediate_size": 11,
}

LINEAR, FULL = "linear_attention", "full_attention"

ROPE = {
    "rope_type": "default",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 0],
    "mrope_interleaved": True,
}


def _dense(**changes: object) -> dict[str, object]:
    return {**BASE, "intermediate_size": 26, "rope_parameters": ROPE, **changes}


def _experts(**changes: object) -> dict[str, object]:
    return {**BASE, **EXPERTS, "rope_parameters": ROPE, **changes}


def _next(**changes: object) -> dict[str, object]:
    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.25}
    return {**BASE, **EXPERTS, "intermediate_size": 18, "rope_parameters": rope, **changes}


def around(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The text part of a model that sees pictures, as published."""
    import torch

    text = {**config, "attn_output_gate": True, "output_gate_type": "swish"}
    model_type = text["model_type"].removesuffix("_text")
    whole = {"model_type": model_type, "text_config": text, "tie_word_embeddings": False}
    whole["vision_config"] = {"depth": 1}
    named = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in tensors.items()
    }
    others = ("model.visual.blocks.0.attn.qkv.weight", "mtp.layers.0.input_layernorm.weight")
    return whole, {**named, **{name: torch.zeros(3) for name in others}}


def stacked(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The same, and the experts of a layer in one tensor."""
    import torch

    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts"

        def each(part: str, prefix: str = prefix) -> Any:
            numbers = range(config["num_experts"])
            return torch.stack([tensors[f"{prefix}.{n}.{part}_proj.weight"] for n in numbers])

        kept[f"{prefix}.gate_up_proj"] = torch.cat((each("gate"), each("up")), 1)
        kept[f"{prefix}.down_proj"] = each("down")
    return around(config, kept)


def as_published(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """Fields where the first releases had them: no ``layer_types``, positions at the top."""
    rope = config.pop("rope_parameters")
    del config["layer_types"]
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    config |= {"partial_rotary_factor": rope["partial_rotary_factor"], "full_attention_interval": 4}
    return config, tensors


REFUSALS = (
    Refusal({"hidden_act": "gelu"}, "hidden_act"),
    Refusal({"attention_bias": True}, "attention_bias"),
    Refusal({"attn_output_gate": False}, "attn_output_gate"),
    Refusal({"output_gate_type": "sigmoid"}, "output_gate_type"),
    Refusal({"use_sliding_window": True}, "use_sliding_window"),
    Refusal({"linear_num_key_heads": 4}, "linear_num_value_heads"),
    Refusal({"num_key_value_heads": 4}, "num_attention_heads"),
    Refusal({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
    Refusal({"layer_types": ["linear_attention"]}, "layer_types"),
    Refusal({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    Refusal({"layer_types": ["full_attention"] * 4}, "layer_types"),
    Refusal({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type"),
)

NEXT = Architecture(
    class_name="Qwen3NextForCausalLM",
    config_class="Qwen3NextConfig",
    model_type="qwen3_next",
    family="gdn",
    tensors=("gdn.delta", "gdn.conv"),
    guest="keys and values",
    supported="key heads shared by value heads, any sizes of keys and values, any order of layers, "
    "part of a head turned by positions, experts (renormalised or not) and dense layers in turn, "
    "tied and untied",
    cases=(
        Case("three values a key, seven experts", _next()),
        Case(
            "first and last layer attend, dense layers between, tied",
            _next(
                layer_types=[FULL, LINEAR, LINEAR, FULL],
                mlp_only_layers=[1],
                num_experts_per_tok=1,
                tie_word_embeddings=True,
                linear_conv_kernel_dim=3,
            ),
            draw=1,
        ),
        Case(
            "every other layer has experts as wide as the shared one, weights not renormalised",
            _next(
                decoder_sparse_step=2,
                norm_topk_prob=False,
                num_experts_per_tok=2,
                shared_expert_intermediate_size=9,
            ),
        ),
        Case("fields as first published", _next(num_key_value_heads=1), as_published),
    ),
    refusals=(
        *REFUSALS,
        Refusal({"num_experts_per_tok": 8}, "num_experts_per_tok"),
        Refusal({"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ),
    ignored=("mtp.",),
)

DENSE = Architecture(
    class_name="Qwen3_5ForCausalLM",
    config_class="Qwen3_5TextConfig",
    model_type="qwen3_5_text",
    around="qwen3_5",
    family="gdn",
    tensors=("gdn.delta", "gdn.conv"),
    guest="keys and values",
    supported="as Qwen3Next without experts; of `Qwen3_5ForConditionalGeneration` the text part",
    cases=(
        Case("three values a key", _dense(), draw=1),
        Case("text part of a model with pictures", _dense(num_key_value_heads=2), around),
        Case(
            "tied, wide keys, the last layer attends",
            _dense(
                tie_word_embeddings=True,
                linear_key_head_dim=20,
                linear_value_head_dim=6,
                layer_types=[LINEAR, LINEAR, LINEAR, FULL],
            ),
        ),
        Case(
            "most layers attend, whole heads are turned",
            _dense(
                layer_types=[FULL, FULL, LINEAR, FULL],
                rope_parameters={**ROPE, "partial_rotary_factor": 1.0},
                linear_num_value_heads=2,
                rms_norm_eps=1e-6,
            ),
        ),
    ),
    refusals=(*REFUSALS, Refusal({"mlp_only_layers": [1]}, "mlp_only_layers")),
    ignored=("model.visual.", "mtp."),
)

MOE = Architecture(
    class_name="Qwen3_5MoeForCausalLM",
    config_class="Qwen3_5MoeTextConfig",
    model_type="qwen3_5_moe_text",
    around="qwen3_5_moe",
    family="gdn",
    tensors=("gdn.delta", "gdn.conv"),
    guest="keys and values",
    supported="as Qwen3_5, with experts in every layer, stored one by one or stacked; of "
    "`Qwen3_5MoeForConditionalGeneration` the text part",
    cases=(
        Case("three of seven experts", _experts()),
        Case(
            "stacked experts as wide as the shared one, text part of a model with pictures",
            _experts(shared_expert_intermediate_size=9),
            stacked,
            draw=4,
        ),
        Case(
            "one of five experts, tied",
            _experts(num_experts=5, num_experts_per_tok=1, tie_word_embeddings=True),
        ),
    ),
    refusals=(*REFUSALS, Refusal({"norm_topk_prob": False}, "norm_topk_prob")),
    ignored=("model.visual.", "mtp."),
)
