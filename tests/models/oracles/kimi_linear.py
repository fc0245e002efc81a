"""Kimi-Linear, as transformers writes it and as its authors publish it."""

import re
from typing import Any

from tests.models.oracles.case import Architecture, Case, Config, Refusal

BASE: dict[str, object] = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "moe_intermediate_size": 18,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 14,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 10,
    "v_head_dim": 8,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-3,
    "linear_head_dim": 8,
    "linear_num_heads": 5,
    "linear_conv_kernel_dim": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

TRANSFORMERS_ALONE = ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads")


def changed(**fields: object) -> dict[str, object]:
    """``BASE`` with other fields."""
    return BASE | fields


def as_published(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """Layers by numbers from 1, and the dense one under a name of its own."""
    kinds = config["layer_types"]
    numbers = range(1, len(kinds) + 1)
    config["linear_attn_config"] = {
        "kda_layers": [n for n in numbers if kinds[n - 1] == "linear_attention"],
        "full_attn_layers": [n for n in numbers if kinds[n - 1] == "full_attention"],
        "head_dim": config["linear_head_dim"],
        "num_heads": config["linear_num_heads"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }
    config["first_k_dense_replace"] = config["mlp_layer_types"].count("dense")
    for name in (*TRANSFORMERS_ALONE, "linear_conv_kernel_dim"):
        del config[name]
    config |= {
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "num_nextn_predict_layers": 0,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "use_grouped_topk": True,
    }
    dense = re.compile(r"block_sparse_moe(?=\.(gate|up|down)_proj)")
    return config, {dense.sub("mlp", name): tensor for name, tensor in tensors.items()}


ARCHITECTURE = Architecture(
    class_name="KimiLinearForCausalLM",
    config_class="KimiLinearConfig",
    model_type="kimi_linear",
    family="kda",
    tensors=("kda.delta", "kda.conv"),
    guest="latents",
    supported="both forms of the config and of the names; any order of layers, groups of experts, "
    "queries with a latent of their own, biases; untied. Attention runs in absorbed form",
    cases=(
        Case("as transformers writes it", BASE),
        Case(
            "as published, attention last",
            changed(
                num_hidden_layers=3,
                layer_types=["linear_attention", "full_attention", "full_attention"],
                mlp_layer_types=["dense", "dense", "sparse"],
                rms_norm_eps=1e-5,
            ),
            as_published,
        ),
        Case(
            "groups of experts, two shared, latents of queries, biases",
            changed(
                num_hidden_layers=3,
                layer_types=["full_attention", "linear_attention", "full_attention"],
                mlp_layer_types=["sparse", "dense", "sparse"],
                num_local_experts=12,
                num_experts_per_tok=3,
                n_group=4,
                topk_group=2,
                n_shared_experts=2,
                norm_topk_prob=False,
                routed_scaling_factor=1.3,
                q_lora_rank=9,
                attention_bias=True,
                linear_conv_kernel_dim=3,
            ),
        ),
        Case(
            "biases without latents of queries",
            changed(
                num_hidden_layers=2,
                layer_types=["linear_attention", "full_attention"],
                attention_bias=True,
                linear_conv_kernel_dim=2,
            ),
        ),
    ),
    refusals=(
        Refusal({"hidden_act": "gelu"}, "hidden_act"),
        Refusal({"hidden_act": "situ"}, "hidden_act"),
        Refusal({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        Refusal({"mla_use_nope": False}, "mla_use_nope"),
        Refusal({"mla_use_output_gate": True}, "mla_use_output_gate"),
        Refusal({"moe_layer_freq": 2}, "moe_layer_freq"),
        Refusal({"routed_expert_hidden_size": 12}, "routed_expert_hidden_size"),
        Refusal({"tie_word_embeddings": True}, "tie_word_embeddings"),
        Refusal({"num_key_value_heads": 1}, "num_key_value_heads"),
        Refusal({"num_expert_group": 4}, "6 experts"),
        Refusal({"num_experts_per_token": 7}, "7 of 6 experts"),
        Refusal({"layer_types": ["linear_attention"] * 4}, "4 layer_types"),
        Refusal({"layer_types": ["sliding_attention"] * 5}, "sliding_attention"),
        Refusal({"mlp_layer_types": ["dense"] * 6}, "6 mlp_layer_types"),
        Refusal({"linear_attn_config": {"gate_lower_bound": -5.0}}, "gate_lower_bound"),
        Refusal(
            {
                "layer_types": None,
                "linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [4, 5]},
            },
            "do not name each layer once",
        ),
        Refusal({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
    ),
)
