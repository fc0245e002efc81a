"""The kernels of models on a GPU, in Triton: the signatures and contracts of ``reference``.

Some take more, by name, such as how the work is cut: that is for tests and timings. Importing this
package imports Triton. Kernels read slots, offsets and lengths on the device alone,
so that a captured step can be replayed on others. None that updates in place is ever autotuned:
each trial run would apply its update once more.
"""

from wkvm.kernels.gpu.attention_prefill import attention
from wkvm.kernels.gpu.conv import causal_conv
from wkvm.kernels.gpu.delta_mix import delta_mix
from wkvm.kernels.gpu.delta_prefill import gated_delta
from wkvm.kernels.gpu.elementwise import delta_gates, rotary, swiglu
from wkvm.kernels.gpu.experts import experts
from wkvm.kernels.gpu.norms import add_rms_norm, gated_rms_norm, rms_norm
from wkvm.kernels.gpu.routing import add_shared, open_gate, route_sigmoid, route_softmax
from wkvm.kernels.gpu.ssd import ssd, ssd_mix

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
]
