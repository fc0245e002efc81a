"""The kernels of a prompt one by one on a GPU: how each is best cut up.

    python tools/gpu_prefill_products.py --tokens 320 32768 --output bench/results/FILE.jsonl

Each is captured over four layers, whose weights together do not fit the L2 cache, and timed by
replays. Random weights of the 1.5B shape in bfloat16. Nothing here fails.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_models import random_parameters, shape_of  # noqa: E402
from tools.gpu_timing import graph_of, milliseconds  # noqa: E402
from wkvm.kernels import rwkv7_decode as decode  # noqa: E402
from wkvm.kernels import rwkv7_prefill as kernels  # noqa: E402
from wkvm.kernels.rwkv7_decode import Blocks, tiles_of  # noqa: E402
from wkvm.kernels.rwkv7_prefill import SquaredCut  # noqa: E402
from wkvm.models.rwkv7 import WKV, layout_of  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.models.rwkv7_prefill import Buffers, Prefill  # noqa: E402
from wkvm.models.rwkv7_products import Products  # noqa: E402
from wkvm.state.arena import Arena  # noqa: E402

N_LAYERS = 4

Call = Callable[[int], object]
"""A launch, or some, for the layer of that index."""


class Bench:
    """A model of four layers and the buffers of ``n_tokens`` tokens of one prompt."""

    def __init__(self, n_tokens: int) -> None:
        shape = shape_of("1.5B", N_LAYERS)
        self.model = model = Rwkv7Decode(shape, random_parameters(shape, torch.bfloat16))
        self.prefill = Prefill(model)
        self.products = Products(model)
        self.n_tokens = n_tokens
        self.tables = self.prefill.tables([0], [n_tokens])
        self.buffers = Buffers(model, n_tokens, len(self.tables.chunks))
        for buffer in (self.buffers.mixed, self.buffers.rkv, self.buffers.second):
            buffer.normal_()
        self.buffers.hidden.normal_()
        self.firsts = torch.empty(
            n_tokens * (3 * shape.width + sum(model.ranks)), dtype=model.dtype, device="cuda"
        )
        self.state = Arena(layout_of(shape, "bfloat16"), 1, "cuda").views[WKV]

    def calls(self) -> Iterator[tuple[str, Call]]:
        """What is timed, by name."""
        is_small = self.n_tokens <= 512
        yield from self._key(is_small)
        yield from self._first(is_small)
        yield from self._second(is_small)
        yield from self._added(is_small)
        yield from self._chunks()

    def _key(self, is_small: bool) -> Iterator[tuple[str, Call]]:
        model, x, out = self.model, self.buffers.ffn_mixed, self.buffers.ffn_hidden
        small = [
            Blocks(64, 256, 64, 1, 8, 4),
            Blocks(64, 128, 64, 1, 4, 5),
            Blocks(128, 64, 64, 1, 4, 6),
            Blocks(128, 128, 64, 1, 8, 3),
            Blocks(128, 128, 64, 1, 4, 3),
            Blocks(64, 64, 128, 1, 4, 4),
        ]
        for blocks in small if is_small else [Blocks(256, 128, 64, 1, 8, 3)]:
            yield (
                f"key {blocks}",
                lambda i, blocks=blocks: decode.product(  # type: ignore[misc]
                    x,
                    model.layers[i].ffn_key.values,
                    out.unsqueeze(0),
                    blocks,
                    what=decode.SQUARED_RELU,
                ),
            )
        cuts = [SquaredCut(n_parts=2), SquaredCut(n_parts=1)]
        if is_small:
            cuts = [
                SquaredCut(64, 128, 64, 16, 4, 4, 264),
                SquaredCut(64, 256, 64, 16, 4, 4, 132, n_parts=2),
                SquaredCut(128, 128, 64, 16, 4, 4, 264),
                SquaredCut(128, 128, 64, 16, 8, 4, 132),
                SquaredCut(64, 64, 128, 16, 4, 4, 264),
            ]
        for cut in cuts:
            yield (
                f"key {cut}",
                lambda i, cut=cut: kernels.squared_product(  # type: ignore[misc]
                    x, model.layers[i].ffn_key.values, out, cut
                ),
            )
        yield (
            "key, library, not squared",
            lambda i: torch.mm(x, model.layers[i].ffn_key.values.t(), out=out),
        )

    def _first(self, is_small: bool) -> Iterator[tuple[str, Call]]:
        model, mixed, C, T = self.model, self.buffers.mixed, self.model.shape.width, self.n_tokens
        yield (
            "r, k, v, library",
            lambda i: self.products.rkv(mixed[:3], model.layers[i].first, self.buffers.rkv[1]),
        )
        small = [
            Blocks(64, 64, 64, 1, 4, 6),
            Blocks(64, 64, 128, 1, 4, 4),
            Blocks(32, 64, 128, 1, 4, 4),
            Blocks(64, 128, 64, 1, 4, 5),
            Blocks(32, 128, 64, 1, 4, 6),
        ]
        large = [Blocks(128, 128, 64, 1, 8, 3), Blocks(256, 128, 64, 1, 8, 3)]
        for blocks in small if is_small else large:
            tiles = tiles_of(model.hidden_groups(), blocks.n, "cuda")
            yield (
                f"hidden {blocks}",
                lambda i, blocks=blocks, tiles=tiles: decode.product(  # type: ignore[misc]
                    mixed,
                    model.layers[i].first.values[3 * C :],
                    self.buffers.hidden,
                    blocks,
                    tiles=tiles,
                ),
            )
        for blocks in (
            [
                Blocks(64, 128, 64, 1, 4, 5),
                Blocks(128, 128, 64, 1, 8, 3),
                Blocks(128, 64, 64, 1, 4, 5),
                Blocks(64, 64, 64, 1, 4, 8),
                Blocks(64, 256, 64, 1, 8, 4),
                Blocks(128, 128, 64, 1, 4, 3),
            ]
            if is_small
            else []
        ):
            tiles = tiles_of(model.first_groups(T), blocks.n, "cuda")
            yield (
                f"r, k, v and hidden {blocks}",
                lambda i, blocks=blocks, tiles=tiles: decode.product(  # type: ignore[misc]
                    mixed, model.layers[i].first.values, self.firsts, blocks, tiles=tiles
                ),
            )

    def _second(self, is_small: bool) -> Iterator[tuple[str, Call]]:
        model, hidden, out = self.model, self.buffers.hidden, self.buffers.second
        yield "second", lambda i: self.products.second(hidden, model.layers[i].second, out)
        for blocks in (
            [
                Blocks(64, 64, 256, 1, 4, 2),
                Blocks(64, 128, 64, 1, 4, 3),
                Blocks(128, 64, 128, 1, 4, 2),
                Blocks(128, 128, 128, 1, 8, 2),
                Blocks(64, 64, 64, 1, 4, 3),
            ]
            if is_small
            else []
        ):
            tiles = tiles_of(model.second_groups(), blocks.n, "cuda")
            yield (
                f"second {blocks}",
                lambda i, blocks=blocks, tiles=tiles: decode.product(  # type: ignore[misc]
                    hidden, model.layers[i].second, out, blocks, tiles=tiles
                ),
            )

    def _added(self, is_small: bool) -> Iterator[tuple[str, Call]]:
        model, buffers, x = self.model, self.buffers, self.buffers.x
        yield (
            "value, library",
            lambda i: self.products.add(x, buffers.ffn_hidden, model.layers[i].ffn_value),
        )
        yield "output, library", lambda i: self.products.add(x, buffers.y, model.layers[i].output)
        if not is_small:
            return
        for n in (2, 4, 8):
            parts = torch.empty(n, *x.shape, device="cuda")

            def in_parts(i: int, n: int = n, parts: Tensor = parts) -> None:
                left = buffers.ffn_hidden.view(self.n_tokens, n, -1).transpose(0, 1)
                weight = model.layers[i].ffn_value.values
                right = weight.view(weight.shape[0], n, -1).permute(1, 2, 0)
                torch.bmm(left, right, out_dtype=parts.dtype, out=parts)

            yield f"value, library in {n} parts, not added", in_parts
        for blocks in (Blocks(128, 128, 64, 1, 8, 3), Blocks(128, 64, 64, 1, 4, 5)):
            for name in ("value", "output"):
                yield (
                    f"{name} {blocks}",
                    lambda i, blocks=blocks, name=name: decode.product(  # type: ignore[misc]
                        buffers.ffn_hidden if name == "value" else buffers.y,
                        getattr(model.layers[i], "ffn_value" if name == "value" else name).values,
                        x,
                        blocks,
                        adds=True,
                    ),
                )

    def _chunks(self) -> Iterator[tuple[str, Call]]:
        model, buffers, tables = self.model, self.buffers, self.tables
        first = buffers.rkv[0, 2]
        options: dict[str, dict[str, int]] = {
            "": {},
            " 8 warps": {"num_warps": 8},
            " blocks of 4": {"BASE": 4},
        }
        for label, some in options.items():
            yield (
                f"within{label}",
                lambda i, some=some: kernels.within(  # type: ignore[misc]
                    buffers.rkv[1],
                    first,
                    buffers.second,
                    model.layers[i].vectors,
                    buffers.effects,
                    tables,
                    options=some,
                ),
            )
        for block_v, n_warps, n_stages in ((16, 4, 3), (16, 4, 4), (16, 4, 5), (32, 4, 4)):
            yield (
                f"pass {block_v} {n_warps} {n_stages}",
                lambda i, b=block_v, w=n_warps, s=n_stages: kernels.pass_states(  # type: ignore[misc]
                    buffers.effects,
                    buffers.entering,
                    self.state[:, i],
                    tables,
                    block_v=b,
                    n_warps=w,
                    n_stages=s,
                ),
            )
        yield (
            "outputs",
            lambda i: kernels.outputs(
                buffers.effects,
                buffers.entering,
                buffers.rkv[1, 2],
                buffers.second[:, 3],
                model.layers[i].vectors,
                buffers.y,
                64e-5,
                tables,
            ),
        )


def time_of(call: Call, n_tokens: int) -> float:
    """Microseconds of one call."""
    n_rounds = 4 if n_tokens <= 4096 else 1

    def all_layers() -> None:
        for _ in range(n_rounds):
            for index in range(N_LAYERS):
                call(index)

    times = milliseconds(graph_of(all_layers).replay, 2, 5)
    return median(times) / (n_rounds * N_LAYERS) * 1e3


def findings_of(n_tokens: int) -> Iterator[Finding]:
    """One for each kernel and cut."""
    for name, call in Bench(n_tokens).calls():
        try:
            us = time_of(call, n_tokens)
        except Exception as error:  # noqa: BLE001
            # One cut must not end the others.
            print(name, repr(error)[:200])
            continue
        yield {"kernel": name, "tokens": n_tokens, "median_us": round(us, 2)}


def main() -> int:
    """Time all of them."""
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[320, 32768])
    args = parser.parse_args()
    with recorded(args) as findings:
        for n_tokens in args.tokens:
            for finding in findings_of(n_tokens):
                findings.add(finding)
    return 0


if __name__ == "__main__":
    sys.exit(main())
