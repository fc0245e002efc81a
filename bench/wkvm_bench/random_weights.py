"""Decoders of any architecture with random weights: finite, and bounded in all they compute."""

import json
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from wkvm.kernels.interface import Kernels
from wkvm.models.blueprint import Blueprint
from wkvm.models.decoder import Decoder
from wkvm.models.parameters import Parameters
from wkvm.models.registry import blueprint_of
from wkvm.models.sources import Loading, decoder_of
from wkvm.models.weights import Checkpoint

TIME_STEPS = (1e-3, 0.1)
"""Least and largest step of a state space at the start, as such models begin their training."""


SHARD_BYTES = 4 * 10**9


def blueprint(config: Mapping[str, Any]) -> Blueprint:
    """What the architecture of a ``config.json`` makes of it, without any weights."""
    checkpoint = Checkpoint(Path("random weights"), config, {}, (), {})
    return blueprint_of(checkpoint, config["model_type"])


def random_decoder(
    config: Mapping[str, Any],
    *,
    device: str,
    dtype: torch.dtype,
    quantization: str = "none",
    seed: int = 0,
    drawn_on: str | None = None,
    kernels: Kernels | None = None,
) -> Decoder:
    """A model of that config.

    Args:
        config: as in ``config.json``; what it leaves out has transformers' defaults.
        quantization: of its matrices.
        drawn_on: where the numbers are drawn, ``device`` for None: those of another device are
            others.
        kernels: None for those of the device.
    """
    plan = blueprint(config)
    tensors = (
        random_weight(name, shape, seed=seed, device=drawn_on or device).to(device, dtype)
        for name, shape in plan.weights.items()
    )
    parameters = Parameters(
        plan.weights, tensors, device=device, dtype=dtype, quantization=quantization
    )
    loading = Loading(device=device, dtype=dtype, eos_ids=(), quantization=quantization)
    n_parameters = sum(map(prod, plan.weights.values()))
    return decoder_of(plan, parameters, loading, n_parameters, lambda: "0" * 64, kernels)


def write_folder(
    folder: Path, config: Mapping[str, Any], *, dtype: torch.dtype, device: str, seed: int = 0
) -> None:
    """Write the model of ``random_decoder`` as a folder in shards, each of about ``SHARD_BYTES``.

    Args:
        folder: is made.
        device: where the numbers are drawn.
    """
    folder.mkdir()
    shard, n_bytes, files = dict[str, Tensor](), 0, dict[str, str]()

    def write() -> None:
        name = f"model-{len(set(files.values())):05}.safetensors"
        save_file(shard, folder / name)
        files.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, shape in blueprint(config).weights.items():
        shard[name] = random_weight(name, shape, seed=seed, device=device).to(dtype).cpu()
        n_bytes += shard[name].nbytes
        if n_bytes >= SHARD_BYTES:
            write()
            n_bytes = 0
    if shard:
        write()
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def random_weight(name: str, shape: tuple[int, ...], *, seed: int, device: str) -> Tensor:
    """A weight of that published name, float32, which depends on nothing but these arguments."""
    draw = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(shape, generator=draw, device=device) * (high - low) + low

    def normal(std: float) -> Tensor:
        return torch.randn(shape, generator=draw, device=device) * std

    last = name.removesuffix(".weight").rpartition(".")[2]
    if last == "A_log":
        return uniform(1.0, 16.0).log_()
    if last == "dt_bias":
        low, high = (torch.tensor(step).log().item() for step in TIME_STEPS)
        steps = uniform(low, high).exp_()
        return steps + torch.log(-torch.expm1(-steps))
    if last == "D":
        return uniform(0.5, 1.5)
    if len(shape) == 1:
        is_bias = last.endswith("bias")
        return normal(0.1) if is_bias else uniform(0.8, 1.2)
    if "conv1d" in name:
        return normal(shape[-1] ** -0.5)
    is_table = "embed" in name
    return normal(0.5 if is_table else shape[-1] ** -0.5)
