"""Compile the kernels of the delta rule, of paged attention and of norms to machine code for sm_90.

Prints the name of each that did.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels.gpu import (
    attention_decode,
    attention_prefill,
    delta_decode,
    delta_prefill,
    delta_within,
    elementwise,
    norms,
)
from wkvm.kernels.gpu.paged import Heads

POINTERS = {
    **dict.fromkeys(("g", "beta", "state", "decays", "key_scores", "weight", "logs"), "fp32"),
    **dict.fromkeys(("parts", "A", "dt_bias", "frequencies"), "fp32"),
    **dict.fromkeys(("slots", "offsets", "table", "lengths", "positions"), "i32"),
}
NUMBERS = {"scale", "scale_log2", "eps", "scaling", "max_strength"}
COUNTS = {"n_rows", "n_vectors", "F"}

ATTENDED = {"qwen": Heads(4, 4, 256, 256, False), "latents": Heads(1, 32, 576, 512, True)}
"""Heads of 256 elements of which four read one, and MLA's latents."""


def compiled_bytes(kernel: Any, n_warps: int, **constants: Any) -> int:
    """Bytes of machine code, where strides and addresses are what they are in service."""
    options = {"num_warps": n_warps, "launch_pdl": bool(constants.get("PDL"))}
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        if name.endswith("stride"):
            signature[name] = "i64"
        elif name in NUMBERS:
            signature[name] = "fp32"
        elif name in COUNTS:
            signature[name] = "i32"
        else:
            signature[name] = "*" + POINTERS.get(name, "bf16")
        if name not in NUMBERS | COUNTS:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return len(compiled.asm["cubin"])


def of_the_delta_rule() -> Iterator[tuple[str, int]]:
    """All of them, with a decay for each head and for each channel."""
    sizes: dict[str, Any] = {"H": 32, "K": 128, "V": 128, "BLOCK_K": 128}
    chunks: dict[str, Any] = {"L": 64, "PRECISION": "tf32"}
    narrow: dict[str, Any] = {"GROUP": 1, "NARROW": tl.float16}
    scores = {name: value for name, value in sizes.items() if name != "V"}
    yield "scores", compiled_bytes(delta_within.scores_kernel, 4, **scores, **chunks, **narrow)
    for by_channel in (False, True):
        constants = {**sizes, "GROUP": 1, "BY_KEY": by_channel, "PDL": by_channel}
        for launch in dict.fromkeys(launch for _, launch in delta_decode.LAUNCHES):
            cut = {"RAW": True, "BLOCK_V": launch.block_v}
            kernel: Any = delta_decode.delta_decode_kernel
            yield "decode", compiled_bytes(kernel, launch.n_warps, **constants, **cut)
        constants = {**sizes, **chunks, "BY_CHANNEL": by_channel}
        within: dict[str, Any] = {**constants, **narrow, "BLOCK_V": 128, "OPERAND": tl.bfloat16}
        yield "within", compiled_bytes(delta_within.within_kernel, 8, **within)
        passing = {**constants, "BLOCK_V": 32, "N_STAGES": 3}
        yield "pass", compiled_bytes(delta_prefill.pass_kernel, 4, **passing)


def of_attention() -> Iterator[tuple[str, int]]:
    """All of them; with a window where heads are ordinary."""
    for name, heads in ATTENDED.items():
        sizes = {**heads.constants(), "WINDOW": 100 if name == "qwen" else 0}
        step = attention_decode.launch_of(heads)
        constants = {**sizes, "N_SPLITS": 64, "LEAST_PAGES": 2, "PRECISION": "tf32"}
        constants |= {"BLOCK_M": 16, "BLOCK_N": step.block_n, "N_STAGES": step.n_stages}
        kernel: Any = attention_decode.attention_decode_kernel
        yield "attend-decode", compiled_bytes(kernel, step.n_warps, **constants)
        prompt = attention_prefill.launch_of(heads, torch.bfloat16)
        constants = {**sizes, "N_HEADS": 4, "BLOCK_M": prompt.block_m, "BLOCK_N": prompt.block_n}
        constants |= {"N_STAGES": prompt.n_stages, "PRECISION": "tf32"}
        kernel = attention_prefill.attention_prefill_kernel
        yield "attend-prefill", compiled_bytes(kernel, prompt.n_warps, **constants)
    constants = {"HQ": 16, "DV": 256, "BLOCK_V": 256, "WINDOW": 0, "PAGE": 64}
    constants |= {"N_SPLITS": 64, "LEAST_PAGES": 2, "BLOCK_S": 8}
    yield "add-splits", compiled_bytes(attention_decode.add_splits_kernel, 2, **constants)
    constants = {"HKV": 4, "D": 256, "DV": 256, "SHARED": False, "PAGE": 64}
    constants |= {"BLOCK_T": 16, "BLOCK_C": 1024}
    yield "write", compiled_bytes(attention_prefill.write_pages_kernel, 4, **constants)


def of_the_rest() -> Iterator[tuple[str, int]]:
    """Norms, and what is one pass over its tensors."""
    rows: dict[str, Any] = {"H": 1, "C": 4096, "BLOCK_R": 1, "BLOCK_C": 4096, "ADDS": True}
    yield "norm", compiled_bytes(norms.norm_kernel, 8, **rows)
    rows = {"H": 32, "N_GROUPS": 1, "C": 128, "BLOCK_R": 8, "BLOCK_C": 128}
    rows |= {"SIGMOID": False, "GATE_FIRST": False}
    yield "gated-norm", compiled_bytes(norms.gated_norm_kernel, 4, **rows)
    heads = {"HQ": 16, "HK": 4, "R": 32, "BLOCK_HQ": 16, "BLOCK_HK": 4, "BLOCK_R": 32}
    yield "rotary", compiled_bytes(elementwise.rotary_kernel, 4, **heads)
    yield "swiglu", compiled_bytes(elementwise.swiglu_kernel, 4, BLOCK=1024)
    gates = {"H": 32, "K": 128, "BLOCK": 1024, "BLOCK_H": 32}
    yield "gates", compiled_bytes(elementwise.delta_gates_kernel, 4, **gates)


def main() -> None:
    """All of them, for bfloat16."""
    for group in (of_the_delta_rule, of_attention, of_the_rest):
        for name, n_bytes in group():
            if n_bytes:
                sys.stdout.write(name + "\n")


if __name__ == "__main__":
    main()
