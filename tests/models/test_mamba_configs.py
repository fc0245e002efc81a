"""Models with Mamba-2 as they are published have as many weights, and states as large, as told."""

from math import prod
from typing import Any

import pytest
from wkvm_bench.random_weights import blueprint

from wkvm.core.layout import DEFAULT_STATE

GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "layer_types": ["attention" if index % 10 == 5 else "mamba" for index in range(40)],
    "num_hidden_layers": 40,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "normalization_function": "rmsnorm",
    "position_embedding_type": "nope",
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "vocab_size": 100_352,
}

NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "attention_head_dim": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "num_hidden_layers": 52,
    "ssm_state_size": 128,
    "time_step_limit": [0.0, float("inf")],
    "vocab_size": 131_072,
}

PUBLISHED: dict[str, tuple[dict[str, Any], int, float, int]] = {
    "mamba2-2.7b of state-spaces": (
        {
            "d_model": 2560,
            "d_intermediate": 0,
            "n_layer": 64,
            "vocab_size": 50_277,
            "ssm_cfg": {"layer": "Mamba2"},
            "attn_layer_idx": [],
            "attn_cfg": {},
            "rms_norm": True,
            "residual_in_fp32": True,
            "fused_add_norm": True,
            "pad_vocab_size_multiple": 16,
            "tie_embeddings": True,
        },
        2_702_599_680,
        161.97,
        0,
    ),
    "Mamba-Codestral-7B": (
        {
            "model_type": "mamba2",
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "n_groups": 8,
            "norm_before_gate": True,
            "num_heads": 128,
            "num_hidden_layers": 64,
            "rms_norm": True,
            "vocab_size": 32_768,
        },
        7_285_403_648,
        259.75,
        0,
    ),
    "Falcon-H1-0.5B": (
        {
            "model_type": "falcon_h1",
            "attn_layer_indices": None,
            "head_dim": 64,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "mamba_d_head": 64,
            "mamba_d_ssm": 1536,
            "mamba_d_state": 128,
            "mamba_n_heads": 24,
            "mamba_norm_before_gate": False,
            "mamba_use_mlp": True,
            "num_attention_heads": 8,
            "num_hidden_layers": 36,
            "num_key_value_heads": 2,
            "rope_scaling": None,
            "rope_theta": 1e11,
            "vocab_size": 32_784,
        },
        521_411_104,
        27.37,
        18 * 1024,
    ),
    "Granite-4.0-H-Tiny": (
        {
            **GRANITE,
            "hidden_size": 1536,
            "intermediate_size": 512,
            "mamba_n_heads": 48,
            "num_attention_heads": 12,
            "num_experts_per_tok": 6,
            "num_key_value_heads": 4,
            "num_local_experts": 64,
            "shared_intermediate_size": 1024,
        },
        6_939_037_248,
        54.69,
        8 * 1024,
    ),
    "Granite-4.0-H-Small": (
        {
            **GRANITE,
            "hidden_size": 4096,
            "intermediate_size": 768,
            "mamba_n_heads": 128,
            "num_attention_heads": 32,
            "num_experts_per_tok": 10,
            "num_key_value_heads": 8,
            "num_local_experts": 72,
            "shared_intermediate_size": 1536,
        },
        32_207_337_984,
        145.74,
        16 * 1024,
    ),
    "Nemotron-H-8B": (
        {
            **NEMOTRON,
            "hidden_size": 4096,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "intermediate_size": 21_504,
            "mamba_num_heads": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
        8_100_852_736,
        97.41,
        16 * 1024,
    ),
    "Nemotron-3-Nano-30B-A3B": (
        {
            **NEMOTRON,
            "hidden_size": 2688,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "intermediate_size": 1856,
            "mamba_num_heads": 64,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_attention_heads": 32,
            "num_experts_per_tok": 6,
            "num_key_value_heads": 2,
            "routed_scaling_factor": 2.5,
        },
        31_577_940_288,
        46.81,
        6 * 1024,
    ),
}
"""By model the fields that shape it, its parameters, MiB of a record in bfloat16 with float32
recurrent states, and bytes of a token in its guest's pages."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_weights_and_its_state(name: str) -> None:
    config, n_parameters, record_mib, token_bytes = PUBLISHED[name]
    plan = blueprint({"model_type": "mamba2", **config})
    assert sum(map(prod, plan.weights.values())) == n_parameters
    layout = plan.layout("bfloat16", DEFAULT_STATE)
    assert round(layout.record_bytes / 2**20, 2) == record_mib
    assert (0 if layout.guest is None else layout.guest.token_bytes) == token_bytes
