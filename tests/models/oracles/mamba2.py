"""Mamba-2, as transformers writes it."""

from tests.models.oracles.case import Architecture, Case, Refusal

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


ARCHITECTURE = Architecture(
    class_name="Mamba2ForCausalLM",
    config_class="Mamba2Config",
    model_type="mamba2",
    family="mamba2",
    tensors=("mamba2.ssm", "mamba2.conv"),
    guest="",
    supported="groups, any width of the convolution, all biases, limits of the time step "
    "(at every token, not in prompts alone), tied and untied",
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
    ),
    refusals=(
        Refusal({"hidden_act": "relu"}, "hidden_act"),
        Refusal({"num_heads": 5}, "5 heads"),
        Refusal({"n_groups": 4}, "4 groups"),
        Refusal({"time_step_limit": [0.1]}, "time_step_limit"),
        Refusal({"time_step_limit": [0.2, 0.1]}, "time_step_limit"),
        Refusal({"conv_kernel": 1}, "conv_kernel"),
        Refusal({"hidden_size": "wide"}, "hidden_size"),
    ),
)
