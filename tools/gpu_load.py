"""How long a checkpoint takes from files to a GPU, and how much memory on the way.

    python tools/gpu_load.py --output bench/results/FILE.jsonl --folder /tmp/wkvm-load

Random weights are written there first, as a folder and as a ``.pth`` file, and stay: a second run
finds them. One JSON line per finding.
"""

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu_findings import Finding, Findings  # noqa: E402
from tools.gpu_models import random_parameters, shape_of  # noqa: E402
from wkvm.models.registry import load_model  # noqa: E402
from wkvm.models.rwkv7_params import Rwkv7Shape, read_shape  # noqa: E402
from wkvm.models.rwkv7_params import _sources as sources  # noqa: E402
from wkvm.models.weights import Checkpoint, open_checkpoint  # noqa: E402

MIXES = "rwkvag"


def stored(
    shape: Rwkv7Shape, parameters: dict[str, Tensor], *, is_blink: bool
) -> Iterator[tuple[str, Tensor]]:
    """Under the names and in the shapes of a checkpoint, on the CPU."""
    for name, source in sources(shape, is_blink=is_blink, shapes={}):
        if name in parameters:
            tensor = parameters[name]
        else:
            tensor = parameters[name[:-2]][MIXES.index(name[-1])]
        if source.transpose:
            tensor = tensor.t()
        yield source.name, tensor.reshape(source.shape).contiguous().cpu()


def write_folder(folder: Path, shape: Rwkv7Shape, parameters: dict[str, Tensor]) -> None:
    """A folder with ``config.json`` and one safetensors file."""
    header, at = dict[str, object](), 0
    tensors = list(stored(shape, parameters, is_blink=False))
    for name, tensor in tensors:
        offsets = [at, at + tensor.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in tensors:
            file.write(memoryview(tensor.flatten().view(torch.uint8).numpy()))  # type: ignore[arg-type]
    (folder / "config.json").write_text(json.dumps({"model_type": "rwkv7"}))


def written(folder: Path, name: str) -> list[Path]:
    """The folder and the ``.pth`` file of a shape; made if they are not there."""
    paths = [folder / name, folder / f"{name}.pth"]
    if not all(path.exists() for path in paths):
        shape = shape_of(name)
        parameters = random_parameters(shape, torch.bfloat16)
        write_folder(paths[0], shape, parameters)
        torch.save(dict(stored(shape, parameters, is_blink=True)), paths[1])
    return paths


def loads(path: Path, quantization: str, *, hashes: bool) -> Finding:
    """Loading once, with files that the page cache has."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    began = time.monotonic()
    read_shape(open_checkpoint(path))
    opened = time.monotonic()
    digest = Checkpoint.digest if hashes else lambda _: hashlib.sha256().hexdigest()
    with mock.patch.object(Checkpoint, "digest", digest):
        model = load_model(path, device="cuda", quantization=quantization)
    torch.cuda.synchronize()
    loaded = time.monotonic()
    held = torch.cuda.memory_allocated() - before
    return {
        "timing": f"{path.name} to the GPU, quantization {quantization}"
        + ("" if hashes else ", without its digest"),
        "open_s": round(opened - began, 3),
        "load_s": round(loaded - opened, 3),
        "file_gb": round(sum(f.stat().st_size for f in open_checkpoint(path).files) / 1e9, 3),
        "weights_gb": round(model.info.weight_bytes / 1e9, 3),
        "held_gb": round(held / 1e9, 3),
        "peak_gb": round((torch.cuda.max_memory_allocated() - before) / 1e9, 3),
        "host_gb": round(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e9, 3),
    }


def main() -> None:
    """Write the checkpoints, and a line for each way of loading them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", default="1.5B")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    # Digests are to be computed, not found.
    os.environ["XDG_CACHE_HOME"] = str(args.folder / "no-cache")
    command = f"python tools/gpu_load.py --model {args.model} --folder FOLDER --output FILE"
    folder, pth = written(args.folder, args.model)
    gc.collect()
    load_model(folder, device="cuda")  # what is compiled and set up once
    with args.output.open("a") as output:
        findings = Findings(output, commit=args.commit, command=command)
        for quantization in ("none", "fp8", "int8"):
            findings.add(loads(folder, quantization, hashes=False))
        findings.add(loads(pth, "none", hashes=False))
        for file in (args.folder / "no-cache").rglob("digests/*"):
            file.unlink()
        findings.add(loads(folder, "none", hashes=True))


if __name__ == "__main__":
    main()
