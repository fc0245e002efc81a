"""The Triton kernels compile for the GPUs they are meant for, on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

from tests.interpreter import needs_triton

pytestmark = needs_triton


def compiled(script: str) -> list[str]:
    """What a script beside this file says that it compiled."""
    # In a process of its own: where TRITON_INTERPRET is set, nothing can be compiled.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_every_kernel_of_decode_steps_compiles_for_sm_90() -> None:
    products = ["product_kernel", "mapped_kernel", "gemv_kernel"]
    of_each = ["product_kernel"] * 3 + ["mapped_kernel"] + ["gemv_kernel"] * 3
    recurrence = [*["wkv_kernel"] * 4, "fold_kernel", "empty_kernel", "begin_ring_kernel"]
    float32 = ["mix_kernel", *products, *recurrence]
    bfloat16 = ["mix_kernel", *of_each, *recurrence]
    back = ["dequantise_kernel"] * 2
    assert compiled("compile_ahead.py") == float32 + bfloat16 + back


def test_every_kernel_of_prompts_compiles_for_sm_90() -> None:
    kernels = ["mix", "squared", "move", "within", "pass", "outputs"]
    assert compiled("compile_ahead_prefill.py") == kernels


def test_every_kernel_of_the_sampler_compiles_for_sm_90() -> None:
    assert len(compiled("compile_sampling_ahead.py")) == 21


def test_every_kernel_of_experts_compiles_for_sm_90() -> None:
    ordering = ["count_kernel", "plan_kernel", "place_kernel", "order_kernel", "share_kernel"]
    routing = [*["route_kernel"] * 3, "open_gate_kernel", "add_shared_kernel"]
    assert compiled("compile_experts_ahead.py") == [*ordering, *["expert_kernel"] * 6, *routing]


def test_every_kernel_of_mamba_2_compiles_for_sm_90() -> None:
    decode = ["conv_decode_kernel", "conv_prefill_kernel", "ssd_decode_kernel"]
    of_each = ["ssd_states_kernel", "ssd_outputs_kernel"]
    assert compiled("compile_ssd_ahead.py") == [*decode, "ssd_decays_kernel", *of_each, *of_each]


def test_every_kernel_of_the_delta_rule_and_of_attention_compiles_for_sm_90() -> None:
    delta = ["scores", *[*["decode"] * 3, "within", "pass"] * 2]
    attention = [*["attend-decode", "attend-prefill"] * 2, "add-splits", "write"]
    others = ["norm", "gated-norm", "rotary", "swiglu", "gates"]
    assert compiled("compile_delta_ahead.py") == delta + attention + others
