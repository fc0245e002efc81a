"""Gated DeltaNet, as fla writes it."""

from tests.models.oracles.case import Architecture, Case, Refusal

BASE: dict[str, object] = {
    "vocab_size": 97,
    "hidden_size": 28,
    "intermediate_size": 26,
    "num_hidden_layers": 3,
    "num_heads": 2,
    "num_v_heads": 6,
    "head_dim": 12,
    "expand_v": 0.75,
    "norm_eps": 1e-3,
    "eos_token_id": 2,
}


def _changed(**fields: object) -> dict[str, object]:
    return {**BASE, **fields}


ARCHITECTURE = Architecture(
    class_name="GatedDeltaNetForCausalLM",
    config_class="GatedDeltaNetConfig",
    model_type="gated_deltanet",
    oracle="flash-linear-attention",
    family="gdn",
    tensors=("gdn.delta", "gdn.conv"),
    guest="",
    supported="of fla: key heads shared by value heads, values wider or narrower than keys, "
    "eigenvalues down to 0 or -1, gates (swish, sigmoid) or none, tied and untied",
    cases=(
        Case("three values a key, narrow values", BASE),
        Case(
            "wide values, negative eigenvalues, gates by sigmoid, tied",
            _changed(
                expand_v=1.5,
                num_v_heads=None,
                allow_neg_eigval=True,
                output_gate_activation="sigmoid",
                tie_word_embeddings=True,
            ),
        ),
        Case(
            "no gates, windows of 2, feed-forward by its ratio",
            _changed(use_gate=False, conv_size=3, intermediate_size=None, hidden_ratio=3),
        ),
    ),
    refusals=(
        Refusal({"hidden_act": "powlu"}, "hidden_act"),
        Refusal({"output_gate_activation": "relu"}, "output_gate_activation"),
        Refusal({"use_short_conv": False}, "use_short_conv"),
        Refusal({"attn": {"layers": [1], "num_heads": 4}}, "attn"),
        Refusal({"attnres_block_size": 2}, "attnres_block_size"),
        Refusal({"num_v_heads": 3}, "num_v_heads"),
        Refusal({"expand_v": 0.3}, "expand_v"),
        Refusal({"conv_size": 1}, "conv_size"),
    ),
)
