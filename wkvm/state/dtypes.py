"""The dtypes of states, as torch has them."""

import torch

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
}
"""Those of ``ITEM_BYTES``."""
