"""Run the PyPI package ``rwkv`` over checkpoints: ``oracle_rwkv.py IDS OUT MODEL.pth...``.

In a process of its own, because the package reads its settings from the environment while it is
imported. States are written in wkvm's orientation: the package's wkv is [value, key].
"""

import contextlib
import io
import json
import os
import sys

os.environ.update(RWKV_V7_ON="1", RWKV_CUDA_ON="0", RWKV_JIT_ON="0")

import torch


def main(ids: list[int], out: str, paths: list[str]) -> None:
    """Logits after each id, and the last state, of each model."""
    from rwkv.model import RWKV

    results = []
    for path in paths:
        with contextlib.redirect_stdout(io.StringIO()):
            model = RWKV(model=path.removesuffix(".pth"), strategy="cpu fp32")
        logits, state = [], None
        for token_id in ids:
            output, state = model.forward([token_id], state)
            logits.append(output.clone().float())
        assert state is not None
        results.append(
            {
                "logits": torch.stack(logits),
                "att_shift": torch.stack(state[0::3]).float(),
                "wkv": torch.stack(state[1::3]).transpose(2, 3).contiguous(),
                "ffn_shift": torch.stack(state[2::3]).float(),
            }
        )
    torch.save(results, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:])
