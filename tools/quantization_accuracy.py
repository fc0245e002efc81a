"""What quantised weights cost a trained model, on a CPU: perplexity, KL divergence, best ids.

    python tools/quantization_accuracy.py TEXT --output bench/results/FILE.jsonl

TEXT is UTF-8 (``.xz`` too) with a line ``<|endoftext|>`` between documents. The matrices are
quantised and multiplied out again, and all else is float32: so nothing but quantization differs.
"""

import argparse
import json
import lzma
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.tiny_rwkv7 import batch_of  # noqa: E402
from wkvm.gateway.text import load_tokenizer  # noqa: E402
from wkvm.kernels.weight import quantised  # noqa: E402
from wkvm.models.registry import load_model  # noqa: E402
from wkvm.models.rwkv7 import Rwkv7  # noqa: E402
from wkvm.models.rwkv7_params import load_parameters, read_shape  # noqa: E402
from wkvm.models.weights import open_checkpoint  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

BUNDLED = ROOT / "wkvm/bundled/rwkv7-tinystories"
LARGE = ("receptance.weight", "key.weight", "value.weight", "output.weight")
STAGES = {"first stages": "1", "second stages": "2"}
ROWS = 10
MAX_IDS = 300
"""Of a document."""

CHOICES = (
    ("large matrices",),
    ("large matrices", "first stages"),
    ("large matrices", "first stages", "second stages"),
    ("large matrices", "first stages", "head"),
)
"""What is quantised; the second is what ``--quantization`` does."""


def back(matrix: Tensor, quantization: str) -> Tensor:
    """``[out, in]`` quantised, and multiplied out again."""
    weight = quantised(matrix, quantization)
    if weight.scales is None:
        return matrix
    return weight.values.float() * weight.scales[:, None]


def with_quantised(
    parameters: dict[str, Tensor], quantization: str, choice: tuple[str, ...]
) -> dict[str, Tensor]:
    """The parameters, of which some are as a quantised model has them."""
    maps = tuple(f"att.{letter}{STAGES[c]}" for c in choice if c in STAGES for letter in "wavg")
    result = dict(parameters)
    for name, tensor in parameters.items():
        if name.endswith(LARGE) or (name == "head.weight" and "head" in choice):
            result[name] = back(tensor, quantization)
        elif name.endswith(maps) and maps:
            result[name] = back(tensor.t().contiguous(), quantization).t()
    return result


def logits_of(model: Rwkv7, texts: list[list[int]]) -> Tensor:
    """After each id of each text."""
    found = list[Tensor]()
    for at in range(0, len(texts), ROWS):
        rows = texts[at : at + ROWS]
        arena = Arena(model.layout, len(rows), "cpu")
        arena.zero(range(len(rows)))
        batch = batch_of(list(enumerate(rows)), all_logits=True)
        found.append(model.forward(batch, arena.views))
    return torch.cat(found)


def findings(path: Path, n_documents: int) -> Iterator[dict[str, Any]]:
    """One for the model as it is, and one for each way of quantising it."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        documents = file.read().split("<|endoftext|>")
    tokenizer = load_tokenizer(BUNDLED)
    kept = [text.strip() for text in documents if text.strip()][:n_documents]
    texts = [[0, *list(tokenizer.encode(text))[:MAX_IDS]] for text in kept]
    follows = torch.cat([torch.tensor([*text[1:], -1]) for text in texts])
    inner = follows >= 0
    checkpoint = open_checkpoint(BUNDLED)
    shape = read_shape(checkpoint)
    parameters = {name: t.float().contiguous() for name, t in load_parameters(checkpoint, shape)}
    info = load_model(BUNDLED, device="cpu", dtype="float32").info
    exact = logits_of(Rwkv7(info, shape, dict(parameters)), texts)
    p = exact.log_softmax(-1)

    def perplexity(log_p: Tensor) -> float:
        return math.exp(-log_p[inner].gather(1, follows[inner, None]).mean())

    yield {"quantization": "none", "perplexity": round(perplexity(p), 4), "ids": len(follows)}
    for quantization in ("fp8", "int8"):
        for choice in CHOICES:
            model = Rwkv7(info, shape, with_quantised(parameters, quantization, choice))
            logits = logits_of(model, texts)
            q = logits.log_softmax(-1)
            kl = (p.exp() * (p - q)).sum(-1)
            error = (logits - exact).norm() / exact.norm()
            same = (logits.argmax(1) == exact.argmax(1)).float().mean()
            yield {
                "quantization": quantization,
                "of": list(choice),
                "perplexity": round(perplexity(q), 4),
                "kl_mean": float(f"{float(kl.mean()):.3g}"),
                "kl_p99": float(f"{float(kl.quantile(0.99)):.3g}"),
                "same_best_id": round(float(same), 4),
                "relative_logit_error": float(f"{float(error):.3g}"),
            }


def main() -> None:
    """Write a line for each finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = {
        "model": "bundled",
        "commit": args.commit,
        "date": time.strftime("%Y-%m-%d"),
        "device": "cpu",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "command": "python tools/quantization_accuracy.py TEXT --output FILE",
    }
    with args.output.open("a") as output, torch.inference_mode():
        for finding in findings(args.text, args.documents):
            print(json.dumps(finding), flush=True)
            output.write(json.dumps({**finding, **about}) + "\n")


if __name__ == "__main__":
    main()
