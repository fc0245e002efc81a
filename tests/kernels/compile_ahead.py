"""Compile each Triton kernel to machine code for sm_90; print the name of each that did."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels.wkv7 import token_shift_kernel, wkv7_kernel

TENSORS = {"x", "delta", "r", "w", "k", "v", "kap", "a", "y", "state"}


def compiled_bytes(kernel: Any, dtype: str, constants: dict[str, Any]) -> int:
    """Bytes of machine code."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name == "state_stride":
            signature[name] = "i64"
        else:
            signature[name] = f"*{dtype}" if name in TENSORS else "*i32"
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return len(compiled.asm["cubin"])


def main() -> None:
    """All kernels, in decode and in prefill."""
    for K in (64, 48):
        for is_decode in (True, False):
            sizes = {"H": 5, "K": K, "V": K, "BLOCK_K": 64, "BLOCK_V": 32}
            # The recurrence is float32 in every model.
            assert compiled_bytes(wkv7_kernel, "fp32", {**sizes, "IS_DECODE": is_decode})
            sys.stdout.write("wkv7_kernel\n")
    for dtype in ("fp32", "bf16"):
        for is_decode in (True, False):
            sizes = {"C": 320, "BLOCK": 256}
            assert compiled_bytes(token_shift_kernel, dtype, {**sizes, "IS_DECODE": is_decode})
            sys.stdout.write("token_shift_kernel\n")


if __name__ == "__main__":
    main()
