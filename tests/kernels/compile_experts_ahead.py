"""Compile the kernels of a mixture of experts for sm_90; print the name of each that did."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wkvm.kernels.gpu import routing
from wkvm.kernels.gpu.experts import (
    count_kernel,
    expert_kernel,
    order_kernel,
    place_kernel,
    plan_kernel,
    share_kernel,
)

POINTERS = {
    **dict.fromkeys(("counts", "cursors", "order", "tiles"), "i32"),
    **dict.fromkeys(("scales", "parts", "shares", "bias", "logits"), "fp32"),
    "ids": "i64",
}
NUMBERS = ("n_assignments", "n_experts", "n_choices", "N", "K", "C", "H", "D")
SIZES: dict[str, Any] = {"BLOCK_T": 16, "BLOCK_N": 64, "BLOCK_K": 128, "PRECISION": "tf32"}


def compiled(kernel: Any, weight: str = "bf16", **constants: Any) -> str:
    """The name of the kernel, once there is machine code of it."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name == "scale":
            signature[name] = "fp32"
        elif name in NUMBERS:
            signature[name] = "i32"
        elif name.endswith("stride"):
            signature[name] = "i64"
        else:
            dtype = weight if name == "weight" else POINTERS.get(name, "bf16")
            signature[name] = f"*{dtype}"
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return kernel.__name__ if code.asm["cubin"] else ""


def of_router(
    groups: int, chosen_groups: int, each: int, chosen: int, *, sigmoid: bool, shared: str
) -> str:
    """The one that chooses, for such experts."""
    return compiled(
        routing.route_kernel,
        GROUPS=groups,
        CHOSEN_GROUPS=chosen_groups,
        EACH=each,
        CHOSEN=chosen,
        SIGMOID=sigmoid,
        RENORMALISED=True,
        SHARED=shared,
        BLOCK_G=triton.next_power_of_2(groups),
        BLOCK_E=triton.next_power_of_2(each),
        BLOCK_K=triton.next_power_of_2(chosen + (shared != "none")),
    )


def main() -> None:
    """All of them, the products with every kind of weights."""
    found = [
        compiled(count_kernel, BLOCK=256),
        compiled(plan_kernel, BLOCK_T=16, EXPERTS=512),
        compiled(place_kernel, BLOCK=256),
        compiled(order_kernel, BLOCK_T=16, EXPERTS=512, BLOCK=4096),
        compiled(share_kernel, BLOCK=1024),
        *(
            compiled(
                expert_kernel,
                weight,
                FIRST=is_first,
                SWIGLU=is_first,
                HAS_SCALES=weight != "bf16",
                **SIZES,
            )
            for weight in ("bf16", "fp8e4nv", "i8")
            for is_first in (True, False)
        ),
        of_router(1, 1, 512, 10, sigmoid=False, shared="gated"),
        of_router(1, 1, 256, 8, sigmoid=True, shared="whole"),
        of_router(8, 4, 32, 8, sigmoid=True, shared="none"),
        compiled(routing.open_gate_kernel, BLOCK=1024),
        compiled(routing.add_shared_kernel, HAS_GATE=True, BLOCK=1024),
    ]
    sys.stdout.write(" ".join(filter(None, found)) + "\n")


if __name__ == "__main__":
    main()
