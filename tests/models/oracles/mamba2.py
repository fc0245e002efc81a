"""Mamba-2, as transformers and as state-spaces write it."""

from typing import Any

from tests.models.oracles.case import Architecture, Case, Config, Refusal

STATE_SPACES = "as state-spaces has it"

BASE = {
    "vocab_size": 101,
    "hidden_size": 24,
    "num_heads": 6,
    "head_dim": 8,
    "state_size": 10,
    "n_groups": 2,
    "num_hidden_layers": 3,
    "conv_kernel": 4,
    "chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def changed(**fields: object) -> dict[str, object]:
    """``BASE`` with other fields."""
    return BASE | fields


def as_state_spaces(config: Config, tensors: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """The folder as state-spaces has it: other fields, a padded vocabulary, one other name."""
    written = {
        "d_model": config["hidden_size"],
        "d_intermediate": 0,
        "n_layer": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"] - 3,
        "ssm_cfg": {
            "layer": "Mamba2",
            "d_state": config["state_size"],
            "d_conv": config["conv_kernel"],
            "headdim": config["head_dim"],
            "ngroups": config["n_groups"],
        },
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 8,
        "tie_embeddings": config["tie_word_embeddings"],
    }
    names = {name: name.replace(".embeddings.", ".embedding.") for name in tensors}
    return written, {names[name]: tensor for name, tensor in tensors.items()}


ARCHITECTURE = Architecture(
    class_name="Mamba2ForCausalLM",
    config_class="Mamba2Config",
    model_type="mamba2",
    family="mamba2",
    tensors=("mamba2.ssm", "mamba2.conv"),
    guest="",
    supported="groups, any width of the convolution, all biases, limits of the time step "
    "(at every token, not in prompts alone), tied and untied; as transformers writes it, and as "
    "state-spaces does (`ssm_cfg`; the padded rows of the vocabulary are ids too), in safetensors",
    cases=(
        Case("two groups", BASE),
        Case("one group, tied", changed(n_groups=1, tie_word_embeddings=True)),
        Case("a group a head, windows of 1", changed(n_groups=6, conv_kernel=2, chunk_size=5)),
        Case(
            "all biases, residuals in the model's dtype, windows of 4",
            changed(use_bias=True, conv_kernel=5, residual_in_fp32=False, layer_norm_epsilon=1e-3),
        ),
        Case(
            "no bias of the convolution, steps of 0.2 to 0.6",
            changed(use_conv_bias=False, time_step_limit=[0.2, 0.6], n_groups=3),
        ),
        Case(STATE_SPACES, changed(vocab_size=104, n_groups=1), as_state_spaces),
        Case(
            "as state-spaces has it, tied",
            changed(vocab_size=104, n_groups=2, tie_word_embeddings=True, head_dim=12, num_heads=4),
            as_state_spaces,
        ),
    ),
    refusals=(
        Refusal({"hidden_act": "relu"}, "hidden_act"),
        Refusal({"num_heads": 5}, "5 heads"),
        Refusal({"n_groups": 4}, "4 groups"),
        Refusal({"time_step_limit": [0.1]}, "time_step_limit"),
        Refusal({"time_step_limit": [0.2, 0.1]}, "time_step_limit"),
        Refusal({"conv_kernel": 1}, "convolution of 1 taps"),
        Refusal({"expand": 3}, "3 times the width"),
        Refusal({"norm_eps": 1e-6}, "norm_eps"),
        Refusal({"rms_norm": False}, "rms_norm"),
        Refusal({"hidden_size": "wide"}, "hidden_size"),
        Refusal({"attn_layer_idx": [1]}, "attn_layer_idx", STATE_SPACES),
        Refusal({"d_intermediate": 64}, "d_intermediate", STATE_SPACES),
        Refusal({"rms_norm": False}, "rms_norm", STATE_SPACES),
        Refusal({"ssm_cfg": {"headdim": 8}}, "Mamba1", STATE_SPACES),
        Refusal({"ssm_cfg": {"layer": "Mamba2", "headdim": 7}}, "heads of 7", STATE_SPACES),
        Refusal({"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, "D_has_hdim", STATE_SPACES),
        Refusal({"ssm_cfg": "Mamba2"}, "ssm_cfg", STATE_SPACES),
    ),
)
