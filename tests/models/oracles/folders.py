"""Folders that transformers has written, and what it makes of some ids with the models in them."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.oracles.architectures import named_cases
from tests.models.oracles.case import Architecture, Config
from wkvm.core.layout import GUEST_PAGES

STREAM_LENGTHS = {"long": 83, "short": 9, "one": 1}
"""Tokens of the sequences that are compared: over a page and a chunk of 64, fewer, and one."""


def stream(name: str, vocab_size: int) -> list[int]:
    """The ids of a sequence."""
    draw = random.Random(name)
    return [draw.randrange(vocab_size) for _ in range(STREAM_LENGTHS[name])]


def write_folders(names: Iterable[str], base: Path) -> dict[str, Path]:
    """The folders of these cases, each with a file ``.expected`` beside it, by one process."""
    cases = named_cases()
    folders = {name: base / str(number) for number, name in enumerate(sorted(names))}
    jobs = []
    for name, folder in folders.items():
        architecture, case = cases[name]
        vocab_size = case.config["vocab_size"]
        assert isinstance(vocab_size, int)
        jobs.append(
            {
                "class": architecture.class_name,
                "config_class": architecture.config_class,
                "config": dict(case.config),
                "streams": {name: stream(name, vocab_size) for name in STREAM_LENGTHS},
                "folder": str(folder),
                "seed": crc32(name.encode()) + case.draw,
            }
        )
    (base / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    script = Path(__file__).with_name("transformers_oracle.py")
    # The process finds the modules that this one does.
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, str(script), str(base / "jobs.json")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for name, folder in folders.items():
        _, case = cases[name]
        if case.rewrite is not None:
            edit(folder, case.rewrite)
    return folders


def edit(folder: Path, change: Callable[[Config, dict[str, Tensor]], Any]) -> None:
    """Rewrite a folder: ``change`` returns its config and its tensors."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    config, tensors = change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def expected(folder: Path, architecture: Architecture) -> dict[str, dict[str, Tensor]]:
    """By stream: ``logits``, and the tensors of the state under the names of the layout.

    Windows are ``[L, W, C]`` of the last W inputs, ``guest.pages`` is ``[L, parts, T, H, D]`` of
    the last T tokens.
    """
    streams = dict[str, dict[str, Tensor]]()
    recurrent, conv = architecture.tensors
    for name, tensor in load_file(f"{folder}.expected").items():
        of, _, kind = name.partition("/")
        found = streams.setdefault(of, {})
        if kind == "recurrent":
            found[recurrent] = tensor
        elif kind == "conv":
            found[conv] = tensor.transpose(1, 2)
        else:
            found[kind] = tensor
    for found in streams.values():
        if "keys" not in found:
            continue
        if architecture.guest == "keys and values":
            found[GUEST_PAGES] = torch.stack((found.pop("keys"), found.pop("values")), 1)
        else:
            found[GUEST_PAGES] = torch.cat((found.pop("keys"), found.pop("values")), -1)[:, None]
    return streams
