"""Compile the sampler's kernels to machine code for sm_90; print the name of each that did."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels.device_sampling import choose, scan, search

TYPES = {
    **dict.fromkeys(("logits", "maxima"), "*fp32"),
    **dict.fromkeys(("slots", "slots_in", "masks", "winners", "broken", "n_on"), "*i32"),
    **dict.fromkeys(("records", "totals", "levels", "token_ids", "out_ids", "ids"), "*i64"),
    **dict.fromkeys(("addresses",), "*i64"),
    **dict.fromkeys(("has_mask",), "*i1"),
    **dict.fromkeys(("out_flags",), "*u8"),
}
ALIGNED = {"V", "row_stride", "mask_stride"}
"""Multiples of 16 in every model."""


def compiled(kernel: Any, constants: dict[str, int | bool]) -> Any:
    """The compiled kernel, with the options of its launch."""
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {
        name: "constexpr" if name in constants else TYPES.get(name, "i32")
        for name in kernel.arg_names
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={
            (at,): [["tt.divisibility", 16]]
            for at, name in enumerate(kernel.arg_names)
            if name in ALIGNED or signature[name].startswith("*")
        },
    )
    options = {"num_warps": 8, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def main() -> None:
    """All kernels, for the usual vocabulary and for the largest."""
    for n_chunks in (16, 64):
        sizes = {"CHUNK": 4096, "CHUNKS": n_chunks, "BLOCK": 256}
        for kernel in (
            choose.begin_kernel,
            choose.mark_kernel,
            scan.scan_kernel,
            search.search_kernel,
            choose.select_kernel,
        ):
            assert compiled(kernel, sizes).asm["cubin"]
            sys.stdout.write(f"{kernel.__name__}\n")
        for is_filtered in (False, True):
            assert compiled(scan.weigh_kernel, {**sizes, "FILTERED": is_filtered}).asm["cubin"]
            sys.stdout.write("weigh_kernel\n")


if __name__ == "__main__":
    main()
