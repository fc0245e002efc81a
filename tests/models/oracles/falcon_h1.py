"""Falcon-H1: Mamba-2 and attention beside each other."""

from tests.models.oracles.case import Architecture, Case, Refusal

BASE = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "mamba_d_ssm": 36,
    "mamba_n_heads": 6,
    "mamba_d_head": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 9,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
}

MULTIPLIERS = {
    "lm_head_multiplier": 0.4,
    "embedding_multiplier": 1.7,
    "mlp_multipliers": [0.8, 0.6],
    "key_multiplier": 0.7,
    "attention_out_multiplier": 1.3,
    "attention_in_multiplier": 0.9,
    "ssm_multipliers": [0.9, 1.2, 0.7, 1.1, 1.4],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.55,
}


def changed(**fields: object) -> dict[str, object]:
    """``BASE`` with other fields."""
    return BASE | fields


ARCHITECTURE = Architecture(
    class_name="FalconH1ForCausalLM",
    config_class="FalconH1Config",
    model_type="falcon_h1",
    family="mamba2",
    tensors=("mamba2.ssm", "mamba2.conv"),
    guest="keys and values",
    supported="all multipliers, with and without the gated norm, the gate before it or after, all "
    "biases, groups, limits of the time step, tied and untied",
    cases=(
        Case("a gate and no norm", BASE),
        Case("all multipliers", changed(**MULTIPLIERS)),
        Case(
            "all multipliers and biases, a norm and then the gate, tied",
            changed(
                **MULTIPLIERS,
                mamba_rms_norm=True,
                mamba_norm_before_gate=True,
                mamba_proj_bias=True,
                projectors_bias=True,
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
            ),
        ),
        Case(
            "the gate and then a norm, one key for all heads, steps of 0.2 to 0.6",
            changed(
                mamba_rms_norm=True,
                mamba_norm_before_gate=False,
                num_key_value_heads=1,
                mamba_conv_bias=False,
                mamba_d_conv=3,
                mamba_n_groups=3,
                time_step_limit=[0.2, 0.6],
            ),
        ),
        Case(
            "sizes left to be worked out",
            {name: value for name, value in BASE.items() if name != "head_dim"}
            | {"mamba_d_ssm": None, "mamba_d_head": "auto", "num_key_value_heads": None},
        ),
    ),
    refusals=(
        Refusal({"hidden_act": "gelu"}, "hidden_act"),
        Refusal({"mamba_d_head": 7}, "heads of 7"),
        Refusal({"mamba_n_groups": 4}, "4 groups"),
        Refusal({"num_key_value_heads": 3}, "4 heads for 3"),
        Refusal({"ssm_multipliers": [1.0]}, "ssm_multipliers"),
        Refusal({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        Refusal({"sliding_window": 64}, "sliding_window"),
        Refusal({"attn_layer_indices": [1]}, "attn_layer_indices"),
    ),
)
