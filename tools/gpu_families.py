"""The models of all families on a GPU: are they right, how fast do they decode and read prompts.

    python tools/gpu_families.py check --output FILE
    python tools/gpu_families.py decode --shape mamba2-2.7B qwen3.5-9B --rows 1 32 256 --output FILE
    python tools/gpu_families.py prompts --shape mamba2-2.7B qwen3.5-9B --output FILE
    python tools/gpu_families.py engine --shape mamba2-2.7B --output FILE
    python tools/gpu_families.py peer --shape mamba2-2.7B qwen3.5-9B --output FILE

One JSON line per finding; timings of decode are graph replays. Random weights with bounded
activations; states and pages hold random numbers. Exit status 1 if a check failed.
"""

import argparse
import asyncio
import gc
import sys
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("bench", "protocol", "clients"))]

from wkvm_bench.engine import Crowd, running  # noqa: E402
from wkvm_bench.harness import alternate  # noqa: E402
from wkvm_bench.random_weights import blueprint, random_decoder, random_weight  # noqa: E402

from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_shapes import CONTEXT, MATRIX_RATE, SHAPES, Floors, is_tied  # noqa: E402
from tools.gpu_timing import graph_of, milliseconds  # noqa: E402
from wkvm.core.config import EngineConfig  # noqa: E402
from wkvm.core.layout import GUEST_TOKENS, pages_for  # noqa: E402
from wkvm.engine.engine import Engine  # noqa: E402
from wkvm.models.base import Batch  # noqa: E402
from wkvm.models.decoder import Decoder  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

BARS = {"bandwidth": (32, 0.7), "serial": (256, 0.7)}
"""The share of a floor that is to be reached at so many rows, in dense models."""

ROWS, PEER_ROWS = (1, 32, 256), (1, 8, 32)
"""Unless others are asked for."""

PROMPT_LOADS = ((1, 8192), (8, 1024), (1, 2048), (32, 64), (1, 448), (7, 64))
"""Rows and tokens of each: as many as matter to the rate, and as steps of an engine have."""

PROMPT_BAR = 0.45
"""Of the matrix rate, with 8,192 tokens."""

FEW_LAYERS = {
    "mamba2-2.7B": {"num_hidden_layers": 2, "vocab_size": 1024},
    "qwen3.5-9B": {"num_hidden_layers": 4, "vocab_size": 1024},
    "qwen3-next-80B": {"num_hidden_layers": 4, "num_experts": 32, "vocab_size": 1024},
}
"""What is cut of a shape for ``check``, where float32 on the CPU is waited for."""


def check(arguments: argparse.Namespace) -> Iterator[Finding]:
    """A few layers of each shape against the same weights in float32 on the CPU.

    Prompts of several lengths, cut; then decode steps as a graph would replay them.
    """
    for shape in arguments.shape:
        config = SHAPES[shape] | FEW_LAYERS.get(shape, {})
        exact = random_decoder(config, device="cpu", dtype=torch.float32)
        for dtype, bar in ((torch.float32, 1e-3), (torch.bfloat16, 5e-2)):
            given = random_decoder(config, device=arguments.device, dtype=dtype, drawn_on="cpu")
            worst = _differences(exact, given)
            yield {
                "what": "check",
                "shape": shape,
                "dtype": str(dtype),
                **worst,
                "bar": bar,
                "ok": all(value < bar for value in worst.values()),
            }


def _differences(exact: Decoder, given: Decoder) -> dict[str, float]:
    """Relative errors of logits and states after prompts in two pieces and three steps."""
    lengths, cuts = (1, 70, 200, 64), (1, 64, 128, 10)
    draw = torch.Generator().manual_seed(1)
    vocab_size = exact.info.vocab_size
    ids = [torch.randint(vocab_size, (n + 3,), generator=draw) for n in lengths]
    slots = (4, 0, 3, 1)
    found, arenas = list[torch.Tensor](), list[Arena]()
    for model in (exact, given):
        arena = _arena(model, n_slots=6, n_tokens=256)
        logits = []
        for start, end in ((None, cuts), (cuts, lengths)):
            pieces = [
                (one[(0 if start is None else start[at]) : end[at]], slots[at])
                for at, one in enumerate(ids)
            ]
            pieces = [(piece, slot) for piece, slot in pieces if len(piece)]
            logits.append(_absorb(model, arena, pieces))
        for at in range(3):
            step = model.decode_step(6)
            rows = [(one[n + at], slot) for one, n, slot in zip(ids, lengths, slots, strict=True)]
            if step is None:
                logits.append(_absorb(model, arena, [(one[None], slot) for one, slot in rows]))
                continue
            step.token_ids[:4].copy_(torch.stack([one for one, _ in rows]))
            step.slots[:4].copy_(torch.tensor(slots, dtype=torch.int32))
            step.launch(arena.views)
            logits.append(step.logits[:4].clone())
        found.append(torch.cat([one.cpu() for one in logits]).double())
        arenas.append(arena)
    worst = {"logits": _relative(found[1], found[0])}
    index = torch.tensor(slots)
    for spec in exact.layout.tensors:
        one, two = (arena.views[spec.name].cpu()[index].double() for arena in arenas)
        worst[spec.name] = _relative(two, one)
    return worst


def _relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value - expected).norm() / expected.norm().clamp(min=1e-30))


def _absorb(model: Decoder, arena: Arena, pieces: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """The logits after each piece."""
    device = model.info.device
    lengths = tuple(len(piece) for piece, _ in pieces)
    slots = tuple(slot for _, slot in pieces)
    ends = torch.tensor(lengths).cumsum(0) - 1
    batch = Batch(
        torch.cat([piece for piece, _ in pieces]).to(device),
        torch.tensor(slots, dtype=torch.int32, device=device),
        lengths,
        slots,
        ends.to(device),
    )
    return model.forward(batch, arena.views)


def _arena(model: Decoder, n_slots: int, n_tokens: int) -> Arena:
    """Zeros, each slot with pages for so many tokens."""
    guest = model.layout.guest
    if guest is None:
        return Arena(model.layout, n_slots, model.info.device)
    each = pages_for(n_tokens)
    arena = Arena(model.layout, n_slots, model.info.device, n_pages=n_slots * each)
    assert arena.pool is not None
    # Not one after the other: kernels must look them up.
    order = torch.randperm(n_slots * each, generator=torch.Generator().manual_seed(0)).tolist()
    for slot in range(n_slots):
        arena.pool.grant(slot, order[slot * each : (slot + 1) * each])
    return arena


def _filled(model: Decoder, n_slots: int, context: int) -> Arena:
    """As after prompts of ``context`` tokens: numbers as they could be, and room for some more."""
    arena = _arena(model, n_slots, context + 1024)
    for spec in model.layout.tensors:
        view = arena.views[spec.name]
        if spec.name == GUEST_TOKENS:
            view.fill_(context)
        else:
            for slot in range(n_slots):
                view[slot].normal_(std=0.3)
    if arena.pool is not None:
        for page in arena.pool.pages:
            page.normal_()
    return arena


def decode(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Bare steps of a captured graph."""
    for shape in arguments.shape:
        model = _timed_model(shape, arguments)
        for n_rows in arguments.rows or ROWS:
            arena = _filled(model, n_rows, CONTEXT)
            step = model.decode_step(n_rows)
            assert step is not None
            step.slots.copy_(torch.randperm(n_rows).to(torch.int32))
            step.token_ids.copy_(torch.randint(model.info.vocab_size, (n_rows,)))
            graph = graph_of(partial(step.launch, arena.views))
            times = milliseconds(graph.replay, 5)
            finite = bool(step.logits.isfinite().all())
            yield _decode_finding(shape, model, n_rows, median(times), finite, times)
            del graph, step, arena
            gc.collect()
            torch.cuda.empty_cache()
        del model
        gc.collect()
        torch.cuda.empty_cache()


def _decode_finding(
    shape: str, model: Decoder, n_rows: int, ms: float, finite: bool, times: list[float]
) -> Finding:
    floors = Floors(shape, model, n_rows, CONTEXT)
    shares = {"bandwidth": floors.bandwidth_ms / ms, "serial": floors.serial_ms / ms}
    bars = {
        name: share for name, (rows, share) in BARS.items() if rows == n_rows and "80B" not in shape
    }
    return {
        "what": "decode",
        "shape": shape,
        "rows": n_rows,
        "context": CONTEXT,
        "dtype": model.info.dtype,
        "weight_bytes": floors.weight_bytes,
        "state_bytes": floors.state_bytes,
        "kv_bytes_of_a_row": floors.kv_bytes,
        "ms": ms,
        "ms_min": min(times),
        "ms_max": max(times),
        "tok_s": n_rows / ms * 1e3,
        "bandwidth_floor_ms": floors.bandwidth_ms,
        "serial_floor_ms": floors.serial_ms,
        "of_bandwidth_floor": shares["bandwidth"],
        "of_serial_floor": shares["serial"],
        "bars": bars,
        "met": all(shares[name] >= bar for name, bar in bars.items()),
        "ok": finite,
    }


def _timed_model(shape: str, arguments: argparse.Namespace) -> Decoder:
    quantization = "fp8" if "80B" in shape else "none"
    began = perf_counter()
    model = random_decoder(
        SHAPES[shape], device=arguments.device, dtype=torch.bfloat16, quantization=quantization
    )
    print(f"{shape}: {model.info.weight_bytes / 1e9:.1f} GB in {perf_counter() - began:.1f} s")
    return model


def prompts(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Forward passes over prompts, and how long the host takes to launch them."""
    for shape in arguments.shape:
        model = _timed_model(shape, arguments)
        head = model.info.vocab_size * model.info.width
        n_multiplied = model.info.n_parameters - head * (1 if is_tied(shape) else 2)
        for n_rows, n_each in PROMPT_LOADS:
            n_tokens = n_rows * n_each
            arena = _arena(model, n_rows, n_each)
            ids = torch.randint(model.info.vocab_size, (n_rows, n_each))
            times, launches = list[float](), list[float]()
            for _ in range(5):
                arena.zero(range(n_rows))
                torch.cuda.synchronize()
                began = perf_counter()
                logits = _absorb(model, arena, [(one, slot) for slot, one in enumerate(ids)])
                launches.append(perf_counter() - began)
                torch.cuda.synchronize()
                times.append(perf_counter() - began)
            seconds = median(times[1:])
            rate = 2 * n_multiplied * n_tokens / seconds
            bar = {"bar": PROMPT_BAR, "met": rate >= PROMPT_BAR * MATRIX_RATE}
            yield {
                "what": "prompts",
                "shape": shape,
                "rows": n_rows,
                "tokens": n_tokens,
                "ms": seconds * 1e3,
                "launch_ms": median(launches[1:]) * 1e3,
                "tok_s": n_tokens / seconds,
                "tflop_s_on_weights": rate / 1e12,
                "of_matrix_rate": rate / MATRIX_RATE,
                **(bar if n_tokens == 8192 else {}),
                "ok": bool(logits.isfinite().all()),
            }
            del arena
        del model
        gc.collect()
        torch.cuda.empty_cache()


def engine(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Ids a second of the whole engine against bare replays, by turns."""
    for shape in arguments.shape:
        yield asyncio.run(_engine_beside_bare(shape, _timed_model(shape, arguments)))
        gc.collect()
        torch.cuda.empty_cache()


async def _engine_beside_bare(shape: str, model: Decoder) -> Finding:
    n_rows, n_out = 256, 100
    config = EngineConfig(n_slots=n_rows, request_timeout_s=1e6, guest_tokens=n_rows * 256)
    whole = Engine(model, config)
    arena, step = _arena(model, n_rows, 256), model.decode_step(n_rows)
    assert step is not None
    step.slots.copy_(torch.arange(n_rows, dtype=torch.int32))
    # Equal rows draw less power, and run faster.
    step.token_ids.copy_(torch.randint(model.info.vocab_size, (n_rows,)))
    graph = graph_of(partial(step.launch, arena.views))

    async def of_bare() -> float:
        arena.zero(range(n_rows))
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(n_out):
            graph.replay()
        torch.cuda.synchronize()
        return n_out * n_rows / (perf_counter() - began)

    async with running(whole) as (loop, consumer):
        crowd = Crowd(loop, consumer, n_rows)

        async def of_engine() -> float:
            return await crowd.rate(n_out)

        a, b = await alternate(of_engine, of_bare, 3)
    ratio = median(one / two for one, two in zip(a, b, strict=True))
    return {
        "what": "engine",
        "shape": shape,
        "rows": n_rows,
        "engine_tok_s": median(a),
        "bare_tok_s": median(b),
        "ratio": ratio,
        "bar": 0.95,
        "met": ratio >= 0.95,
    }


def peer(arguments: argparse.Namespace) -> Iterator[Finding]:
    """What transformers itself generates with the same weights."""
    import transformers

    classes = {
        "mamba2-2.7B": transformers.Mamba2Config,
        "qwen3.5-9B": transformers.Qwen3_5TextConfig,
        "tiny": transformers.Mamba2Config,
    }
    for shape in arguments.shape:
        config_class = classes[shape]
        fields = {name: value for name, value in SHAPES[shape].items() if name != "model_type"}
        # On the device, not "meta": buffers that no checkpoint has would be left without numbers.
        with torch.device(arguments.device):
            model = transformers.AutoModelForCausalLM.from_config(
                config_class(**fields), dtype=torch.bfloat16
            ).eval()
        weights = {
            name: random_weight(name, size, seed=0, device=arguments.device).to(torch.bfloat16)
            for name, size in blueprint(SHAPES[shape]).weights.items()
        }
        missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
        if unexpected:
            raise SystemExit(f"transformers does not know {unexpected[:3]}")
        model.tie_weights()
        for n_rows in arguments.rows or PEER_ROWS:
            found: Finding = {
                "what": "peer",
                "shape": shape,
                "rows": n_rows,
                "missing": len(missing),
                "transformers": transformers.__version__,
                "parameters": sum(prod(one.shape) for one in weights.values()),
            }
            ids = torch.randint(3, fields.get("vocab_size", 1000), (n_rows, 128))
            try:
                found["generate_tok_s"] = _generated(model, ids.to(arguments.device))
            except torch.OutOfMemoryError as error:
                found["out_of_memory"] = str(error)[:200]
            # Not while it is handled: until then the error holds what it was raised among.
            gc.collect()
            torch.cuda.empty_cache()
            yield found
        del model, weights
        gc.collect()
        torch.cuda.empty_cache()


def _generated(model: Any, ids: torch.Tensor) -> float:
    """Ids a second, the second time that it is asked."""
    n, seconds = 24, 0.0
    for _ in range(2):
        began = perf_counter()
        model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)
        torch.cuda.synchronize()
        seconds = perf_counter() - began
    return len(ids) * n / seconds


def main() -> int:
    """Run what the arguments name."""
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="+", choices=["check", "decode", "prompts", "engine", "peer"])
    parser.add_argument(
        "--shape", nargs="+", choices=list(SHAPES), default=["mamba2-2.7B", "qwen3.5-9B"]
    )
    parser.add_argument("--rows", nargs="+", type=int)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    jobs = {"check": check, "decode": decode, "prompts": prompts, "engine": engine, "peer": peer}
    with recorded(arguments) as findings:
        for what in arguments.what:
            for finding in jobs[what](arguments):
                findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
