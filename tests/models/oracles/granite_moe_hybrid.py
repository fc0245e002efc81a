"""Granite 4: Mamba-2 or attention, each before experts and a shared one."""

from tests.models.oracles.case import Architecture, Case, Refusal

BASE = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 14,
    "shared_intermediate_size": 18,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 10,
    "mamba_chunk_size": 8,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 1.6,
    "logits_scaling": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
    "position_embedding_type": "nope",
    "pad_token_id": 0,
}


def changed(**fields: object) -> dict[str, object]:
    """``BASE`` with other fields."""
    return BASE | fields


ARCHITECTURE = Architecture(
    class_name="GraniteMoeHybridForCausalLM",
    config_class="GraniteMoeHybridConfig",
    model_type="granitemoehybrid",
    family="mamba2",
    tensors=("mamba2.ssm", "mamba2.conv"),
    guest="keys and values",
    supported="all multipliers, any order of layers, with and without routed experts and rotary "
    "positions, all biases, limits of the time step, tied and untied",
    cases=(
        Case("experts and no positions", BASE),
        Case(
            "no routed experts, rotary positions, tied",
            changed(
                num_local_experts=0,
                position_embedding_type="rope",
                rope_parameters={"rope_type": "default", "rope_theta": 500.0},
                tie_word_embeddings=True,
                mamba_n_groups=2,
            ),
        ),
        Case(
            "all biases, one expert a token, steps of 0.2 to 0.6",
            changed(
                attention_bias=True,
                mamba_proj_bias=True,
                mamba_conv_bias=False,
                num_experts_per_tok=1,
                num_key_value_heads=1,
                mamba_d_conv=3,
                mamba_n_groups=3,
                time_step_limit=[0.2, 0.6],
                layer_types=["attention", "mamba", "attention"],
            ),
        ),
        Case(
            "attention alone",
            changed(
                layer_types=["attention"] * 2,
                num_hidden_layers=2,
                num_local_experts=0,
                position_embedding_type="rope",
            ),
        ),
    ),
    refusals=(
        Refusal({"hidden_act": "gelu"}, "hidden_act"),
        Refusal({"normalization_function": "layernorm"}, "normalization_function"),
        Refusal({"layer_types": ["mamba", "mlp", "mamba"]}, "mlp"),
        Refusal({"layer_types": ["mamba"]}, "1 layer_types for 3"),
        Refusal({"mamba_d_head": 7}, "heads of 7"),
        Refusal({"num_experts_per_tok": 6}, "6 of 5 experts"),
        Refusal(
            {"position_embedding_type": "rope", "rope_parameters": {"rope_type": "longrope"}},
            "longrope",
        ),
    ),
)
