"""What of a model is needed to take a ring into a state."""

from torch import Tensor

from wkvm.models.base import Model
from wkvm.models.rwkv7 import RING


def fold_vectors(model: Model) -> Tensor | None:
    """The ``vectors`` of ``wkvm.kernels.ring.fold``, in host memory; None if states have no ring.

    ``wkvm.state.folding.fold_with`` makes of them what mutations and comparisons ask for.
    """
    if all(spec.name != RING for spec in model.layout.tensors):
        return None
    # Only here: importing Triton takes seconds, and a state without a ring needs none of it.
    from wkvm.models.rwkv7_gpu import Rwkv7Gpu

    if not isinstance(model, Rwkv7Gpu):
        raise TypeError(f"states of a {type(model).__name__} have a ring, and no way to fold it")
    return model.fold_vectors
