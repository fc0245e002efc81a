"""The kernels in plain torch, arranged for few operations on a CPU.

Signatures and contracts are those of ``reference``. The order of the sums differs from it, and
depends on nothing but the row itself.
"""

from wkvm.kernels.cpu.attention import attention
from wkvm.kernels.cpu.conv import causal_conv
from wkvm.kernels.cpu.delta import delta_mix, gated_delta
from wkvm.kernels.cpu.experts import experts, swiglu
from wkvm.kernels.cpu.rwkv7 import token_shift, wkv7
from wkvm.kernels.cpu.ssd import ssd, ssd_mix
from wkvm.kernels.reference.delta import delta_gates
from wkvm.kernels.reference.gates import add_shared, open_gate
from wkvm.kernels.reference.norms import add_rms_norm, gated_rms_norm, rms_norm
from wkvm.kernels.reference.rotary import rotary
from wkvm.kernels.reference.routing import route_sigmoid, route_softmax

__all__ = [
    "add_rms_norm",
    "add_shared",
    "attention",
    "causal_conv",
    "delta_gates",
    "delta_mix",
    "experts",
    "gated_delta",
    "gated_rms_norm",
    "open_gate",
    "rms_norm",
    "rotary",
    "route_sigmoid",
    "route_softmax",
    "ssd",
    "ssd_mix",
    "swiglu",
    "token_shift",
    "wkv7",
]
