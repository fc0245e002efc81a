"""Host memory for states, which may take some GiB."""

import numpy as np
import torch
from torch import Tensor


def host_memory(n_bytes: int) -> Tensor:
    """``[n_bytes]`` uint8 on the host, not pinned: zeros.

    Memory is taken as it is written: a header may promise much. It comes from numpy, which asks
    for huge pages: whoever lets go of some GiB, perhaps the loop, gives them back in a tenth of
    the time.
    """
    return torch.from_numpy(np.zeros(n_bytes, dtype=np.uint8))
