"""Run the PyPI package ``rwkv7-hf`` over checkpoints: ``oracle_rwkv7_hf.py IDS OUT FOLDER...``.

In a process of its own, because transformers would import an installed fla, which needs a GPU.
Its wkv is [key, value], as wkvm's.
"""

import json
import sys

for name in ("fla", "mamba_ssm", "causal_conv1d"):
    sys.modules[name] = None  # type: ignore[assignment]

import torch  # noqa: E402


def main(ids: list[int], out: str, folders: list[str]) -> None:
    """Logits after each id, and the last state, of each model."""
    from rwkv7_hf import RWKV7ForCausalLM

    results = []
    for folder in folders:
        model = RWKV7ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            output = model(torch.tensor([ids]), use_cache=True)
        cache = output.past_key_values
        results.append(
            {
                "logits": output.logits[0].float(),
                "att_shift": torch.stack([x[0] for x in cache.attention_shift]).flatten(1).float(),
                "wkv": torch.stack([x[0] for x in cache.recurrent_state]).float(),
                "ffn_shift": torch.stack([x[0] for x in cache.ffn_shift]).flatten(1).float(),
            }
        )
    torch.save(results, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:])
