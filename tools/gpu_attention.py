"""Attention to pages on a GPU: against float64, and how fast, beside torch's on contiguous tensors.

    python tools/gpu_attention.py check decode prefill --output bench/results/FILE.jsonl
    python tools/gpu_attention.py decode prefill --sweep --output bench/results/FILE.jsonl

With ``--sweep`` launch constants are varied. Shapes are those of transformers' default Qwen3.5 text
configuration, of MLA in absorbed form, and of heads of 128. One JSON line per finding, each with
commit, device, versions and command; timings are graph replays. Exit status 1 if a check failed.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.models.float64_step import relative  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_pools import (  # noqa: E402
    LATENTS,
    LLAMA,
    QWEN,
    SMALL,
    Pool,
    Shape,
    exact,
    pool_of,
    rows_of,
    tokens_of,
)
from tools.gpu_timing import copy_bandwidth, graph_of, milliseconds  # noqa: E402
from wkvm.kernels.gpu import attention_decode, attention_prefill, paged  # noqa: E402
from wkvm.kernels.rows import Rows  # noqa: E402

MATRIX_RATE = 780e12
"""Operations a second of large products of bfloat16."""

N_LAYERS = 8
"""Layers of attention of the default Qwen3.5 configuration: one after another in a graph."""


SHAPES = (QWEN, LATENTS, LLAMA)

BARS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}

STEPS = {
    "decode": ([0, -1, 2, 3, 4], [1] * 5, [0, 5, 63, 1000, 5000]),
    "prompts": ([0, -1, 2, 3], [300, 70, 129, 2], [0, 5, 63, 1000]),
}
"""Slots and lengths of rows; tokens that slots hold before."""


def check() -> Iterator[Finding]:
    """Outputs against float64, whatever nobody wrote being NaN; and a step that was captured."""
    for shape in (*SHAPES, SMALL):
        for dtype in BARS:
            for step in STEPS:
                for window in (None, 100):
                    yield _checked(shape, dtype, step, window)
        yield _captured(shape)


def _checked(shape: Shape, dtype: torch.dtype, step: str, window: int | None) -> Finding:
    slots, lengths, held = STEPS[step]
    pool = pool_of(shape, held, max(lengths), dtype, 2)
    rows = rows_of(slots, lengths)
    q, k, v = tokens_of(shape, rows.n_tokens, dtype)
    out = _attended(pool, q, k, v, rows, window=window)
    found, expected = [], []
    for row, slot in enumerate(slots):
        tokens = slice(rows.host_offsets[row], rows.host_offsets[row + 1])
        if slot >= 0:
            found.append(out[tokens])
            expected.append(exact(pool, q[tokens], slot, held[slot], window))
    pads = out[rows.host_offsets[1] : rows.host_offsets[2]]
    error = relative(torch.cat(found), torch.cat(expected))
    return {
        "check": f"attention against float64, {shape.name}, {dtype}, {step}, window {window}",
        "ok": error < BARS[dtype] and not pads.any(),
        "relative_error": error,
    }


def _attended(
    pool: Pool,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    rows: Rows,
    *,
    layer: int = 0,
    window: int | None = None,
) -> Tensor:
    return attention_prefill.attention(
        q,
        k,
        v,
        pool.layer(layer),
        pool.table,
        pool.lengths,
        rows,
        scale=pool.shape.scale,
        window=window,
        value_dim=pool.shape.latent,
    )


def _captured(shape: Shape) -> Finding:
    """A replay for other slots, and other lengths, than it was captured with."""
    held = [700, 0, 63, 1000]
    pool = pool_of(shape, held, 1, torch.bfloat16, 1)
    q, k, v = tokens_of(shape, 3, torch.bfloat16)
    slots = torch.tensor([-1, -1, 1], dtype=torch.int32, device="cuda")
    rows = Rows.of_decode(slots)
    out = torch.empty(3, shape.Hq, shape.Dv, dtype=torch.bfloat16, device="cuda")

    def step() -> None:
        out.copy_(_attended(pool, q, k, v, rows))

    graph = graph_of(step)
    slots.copy_(torch.tensor([3, -1, 0], dtype=torch.int32))
    graph.replay()
    replayed = out.clone()
    torch.cuda.synchronize()
    again = _attended(pool, q, k, v, Rows.of_decode(slots))
    return {
        "check": f"a captured step for other slots and lengths, {shape.name}",
        "ok": torch.equal(replayed, again) and not replayed[1].any() and bool(again[0].any()),
    }


STEP_LAUNCHES = [
    attention_decode.Launch(block_n, n_warps, n_stages)
    for block_n, n_warps, n_stages in (
        (16, 4, 4),
        (32, 4, 2),
        (32, 4, 3),
        (32, 4, 4),
        (32, 8, 3),
        (64, 4, 2),
        (64, 4, 3),
        (64, 8, 2),
        (64, 8, 3),
    )
]

SPLITS = [(1, 1), (4, 8), (8, 8), (16, 4), (32, 2), (64, 2), (128, 2)]
"""Programs of a row, and pages that one of them takes at least."""

CONTEXTS = [(1, 4096), (32, 4096), (256, 4096), (1, 131_072)]
"""Rows, and tokens that each holds."""


def decode(bandwidth: float, *, sweeps: bool) -> Iterator[Finding]:
    """The layers of a model one after another, and torch's; swept, each launch and division."""
    for shape in SHAPES:
        for B, context in CONTEXTS:
            pool = pool_of(shape, [context - 1] * B, 1, torch.bfloat16, N_LAYERS)
            q, k, v = tokens_of(shape, B, torch.bfloat16)
            slots = torch.randperm(B, device="cuda").int()
            heads = paged.heads_of(q, k, v, pool.layer(0), shape.latent)
            default = attention_decode.launch_of(heads)

            def ours(
                launch: attention_decode.Launch | None,
                splits: attention_decode.Splits | None,
                pool: Pool = pool,
                tokens: tuple[Tensor, Tensor, Tensor | None] = (q, k, v),
                slots: Tensor = slots,
            ) -> None:
                for layer in range(N_LAYERS):
                    attention_decode.attention_decode(
                        *tokens,
                        pool.layer(layer),
                        pool.table,
                        pool.lengths,
                        slots,
                        scale=pool.shape.scale,
                        value_dim=pool.shape.latent,
                        launch=launch,
                        splits=splits,
                    )

            ways: dict[str, Callable[[], None]] = {"default": partial(ours, None, None)}
            for launch in STEP_LAUNCHES if sweeps else ():
                ways[str(launch)] = partial(ours, launch, None)
            for pair in SPLITS if sweeps else ():
                splits = attention_decode.Splits(*pair)
                ways[str(splits)] = partial(ours, default, splits)
            if not shape.latent:
                ways["torch on contiguous tensors"] = _contiguous_decode(shape, q, B, context)
            floor = B * context * shape.token_bytes / bandwidth
            for name, way in ways.items():
                try:
                    us = median(milliseconds(graph_of(way).replay, 8)) / N_LAYERS * 1e3
                except Exception as error:  # noqa: BLE001
                    print(shape.name, B, context, name, repr(error)[:300])
                    continue
                yield {
                    "timing": f"attention of one token, one layer, {shape.name}, {B} rows of"
                    f" {context} tokens, {name}",
                    "median_us": round(us, 2),
                    "floor_us": round(floor * 1e6, 2),
                    "tb_per_s": round(floor * bandwidth / us / 1e6, 3),
                    "of_copy": round(floor * 1e6 / us, 3),
                    "copy_tb_per_s": round(bandwidth / 1e12, 3),
                }
            del pool, ways, ours
            torch.cuda.empty_cache()


def _contiguous_decode(shape: Shape, q: Tensor, B: int, context: int) -> Callable[[], None]:
    """Torch's attention over keys and values that lie side by side, one layer read again."""
    size = (B, shape.Hkv, context, shape.D)
    keys = torch.randn(size, dtype=torch.bfloat16, device="cuda")
    values = torch.randn(size, dtype=torch.bfloat16, device="cuda")
    query = q[:, :, None].contiguous()

    def launch() -> None:
        for _ in range(N_LAYERS):
            scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    return launch


PROMPTS = {
    "1 x 8,192": ([8192], [0]),
    "1 x 4,096 after 4,096": ([4096], [4096]),
    "4 x 2,048": ([2048] * 4, [0] * 4),
    "32 x 256 after 1,000": ([256] * 32, [1000] * 32),
    "1 x 2,048 after 129,024": ([2048], [129_024]),
}
"""Lengths of rows, and tokens that their slots hold before."""

WAYS = [
    attention_prefill.Launch(block_m, block_n, n_warps, n_stages)
    for block_m, block_n, n_warps, n_stages in (
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (128, 32, 8, 2),
        (128, 32, 8, 3),
        (128, 64, 4, 2),
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 32, 8, 2),
        (64, 16, 8, 3),
    )
]


def prefill(*, sweeps: bool) -> Iterator[Finding]:
    """One layer, its pages written alone, and torch's after a gather to contiguous tensors."""
    for shape in SHAPES:
        for name, (lengths, held) in PROMPTS.items():
            pool = pool_of(shape, held, max(lengths), torch.bfloat16, 1)
            rows = rows_of(list(range(len(lengths))), lengths)
            q, k, v = tokens_of(shape, rows.n_tokens, torch.bfloat16)
            heads = paged.heads_of(q, k, v, pool.layer(0), shape.latent)
            pairs = sum(
                n * before + n * (n + 1) / 2 for n, before in zip(lengths, held, strict=True)
            )
            operations = 2 * pairs * shape.Hq * (shape.D + shape.Dv)
            where = pool.layer(0), pool.table, pool.lengths, rows
            attend = partial(attention_prefill.attend, q, *where, heads, scale=shape.scale)
            write = partial(attention_prefill.write_pages, k, v, *where)
            write()
            ways: dict[str, Callable[[], object]] = {
                "default": partial(_attended, pool, q, k, v, rows),
                "pages written": write,
            }
            ways |= {str(way): partial(attend, launch=way) for way in WAYS if sweeps}
            ways["gathered, torch"] = partial(_gathered, pool, q, lengths, held)
            expected = attend()
            for way, launch in ways.items():
                try:
                    n = 2 if operations > 1e12 else 8
                    ms = median(milliseconds(graph_of(partial(_discarded, launch)).replay, n, 5))
                except Exception as error:  # noqa: BLE001
                    print(shape.name, name, way, repr(error)[:300])
                    continue
                found: Finding = {
                    "timing": f"attention of prompts, one layer, {shape.name}, {name}, {way}",
                    "median_ms": round(ms, 4),
                    "floor_ms": round(operations / MATRIX_RATE * 1e3, 4),
                    "tflop_per_s": round(operations / ms / 1e9, 1),
                }
                if way != "pages written":
                    result = launch()
                    assert isinstance(result, Tensor)
                    found["relative_difference"] = relative(result, expected)
                yield found
            del pool, ways
            torch.cuda.empty_cache()


def _discarded(launch: Callable[[], object]) -> None:
    launch()


def _gathered(pool: Pool, q: Tensor, lengths: list[int], held: list[int]) -> Tensor:
    """Each row's pages to contiguous tensors, and torch's attention: the host knows the lengths."""
    shape, outs, start = pool.shape, list[Tensor](), 0
    for slot, (n, before) in enumerate(zip(lengths, held, strict=True)):
        keys, values = pool.held(slot, before + n)
        query, start = q[start : start + n], start + n
        bias = causal_lower_right(n, before + n)
        out = scaled_dot_product_attention(
            query.transpose(0, 1)[None].contiguous(),
            keys.transpose(0, 1)[None].contiguous(),
            values.transpose(0, 1)[None].contiguous(),
            attn_mask=None if before == 0 else bias,
            is_causal=before == 0,
            scale=shape.scale,
            enable_gqa=True,
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def main() -> int:
    """Run what was asked for; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="+", choices=["check", "decode", "prefill"])
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "check": check,
        "decode": lambda: decode(copy_bandwidth(), sweeps=args.sweep),
        "prefill": lambda: prefill(sweeps=args.sweep),
    }
    with recorded(args) as findings:
        for part in args.what:
            for finding in parts[part]():
                findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
