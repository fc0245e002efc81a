"""What the kernels compute, written to be read and compared with; slow.

Each function has the signature and the contract of that name in ``cpu``, and of that in ``gpu``. It
computes in the dtype of its arguments, so float64 arguments give a float64 answer.
"""

from wkvm.kernels.reference.attention import attention
from wkvm.kernels.reference.conv import causal_conv
from wkvm.kernels.reference.delta import delta_gates, delta_mix, gated_delta
from wkvm.kernels.reference.experts import experts, swiglu
from wkvm.kernels.reference.gates import add_shared, open_gate
from wkvm.kernels.reference.norms import add_rms_norm, gated_rms_norm, rms_norm
from wkvm.kernels.reference.rotary import rotary
from wkvm.kernels.reference.routing import route_sigmoid, route_softmax
from wkvm.kernels.reference.rwkv7 import token_shift, wkv7
from wkvm.kernels.reference.ssd import ssd, ssd_mix

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
