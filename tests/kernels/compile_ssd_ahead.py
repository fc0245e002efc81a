"""Compile the kernels of Mamba-2 for sm_90; print the name of each that did."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels.gpu import conv, ssd_decode, ssd_prefill

FLOAT32 = {"dt_bias", "A", "D", "decays", "entering"}
INT32 = {"slots", "offsets"}
SIZES = {"H": 6, "P": 64, "N": 128, "G": 2}


def compiled(kernel: Any, *, dtype: str = "bf16", state: str = "fp32", **constants: Any) -> str:
    """The name of the kernel, once there is machine code of it."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("stride"):
            signature[name] = "i64" if name == "state_stride" else "i32"
        elif name == "n_rows":
            signature[name] = "i32"
        elif name in ("dt_low", "dt_high"):
            signature[name] = "fp32"
        elif name == "state":
            signature[name] = f"*{state}"
        elif name in FLOAT32:
            signature[name] = "*fp32"
        else:
            signature[name] = "*i32" if name in INT32 else f"*{dtype}"
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    options: dict[str, Any] = {"num_warps": 4}
    if "PDL" in constants:
        options = {"num_warps": 1, "launch_pdl": True}
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return kernel.__name__ if code.asm["cubin"] else ""


def main() -> None:
    """All of them, those of decode with all that they can do."""
    taps: dict[str, Any] = {"W": 4, "HAS_BIAS": True}
    raw: dict[str, Any] = {"RAW": True, "LIMITS": True}
    decode = {**SIZES, **raw, "BLOCK_P": 8, "BLOCK_N": 128, "PDL": True}
    found = [
        compiled(conv.conv_decode_kernel, state="bf16", C=640, BLOCK=256, PDL=True, **taps),
        compiled(
            conv.conv_prefill_kernel,
            state="bf16",
            C=640,
            X_STRIDE=640,
            BLOCK_T=32,
            BLOCK_C=128,
            BLOCK_ROWS=128,
            **taps,
        ),
        compiled(ssd_decode.ssd_decode_kernel, **decode),
        compiled(ssd_prefill.ssd_decays_kernel, H=6, L=64, BLOCK_H=8, BLOCK_ROWS=128, **raw),
    ]
    for dtype, chunk, p in (("bf16", 64, 64), ("fp32", 16, 32)):
        cut: dict[str, Any] = {**SIZES, "L": chunk, "SPAN": 512, "BLOCK_P": p, "N_STAGES": 2}
        cut |= {"X_STRIDE": 640, "B_STRIDE": 640}
        precision = "tf32" if dtype == "bf16" else "ieee"
        found += [
            compiled(
                ssd_prefill.ssd_states_kernel, dtype=dtype, BLOCK_N=64, PRECISION=precision, **cut
            ),
            compiled(
                ssd_prefill.ssd_outputs_kernel,
                dtype=dtype,
                C_STRIDE=640,
                BLOCK_N=128,
                BLOCK_ROWS=128,
                ENTERS=True,
                PRECISION=precision,
                **cut,
            ),
        ]
    sys.stdout.write(" ".join(filter(None, found)) + "\n")


if __name__ == "__main__":
    main()
