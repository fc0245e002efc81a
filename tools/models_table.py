"""Write docs/models.md: which models are run, and what of their configurations is.

    python -m tools.models_table

Made of the cases that tests hold to transformers. A test holds the document to what this writes.
"""

import json
from pathlib import Path

from tests.models.oracles.architectures import ARCHITECTURES
from tests.models.oracles.case import Architecture, Refusal

PATH = Path(__file__).parents[1] / "docs/models.md"

HEAD = """# Models

<!-- Written by `python -m tools.models_table` from the cases in `tests/models/oracles`. -->

A model is a folder with `config.json` and safetensors files, one or several with an index, under
the names that its publisher gave them; RWKV-7 is also read from `.pth` files. `model_type` in
`config.json` says which class it is. `wkvm inspect FOLDER` tells what a folder holds, and what a
state of it takes, without loading it. wkvm fetches nothing by itself: `hf download MAKER/MODEL
--local-dir FOLDER` does.

All run on CPUs and NVIDIA GPUs. `--deterministic` is on CPUs for all of them, on GPUs for RWKV-7
alone.

A *family* is a kind of recurrence: what a state's record has of it is of a fixed size. Attention
layers keep something of every token as well, their *guest*, in pages of a pool.

Tokenizer, chat template and `generation_config.json` are read as published, too:
[which files](cli.md#the-command-line). Mamba-2 of state-spaces brings none of them: put beside the
weights the `tokenizer.json` of `EleutherAI/gpt-neox-20b`, and for an end `{"eos_token_id": 0}` as
`generation_config.json`. `tiktoken.model`, as Kimi-Linear has it, and `tokenizer.model` are not
read: put a `tokenizer.json` made of them there, or serve ids alone, with `--port none`.

Whatever a configuration says that would change what is computed is honoured, or the model is
refused with an error that names it. Missing, unknown and misshapen weights are named too.

Pickled weights (`pytorch_model.bin`, as the Mamba-2 models of state-spaces have) are not read.
This, in their folder, converts them, and runs nothing that may be in them:

```python
import torch
from safetensors.torch import save_file

weights = torch.load("pytorch_model.bin", weights_only=True, map_location="cpu")
weights = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
save_file(weights, "model.safetensors", metadata={"format": "pt"})
```

"""

RWKV7 = (
    "| `RWKV7ForCausalLM` of flash-linear-attention, `.pth` | `rwkv7` | rwkv7 | none "
    "| `rwkv`, `rwkv7-hf` |\n"
)

MIDDLE = """
Each case below is a small random model of odd shapes. Its logits and states are within 1e-4 of
those of its oracle, in float32 on a CPU: absorbed whole, in pieces that end anywhere, in a batch
with strangers and pad rows, and after its state has moved to another slot of another arena. Each
refusal is a change of one such configuration; those of what contradicts itself are among them.
"""


def document() -> str:
    """All of docs/models.md."""
    rows = "".join(_row(one) for one in ARCHITECTURES)
    table = (
        "| class | `model_type` | family | guest | oracle |\n|---|---|---|---|---|\n" + RWKV7 + rows
    )
    return HEAD + table + MIDDLE + "".join(_section(one) for one in ARCHITECTURES)


def _row(one: Architecture) -> str:
    anchor = one.class_name.lower()
    types = ", ".join(f"`{name}`" for name in one.model_types)
    return (
        f"| [`{one.class_name}`](#{anchor}) | {types} | {one.family} "
        f"| {one.guest or 'none'} | {one.oracle} |\n"
    )


def _section(one: Architecture) -> str:
    lines = [
        f"\n## {one.class_name}\n",
        f"\n{one.supported[0].upper()}{one.supported[1:]}.\n",
        "\n",
    ]
    lines += [f"- {case.name}\n" for case in one.cases]
    lines.append(f"\nRefused: {'; '.join(map(_changes, one.refusals))}.\n")
    if one.ignored:
        names = ", ".join(f"`{prefix}*`" for prefix in one.ignored)
        lines.append(f"\nWeights that are left out: {names}.\n")
    return "".join(lines)


def _changes(refusal: Refusal) -> str:
    fields = ", ".join(f"`{key}: {json.dumps(value)}`" for key, value in refusal.changes.items())
    return fields + (f" ({refusal.case})" if refusal.case else "")


def main() -> None:
    """Rewrite docs/models.md."""
    PATH.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
