"""Whole models over the kernels of a GPU, in Triton's interpreter, against those of a CPU.

Of each architecture a tiny one: prompts among pad rows, then decode steps whose slots the host
does not know, as those of a graph.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from wkvm_bench.random_weights import blueprint, random_decoder, random_weight

from tests.interpreter import INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.models.oracles.architectures import ARCHITECTURES
from tests.models.oracles.slots import Slots
from wkvm.kernels import cpu
from wkvm.kernels.interface import Kernels
from wkvm.kernels.rows import Rows
from wkvm.models.decoder import Decoder
from wkvm.models.parameters import Parameters

TOLERANCE = 2e-4
"""On logits of size 1."""

ATTENTION: dict[str, object] = {"num_attention_heads": 2, "num_key_value_heads": 1}

DELTA: dict[str, object] = {
    **ATTENTION,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}

FEWER: dict[str, dict[str, object]] = {
    "mamba2": {"num_hidden_layers": 1},
    "nemotron_h": {**ATTENTION, "mamba_num_heads": 2, "n_groups": 1, "n_routed_experts": 3},
    "falcon_h1": {**ATTENTION, "num_hidden_layers": 1},
    "granitemoehybrid": {
        **ATTENTION,
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 3,
    },
    "gated_deltanet": {"num_hidden_layers": 1, "num_heads": 1, "num_v_heads": 2},
    "qwen3_next": {**DELTA, "num_experts": 3, "num_experts_per_tok": 2},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {**DELTA, "num_experts": 3, "num_experts_per_tok": 2},
    "olmo_hybrid": DELTA,
    "kimi_linear": {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_heads": 1,
        "num_local_experts": 3,
    },
}
"""A program of a kernel takes milliseconds here: a layer of each kind, and few heads."""

CONFIGS = {
    one.model_type: {**one.cases[0].config, **FEWER[one.model_type]} for one in ARCHITECTURES
}

PROMPTS = Rows(torch.tensor([2, -1, 0], dtype=torch.int32), (2, -1, 0), (5, 2, 1))
"""Two prompts with a pad row between them."""

DECODE = torch.tensor([0, -1, 2], dtype=torch.int32)

N_STEPS = 1


@starts_the_interpreter
def test_models_run_over_the_kernels_of_a_gpu() -> None:
    run_in_the_interpreter(__file__, "equals")


def _decoder(config: Mapping[str, Any], kernels: Kernels) -> Decoder:
    """The same weights whatever the kernels."""
    plain, plan = random_decoder(config, device="cpu", dtype=torch.float32), blueprint(config)
    tensors = (random_weight(n, shape, seed=0, device="cpu") for n, shape in plan.weights.items())
    parameters = Parameters(plan.weights, tensors, device="cpu", dtype=torch.float32)
    with torch.inference_mode():
        return Decoder(plain.info, plain.layout, plan.build(parameters, kernels))


def _run(decoder: Decoder, *, captured: bool) -> tuple[list[Tensor], Slots]:
    """Logits of the live tokens of all steps, and the slots after them."""
    slots = Slots(decoder, 4)
    for slot in (0, 2):
        slots.open(slot)
    ids = torch.arange(3, 3 + PROMPTS.n_tokens)
    live = [True] * 5 + [False] * 2 + [True]
    outputs = [decoder.run(ids, PROMPTS, slots.arena.views)[live]]
    for step in range(N_STEPS):
        host = None if captured else tuple(DECODE.tolist())
        rows = Rows(DECODE, host, (1, 1, 1))
        ids = torch.tensor([7, 9, 11]) + step
        outputs.append(decoder.run(ids, rows, slots.arena.views)[[0, 2]])
    return outputs, slots


@pytest.mark.skipif(not INTERPRETED, reason="in the interpreter alone")
@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_model_over_the_kernels_of_a_gpu_equals_it_over_those_of_a_cpu(model_type: str) -> None:
    from wkvm.kernels import gpu

    config = {"model_type": model_type, **CONFIGS[model_type]}
    expected, right = _run(_decoder(config, cpu), captured=False)
    found, slots = _run(_decoder(config, gpu), captured=True)
    for logits, wanted in zip(found, expected, strict=True):
        assert (logits - wanted).abs().max() < TOLERANCE
    for slot in (0, 2):
        for name, tensor in right.state(slot).items():
            assert (slots.state(slot)[name] - tensor).abs().max() < TOLERANCE
    assert [slots.bytes_of(slot) for slot in (1, 3)] == [right.bytes_of(slot) for slot in (1, 3)]
