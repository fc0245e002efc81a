"""How far the ways to compute a log probability drift apart, on text of the bundled model.

    python -m tools.drift paths long --output bench/results/FILE.jsonl

``paths``: decode steps, the chunked path of prompts, and the trainer's own forward (with
flash-linear-attention's chunk_rwkv7 on a GPU), all against each other and against float64.
``long``: thousands of decode steps against float64, by position. One JSON line per finding.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import triton
from safetensors.torch import load_file
from torch import Tensor

from tests.models.float64_step import Float64Step
from tools.gpu_findings import Finding, Findings
from tools.rwkv7_model import RWKV7, Shape, wkv_chunked, wkv_fla
from wkvm.core.layout import StateOptions
from wkvm.models.base import Batch, Model, StateViews
from wkvm.models.registry import load_model
from wkvm.models.rwkv7_params import load_parameters, read_shape
from wkvm.models.weights import open_checkpoint
from wkvm.state.arena import Arena

BUNDLED = Path(os.environ.get("WKVM_BUNDLED", "wkvm/bundled/rwkv7-tinystories"))
BLOCK = 2048
"""Tokens of a prompt that are absorbed at a time."""
TEMPERATURE = 0.8

Step = Callable[[Tensor], Tensor]
"""Absorbs an id of each row, ``[B]``; gives the logits ``[B, V]``, valid until the next call."""


class Rows:
    """Rows of one model, from the empty state on."""

    def __init__(self, model: Model, n_rows: int) -> None:
        self.model = model
        self.n_rows = n_rows
        self._device = model.info.device
        self.arena = Arena(model.layout, n_rows, self._device)
        self.arena.zero(range(n_rows))

    def chunked(self, ids: Tensor) -> Tensor:
        """Log probabilities of ``ids[:, 1:]``, absorbed as prompts are. ``[B, T - 1]`` float32."""
        parts = list[Tensor]()
        for start in range(0, ids.shape[1], BLOCK):
            block = ids[:, start : start + BLOCK]
            logits = self._forward(block).view(*block.shape, -1)
            parts.append(of_next(logits, ids[:, start + 1 : start + 1 + block.shape[1]]))
        return torch.cat(parts, 1)

    def step(self) -> Step:
        """Decode steps: one replay of a graph each, on a GPU."""
        step = self.model.decode_step(self.n_rows)
        if step is None:
            return lambda ids: self._forward(ids[:, None])
        step.slots.copy_(torch.arange(self.n_rows))
        graph = Captured(lambda: step.launch(self.arena.views), self.arena.views)

        def absorb(ids: Tensor) -> Tensor:
            step.token_ids.copy_(ids)
            graph.replay()
            return step.logits

        return absorb

    def _forward(self, ids: Tensor) -> Tensor:
        n_rows, length = ids.shape
        device = self._device
        batch = Batch(
            token_ids=ids.flatten(),
            slots=torch.arange(n_rows, dtype=torch.int32, device=device),
            lengths=(length,) * n_rows,
            slot_list=tuple(range(n_rows)),
            logit_rows=torch.arange(n_rows * length, device=device),
        )
        return self.model.forward(batch, self.arena.views)


class Captured:
    """A graph of a launch, made without a trace in the states.

    It keeps the launch, and with it all tensors that the graph knows by address alone.
    """

    def __init__(self, launch: Callable[[], object], states: StateViews) -> None:
        self._launch = launch
        self._states = states
        self._graph = torch.cuda.CUDAGraph()
        before = {name: view.clone() for name, view in states.items()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launch()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            launch()
        for name, view in states.items():
            view.copy_(before[name])

    def replay(self) -> None:
        """Launch it again."""
        self._graph.replay()


def of_next(logits: Tensor, ids: Tensor) -> Tensor:
    """Log probabilities of the ids that follow; the last logits may have none to follow."""
    scores = logits[:, : ids.shape[1]].log_softmax(-1)
    return scores.gather(-1, ids[..., None])[..., 0]


def stepwise(step: Step, ids: Tensor) -> Tensor:
    """Log probabilities of ``ids[:, 1:]``, one step an id."""
    scores = list[Tensor]()
    for t in range(ids.shape[1] - 1):
        logits = step(ids[:, t])
        scores.append(logits.log_softmax(-1).gather(1, ids[:, t + 1, None])[:, 0])
    return torch.stack(scores, 1)


def texts(model: Model, n_rows: int, length: int) -> Tensor:
    """Ids ``[n_rows, length]`` that the model writes, from the end of a text on."""
    step = Rows(model, n_rows).step()
    draw = torch.Generator(model.info.device).manual_seed(0)
    ids = torch.zeros(n_rows, length, dtype=torch.int64, device=model.info.device)
    for t in range(length - 1):
        chances = (step(ids[:, t]) / TEMPERATURE).softmax(-1)
        ids[:, t + 1] = torch.multinomial(chances, 1, generator=draw)[:, 0]
    return ids


def exact(n_rows: int, device: str) -> Step:
    """The model in float64."""
    checkpoint = open_checkpoint(BUNDLED)
    shape = read_shape(checkpoint)
    parameters = {name: tensor.to(device) for name, tensor in load_parameters(checkpoint, shape)}
    model = load_model(BUNDLED, device=device, dtype="float32")
    arena = Arena(model.layout, n_rows, device)
    arena.zero(range(n_rows))
    w = {name: tensor.double() for name, tensor in parameters.items()}
    table = torch.nn.functional.layer_norm(
        w["emb.weight"],
        (shape.width,),
        w["blocks.0.ln0.weight"],
        w["blocks.0.ln0.bias"],
        shape.layer_norm_eps,
    )
    step = Float64Step(shape, w, table, dict(arena.views))
    if device == "cpu":
        return lambda ids: step(ids)[1]
    token_ids = torch.zeros(n_rows, dtype=torch.int64, device=device)
    logits = torch.zeros(n_rows, shape.vocab_size, dtype=torch.float64, device=device)
    graph = Captured(lambda: logits.copy_(step(token_ids)[1]), step.states)

    def absorb(ids: Tensor) -> Tensor:
        token_ids.copy_(ids)
        graph.replay()
        return logits

    return absorb


def trainer(ids: Tensor, dtype: str) -> Tensor:
    """Log probabilities of ``ids[:, 1:]`` by ``tools/rwkv7_model.py``, as it is trained.

    On a GPU in bfloat16 that is autocast over float32 parameters, and fla's chunk_rwkv7.
    """
    tensors: dict[str, Tensor] = {}
    for file in sorted(BUNDLED.glob("*.safetensors")):
        tensors.update(load_file(file))
    as_trained = ids.is_cuda and dtype == "bfloat16"
    if as_trained:
        import_untuned()
    model = RWKV7(shape_of(tensors), wkv_fla if as_trained else wkv_chunked)
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    model.to(ids.device)
    n_rows, length = ids.shape
    padded = torch.nn.functional.pad(ids, (0, -length % 64))
    segments = torch.arange(n_rows, device=ids.device)[:, None].expand_as(padded)
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=as_trained):
        logits = model(padded, segments)
    return of_next(logits.float()[:, :length], ids[:, 1:])


def import_untuned() -> None:
    """Import fla's kernels with the first setting of each. To tune them takes minutes of a GPU."""
    tune = triton.autotune

    def first(configs: list[Any], **options: Any) -> Any:
        return tune(configs[:1], **options)

    triton.autotune = first
    try:
        importlib.import_module("fla.ops.rwkv7")
    finally:
        triton.autotune = tune


def shape_of(tensors: Mapping[str, Tensor]) -> Shape:
    """The trainer's shape of a checkpoint."""
    vocab_size, width = tensors["model.embeddings.weight"].shape
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    last = f"model.layers.{len(layers) - 1}"

    def rank(letter: str) -> int:
        return tensors[f"{last}.attn.{letter}_lora.lora.0.weight"].shape[0]

    return Shape(
        vocab_size=vocab_size,
        width=width,
        n_layers=len(layers),
        head_size=tensors[f"{last}.attn.r_k"].shape[1],
        ffn_width=tensors[f"{last}.ffn.key.weight"].shape[0],
        decay_rank=rank("w"),
        a_rank=rank("a"),
        v_rank=rank("v"),
        gate_rank=rank("g"),
    )


def drift(a: Tensor, b: Tensor) -> Finding:
    """How far log probabilities are apart, in nats."""
    apart = a.double() - b.double()
    size = apart.abs().flatten()
    return {
        "mean": float(f"{size.mean():.3g}"),
        "p99": float(f"{size.quantile(0.99):.3g}"),
        "max": float(f"{size.max():.3g}"),
        "bias": float(f"{apart.mean():.2g}"),
        "n": size.numel(),
    }


def paths(device: str, dtypes: Sequence[str], n_rows: int, length: int) -> Iterator[Finding]:
    """The ways against each other, a pair a finding."""
    ids = texts(load_model(BUNDLED, device=device, dtype="float32"), n_rows, length)
    reference = stepwise(exact(n_rows, device), ids)
    mean = -float(reference.mean())
    for dtype in dtypes:
        model = load_model(BUNDLED, device=device, dtype=dtype)
        scores = {
            "decode": stepwise(Rows(model, n_rows).step(), ids),
            "chunked": Rows(model, n_rows).chunked(ids),
            "trainer": trainer(ids, dtype),
            "float64": reference,
        }
        for (a_name, a), (b_name, b) in combinations(scores.items(), 2):
            yield {
                "drift": f"{a_name} against {b_name}",
                "dtype": dtype,
                "nats": drift(a, b),
                "texts": f"{n_rows} of {length} ids, {mean:.3f} nats an id",
            }


def long(
    device: str, kinds: Sequence[tuple[str, StateOptions]], n_rows: int, n_steps: int
) -> Iterator[Finding]:
    """Decode steps one after the other, against float64: by position, a tenth at a time."""
    ids = texts(load_model(BUNDLED, device=device, dtype="float32"), n_rows, n_steps + 1)
    reference = stepwise(exact(n_rows, device), ids)
    for dtype, state in kinds:
        model = load_model(BUNDLED, device=device, dtype=dtype, state=state)
        scores = stepwise(Rows(model, n_rows).step(), ids)
        tenths = [
            drift(a, b) for a, b in zip(scores.chunk(10, 1), reference.chunk(10, 1), strict=True)
        ]
        first, last = tenths[0]["mean"], tenths[-1]["mean"]
        yield {
            "drift": f"{n_steps:,} decode steps against float64",
            "dtype": dtype,
            "state": state.dtype + (", deferred writes" if state.deferred else ""),
            "nats": drift(scores, reference),
            "mean_by_tenth": [one["mean"] for one in tenths],
            "max_by_tenth": [one["max"] for one in tenths],
            "last_tenth_to_first": round(last / first, 3) if first else None,
            "rows": n_rows,
        }


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=["paths", "long"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    command = " ".join(["python", "-m", "tools.drift", *sys.argv[1:]])
    command = command.replace(str(args.output), "FILE")
    kinds = [(dtype, StateOptions()) for dtype in ("float32", "bfloat16")]
    kinds += [("bfloat16", StateOptions(dtype=dtype)) for dtype in ("float16", "bfloat16")]
    kinds.append(("bfloat16", StateOptions(deferred=True)))
    with args.output.open("a") as output, torch.inference_mode():
        findings = Findings(output, commit=args.commit, command=command)
        if "paths" in args.what:
            for finding in paths("cuda", ("float32", "bfloat16"), args.rows, args.length):
                findings.add(finding)
        if "long" in args.what:
            for finding in long("cuda", kinds, 4, args.steps):
                findings.add(finding)
    return 0


if __name__ == "__main__":
    sys.exit(main())
