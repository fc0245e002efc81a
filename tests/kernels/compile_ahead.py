"""Compile each Triton kernel to machine code for sm_90; print the name of each that did."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels import rwkv7_decode
from wkvm.kernels.dequantise import dequantise_kernel

DECODE_FLOATS = {"eps", "group_eps"}
DECODE_FLOAT32 = {"state", "vectors", "residual", "scales"}
DECODE_INT32 = {"slots", "tiles", "fill", "order"}
DECODE_TENSORS = {
    *("x", "table", "branch", "out", "shift", "norm_weight", "norm_bias", "mixes", "ahead"),
    *("weight", "normed", "rkv", "v_first", "hidden", "second", "second_weight", "y", "ring"),
}


def decode_bytes(
    kernel: Any, dtype: str, constants: dict[str, Any], *, held: str | None = None, **options: int
) -> int:
    """Bytes of machine code of a kernel of the decode step, launched dependently.

    ``held``: the dtype of its weights, if not ``dtype``.
    """
    launched = {"N_AHEAD": 16, "N_FETCHED": 512, "N_THREADS": 128, "PDL": True}
    constants |= {name: value for name, value in launched.items() if name in kernel.arg_names}
    blocks = [constants.get(f"BLOCK_{axis}") for axis in "BNK"]
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in DECODE_FLOAT32:
            signature[name] = "*fp32"
        elif name in DECODE_INT32:
            signature[name] = "*i32"
        elif name == "x_map":
            signature[name] = f"tensordesc<{dtype}[{blocks[0]},{blocks[2]}]>"
        elif name == "weight_map":
            signature[name] = f"tensordesc<{dtype}[{blocks[1]},{blocks[2]}]>"
        elif name == "token_ids":
            signature[name] = "*i64"
        elif name == "weight":
            signature[name] = f"*{held or dtype}"
        elif name in DECODE_TENSORS:
            signature[name] = f"*{dtype}"
        else:
            signature[name] = "fp32" if name in DECODE_FLOATS else "i32"
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    options = {"num_warps": 4, "launch_pdl": True, **options}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return len(compiled.asm["cubin"])


HELD: dict[str, tuple[str | None, ...]] = {"fp32": (None,), "bf16": (None, "fp8e4nv", "i8")}
"""What weights are held as, by the model's dtype; None for that itself."""


def decode_kernels(dtype: str) -> None:
    """Those of ``rwkv7_decode``."""
    constants: dict[str, Any] = {"C": 320, "BLOCK": 512, "EMBEDS": False, "N_PARTS": 2}
    constants |= {"N_MIXES": 6}
    assert decode_bytes(rwkv7_decode.mix_kernel, dtype, constants)
    sys.stdout.write("mix_kernel\n")
    constants = {"BLOCK_N": 64, "BLOCK_B": 32, "BLOCK_K": 64, "N_SPLITS": 2, "BY_TILE": True}
    constants |= {"WHAT": 0, "ADDS": True, "EVEN_N": True, "EVEN_B": False, "EVEN_K": False}
    constants |= {"PRECISION": "ieee" if dtype == "fp32" else "tf32"}
    for held in HELD[dtype]:
        assert decode_bytes(
            rwkv7_decode.product_kernel,
            dtype,
            {**constants, "HAS_SCALES": held is not None},
            held=held,
            num_stages=3,
        )
        sys.stdout.write("product_kernel\n")
    constants = {"BLOCK_N": 64, "BLOCK_B": 64, "BLOCK_K": 64, "N_SPLITS": 2, "WHAT": 0}
    constants |= {"PRECISION": "ieee" if dtype == "fp32" else "tf32"}
    assert decode_bytes(rwkv7_decode.mapped_kernel, dtype, constants, num_stages=3)
    sys.stdout.write("mapped_kernel\n")
    constants = {
        "B": 2,
        "K": 320,
        "BLOCK_N": 8,
        "BLOCK_K": 512,
        "BY_TILE": True,
        "WHAT": 0,
    }
    constants |= {"NORMS": True, "MIXES": True, "EMBEDS": True, "ADDS": False, "MOVES": True}
    for held in HELD[dtype]:
        of_held = {**constants, "HAS_SCALES": held is not None}
        assert decode_bytes(rwkv7_decode.gemv_kernel, dtype, of_held, held=held)
        sys.stdout.write("gemv_kernel\n")
    constants = {"H": 5, "K": 64, "BLOCK": 64, "IS_FIRST": False, "MOVES": True}
    for letter in "VWAG":
        constants |= {f"RANK_{letter}": 32, f"BLOCK_{letter}": 32}
    for expands in (False, True):
        for ring in (0, 8):
            sizes = {**constants, "EXPANDS": expands, "R": ring}
            assert decode_bytes(rwkv7_decode.wkv_kernel, dtype, sizes)
            sys.stdout.write("wkv_kernel\n")
    assert decode_bytes(
        rwkv7_decode.fold_kernel, dtype, {"L": 2, "H": 5, "K": 64, "BLOCK": 64, "R": 8}
    )
    sys.stdout.write("fold_kernel\n")
    assert decode_bytes(rwkv7_decode.empty_kernel, dtype, {"BLOCK": 256})
    sys.stdout.write("empty_kernel\n")
    assert decode_bytes(rwkv7_decode.begin_ring_kernel, dtype, {"BLOCK": 256, "R": 8})
    sys.stdout.write("begin_ring_kernel\n")


def dequantise_bytes(held: str) -> int:
    """Bytes of machine code of what makes bfloat16 of quantised weights."""
    pointers = {"values": f"*{held}", "scales": "*fp32", "out": "*bf16"}
    source = ASTSource(
        fn=dequantise_kernel,
        signature={**pointers, "n_values": "i32", "K": "i32", "BLOCK": "constexpr"},
        constexprs={(5,): 4096},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    return len(compiled.asm["cubin"])


def main() -> None:
    """All kernels but those of prompts."""
    for dtype in ("fp32", "bf16"):
        decode_kernels(dtype)
    for held in ("fp8e4nv", "i8"):
        assert dequantise_bytes(held)
        sys.stdout.write("dequantise_kernel\n")


if __name__ == "__main__":
    main()
