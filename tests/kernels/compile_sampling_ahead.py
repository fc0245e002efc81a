"""Compile the sampler's kernels to machine code for sm_90; print the name of each that did."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels.device_sampling import bracket, choose, launch, scan, search

TYPES = {
    **dict.fromkeys(("logits", "maxima", "samples", "tops", "brackets"), "*fp32"),
    **dict.fromkeys(("slots", "slots_in", "masks", "winners", "broken", "n_above"), "*i32"),
    **dict.fromkeys(("records", "totals", "above", "heavy"), "*i64"),
    **dict.fromkeys(("token_ids", "out_ids", "ids", "found", "addresses"), "*i64"),
    **dict.fromkeys(("has_mask",), "*i1"),
    **dict.fromkeys(("out_flags",), "*u8"),
    **dict.fromkeys(("listed", "n_listed"), "*i32"),
}
ALIGNED = {"V", "row_stride", "mask_stride"}
"""Multiples of 16 in every model."""


def compiled(kernel: Any, constants: dict[str, int], n_warps: int) -> Any:
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
    options = {"num_warps": n_warps, "enable_fp_fusion": False, "launch_pdl": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def main() -> None:
    """All kernels, for the usual vocabulary and for the largest, for few rows and for many."""
    for vocab_size, group in ((65_536, 1), (65_536, 8), (262_144, 8)):
        scratch = launch.Scratch(1, vocab_size, "cpu")
        n_chunks = scratch.n_chunks
        sizes = {"CHUNK": 2048, "CHUNKS": n_chunks, "GROUP": group}
        sizes |= {"PARTS": n_chunks // group, "LIST": scratch.list, "STRIDE": scratch.stride}
        sizes |= {"BLOCK": 2048, "LINES": 4, "ALIGNED": True, "PDL": group == 1}
        for kernel, n_warps in (
            (choose.begin_kernel, 4),
            (choose.mark_kernel, 4),
            (scan.scan_kernel, 8),
            (bracket.bracket_kernel, launch.BRACKET_WARPS * scratch.times),
            (scan.weigh_kernel, 4),
            (search.resolve_kernel, launch.RESOLVE_WARPS * scratch.times),
            (choose.select_kernel, 8),
        ):
            assert compiled(kernel, sizes, n_warps).asm["cubin"]
            sys.stdout.write(f"{kernel.__name__}\n")


if __name__ == "__main__":
    main()
