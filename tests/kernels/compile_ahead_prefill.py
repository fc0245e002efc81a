"""Compile the kernels of prompts to machine code for sm_90; print the name of each that did.

Those of float32 models take too long to compile for a test.
"""

import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels import rwkv7_prefill as kernels

POINTERS = {
    **dict.fromkeys(("vectors", "decays", "bonuses", "x", "own", "adds", "state"), "fp32"),
    **dict.fromkeys(("reads", "moves", "entering"), "fp16"),
    **dict.fromkeys(("rows", "chunks"), "i32"),
    "token_ids": "i64",
}

MAPS = {"x_map": "128,64", "weight_map": "256,64", "out_map": "128,128"}
"""Blocks of the squared product that tensor maps move."""


def compiled_bytes(kernel: Any, **constants: Any) -> int:
    """Bytes of machine code."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in MAPS:
            signature[name] = f"tensordesc<bf16[{MAPS[name]}]>"
        elif name in ("T", "N", "K"):
            signature[name] = "i32"
        elif name.endswith("stride"):
            signature[name] = "i64"
        elif name.endswith("eps"):
            signature[name] = "fp32"
        else:
            signature[name] = "*" + POINTERS.get(name, "bf16")
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return len(compiled.asm["cubin"])


def main() -> None:
    """All of them, for heads of 64."""
    sizes = {"H": 5, "K": 64, "BLOCK": 64}
    units: dict[str, Any] = {"L": 64, "PRECISION": "tf32"}
    mixes = {"N_TOKENS": 8, "N_MIXES": 6, "EMBEDS": False, "MOVES": True}
    within: dict[str, Any] = {
        "BASE": 8,
        "OPERAND": tl.bfloat16,
        "NARROW": tl.float16,
    }
    squared = {"BLOCK_T": 128, "BLOCK_N": 256, "BLOCK_K": 64, "N_TOGETHER": 16, "N_PARTS": 2}
    found = {
        "mix": compiled_bytes(kernels.mix_kernel, C=320, BLOCK=512, **mixes),
        "squared": compiled_bytes(kernels.squared_kernel, **squared),
        "move": compiled_bytes(kernels.move_kernel, C=320, BLOCK=512),
        "within": compiled_bytes(kernels.within_kernel, **sizes, **units, **within),
        "pass": compiled_bytes(
            kernels.pass_kernel, **sizes, BLOCK_V=16, PRECISION="tf32", N_STAGES=3
        ),
        "outputs": compiled_bytes(kernels.outputs_kernel, **sizes, **units),
    }
    sys.stdout.write(" ".join(name for name, n_bytes in found.items() if n_bytes) + "\n")


if __name__ == "__main__":
    main()
