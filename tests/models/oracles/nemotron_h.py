"""Nemotron-H: Mamba-2, attention, feed-forward layers and experts, one after the other."""

from typing import Any

from tests.models.oracles.case import Architecture, Case, Config, Refusal

BASE = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "hybrid_override_pattern": "M-M*-",
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 5,
    "ssm_state_size": 9,
    "mamba_num_heads": 6,
    "mamba_head_dim": 7,
    "n_groups": 2,
    "chunk_size": 8,
    "time_step_min": 1e-6,
}

EXPERTS = {
    "hybrid_override_pattern": "ME*M",
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 14,
    "moe_shared_expert_intermediate_size": 18,
    "routed_scaling_factor": 2.5,
}


def changed(**fields: object) -> dict[str, object]:
    """``BASE`` with other fields."""
    return BASE | fields


def with_limit(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The least step where it is looked for: transformers has it from another field."""
    return config | {"time_step_limit": [config["time_step_min"], float("inf")]}, tensors


def as_published(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The folder as its publisher has it: a pattern, other names, and layers that look ahead."""
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = "".join(letters[kind] for kind in config.pop("layers_block_type"))
    written = config | {
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "num_nextn_predict_layers": 1,
    }
    renamed = {
        f"backbone.{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
        for name, tensor in tensors.items()
    }
    ahead = {f"mtp.layers.0.{leaf}": tensors["lm_head.weight"].clone() for leaf in ("a", "b")}
    return written, renamed | ahead


ARCHITECTURE = Architecture(
    class_name="NemotronHForCausalLM",
    config_class="NemotronHConfig",
    model_type="nemotron_h",
    family="mamba2",
    tensors=("mamba2.ssm", "mamba2.conv"),
    guest="keys and values",
    ignored=("mtp.",),
    supported="any pattern of `M`, `*`, `-` and `E`, experts in groups, at a width of their own, "
    "renormalised or not, biases, the limits of `time_step_limit` (transformers raises steps of "
    "prompts to `time_step_min` instead); layers that predict further tokens are left out",
    cases=(
        Case("experts, as published", changed(**EXPERTS), as_published),
        Case("dense", BASE),
        Case(
            "experts in groups at a width of their own, all biases",
            changed(
                **EXPERTS
                | {
                    "n_group": 3,
                    "topk_group": 2,
                    "num_experts_per_tok": 3,
                    "moe_latent_size": 10,
                    "norm_topk_prob": False,
                    "mlp_bias": True,
                    "use_bias": True,
                    "use_conv_bias": False,
                    "hybrid_override_pattern": "E-*M*E",
                    "residual_in_fp32": True,
                }
            ),
        ),
        Case(
            "a group a head, one key for all heads, steps of 0.2 and more",
            changed(
                n_groups=6,
                conv_kernel=3,
                num_key_value_heads=1,
                time_step_min=0.2,
                mlp_hidden_act="silu",
                layer_norm_epsilon=1e-3,
            ),
            with_limit,
        ),
    ),
    refusals=(
        Refusal({"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
        Refusal({"mlp_hidden_act": "mish"}, "mlp_hidden_act", "dense"),
        Refusal({"attention_bias": True}, "attention_bias"),
        Refusal({"sliding_window": 32}, "sliding_window"),
        Refusal({"tie_word_embeddings": True}, "tie_word_embeddings"),
        Refusal({"layers_block_type": ["mamba", "conv"]}, "conv"),
        Refusal({"hybrid_override_pattern": "M?"}, r"'\?'"),
        Refusal({"num_hidden_layers": 5}, "4 layers for 5"),
        Refusal({"n_groups": 4}, "4 groups"),
        Refusal({"n_shared_experts": 2}, "n_shared_experts"),
        Refusal({"n_group": 4}, "6 experts in 4 groups"),
        Refusal({"num_experts_per_tok": 7}, "7 of 6 experts"),
        Refusal({"mlp_hidden_act": "silu"}, "experts with 'silu'"),
    ),
)
