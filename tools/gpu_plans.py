"""A better plan of a decode step on a GPU: one part of it after another takes what is fastest.

    for i in $(seq 0 7); do python tools/gpu_plans.py check --part $i/8 --output FILE & done; wait
    python tools/gpu_plans.py search --rows 1 32 256 --output FILE

``check`` holds two layers with every candidate against float64, and compiles them: no kernel is
timed before. ``search`` times whole captured steps, since what a product costs depends on what is
launched around it; it prints the plan it ends with, which then goes to ``rwkv7_plans``.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import TypeAlias

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu_decode import Timed, check_rows  # noqa: E402
from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from tools.gpu_models import random_parameters, shape_of  # noqa: E402
from tools.gpu_timing import graph_of, milliseconds  # noqa: E402
from wkvm.kernels.rwkv7_decode import Blocks, Mapped  # noqa: E402
from wkvm.models.rwkv7 import layout_of  # noqa: E402
from wkvm.models.rwkv7_packed import Rwkv7Decode  # noqa: E402
from wkvm.models.rwkv7_plans import Cut, Gemv, Library, Plan, plan_of  # noqa: E402

Part: TypeAlias = tuple[str, Sequence[Cut | int | bool]]
"""A field of a plan, and values to try."""

CHECKED_VOCABULARY = 8192
"""Enough for every block of the head."""


def few_rows() -> list[Part]:
    """Of one to four rows."""
    cuts = [Gemv(n << 10, w) for n, w in ((8, 2), (16, 2), (16, 4), (32, 4), (32, 8), (64, 8))]
    names = ("first", "key", "value", "output", "head")
    parts: list[Part] = [(name, cuts) for name in names]
    return [*parts, ("wkv_warps", (4, 16)), ("mix_warps", (4, 16, 32)), ("looks_ahead", (True,))]


def tens_of_rows(b: int) -> list[Part]:
    """Of up to 64 rows, in blocks of ``b``."""
    wide = [
        *(Blocks(64, b, 128, 1, 4, s, f) for s in (4, 6) for f in (0, 512, 1024)),
        Blocks(64, b, 64, 1, 4, 8),
        Blocks(64, b, 256, 1, 8, 3),
    ]
    deep = [replace(cut, n_splits=n) for n in (4, 8) for cut in wide]
    second = [
        *(Blocks(n, b, k, 1, 4, s) for n in (32, 64) for k, s in ((64, 4), (128, 2))),
        Blocks(32, b, 128, 1, 8, 2),
    ]
    return [
        ("mix_warps", (4, 16)),
        ("key", wide),
        ("first", wide),
        ("value", deep),
        ("output", deep),
        ("second", second),
        ("wkv_warps", (1, 2, 4)),
        ("head", wide),
    ]


def many_rows(n_rows: int) -> list[Part]:
    """Of more than 64 rows."""
    wide: list[Cut] = [
        *(Blocks(n, b, 64, 1, 8, 4) for n, b in ((64, 128), (64, 256), (128, 128))),
        Blocks(128, 256, 64, 1, 8, 3),
        *(Mapped(128, b, 64, n_stages=s) for b, s in ((128, 4), (256, 3))),
        Library(),
    ]
    n_splits = (4, 2) if n_rows <= 256 else (1, 2)
    deep = [replace(cut, n_splits=n) for n in n_splits for cut in wide if not isinstance(cut, Gemv)]
    hidden = [Blocks(n, b, 128, 1, 4, 4) for n, b in ((64, 64), (32, 64), (64, 32))]
    second = [Blocks(n, b, 64, 1, 8, 3) for n, b in ((128, 128), (64, 128), (128, 256))]
    return [
        ("hidden", hidden),
        ("second", second),
        ("first", [cut for cut in wide if not isinstance(cut, Mapped)]),
        # The library cannot apply what belongs to this product.
        ("key", wide[:-1]),
        ("value", deep),
        ("output", deep),
        ("mix_warps", (4, 16)),
        ("head", wide),
    ]


def parts_of_rows(n_rows: int) -> list[Part]:
    """What to try for so many rows."""
    if n_rows <= 4:
        return few_rows()
    if n_rows <= 64:
        return tens_of_rows(16 if n_rows <= 16 else 32 if n_rows <= 32 else 64)
    return many_rows(n_rows)


def changed(plan: Plan, name: str, value: Cut | int | bool) -> Plan:
    """The plan with one part replaced; the first low-rank stages go where they belong."""
    if name != "first":
        return replace(plan, **{name: value})  # type: ignore[arg-type]
    if isinstance(value, Library):
        return replace(plan, first=value, hidden=Blocks(64, 64, 128, 1, 4, 4))
    if not isinstance(value, Gemv | Blocks):
        raise ValueError(f"no product is cut as {value}")
    return replace(plan, first=value, hidden=None)


def told(plan: Plan) -> dict[str, str]:
    """For a JSON line."""
    return {field.name: str(getattr(plan, field.name)) for field in fields(plan)}


def check(name: str, row_counts: Sequence[int], part: int, n_parts: int) -> Iterator[Finding]:
    """Every ``n_parts``-th candidate."""
    shape = replace(shape_of(name, 2), vocab_size=CHECKED_VOCABULARY)
    parameters = random_parameters(shape, torch.bfloat16)
    model = Rwkv7Decode(shape, parameters)
    layout = layout_of(shape, "bfloat16")
    plans = [
        (n_rows, changed(plan, field, value))
        for n_rows in row_counts
        for plan in [plan_of(n_rows, width=shape.width)]
        for field, values in parts_of_rows(n_rows)
        for value in values
        if not (field == "hidden" and plan.hidden is None)
    ]
    for n_rows, plan in plans[part::n_parts]:
        try:
            yield {**check_rows(model, parameters, layout, n_rows, 1e-2, plan), "plan": told(plan)}
        except Exception as error:  # noqa: BLE001
            print(n_rows, plan, repr(error)[:300])


def search(timed: Timed, n_rows: int) -> Iterator[Finding]:
    """Each part in turn takes the best of its candidates; ends with the plan and its time."""

    def milliseconds_of(plan: Plan) -> float:
        step = timed.step(n_rows, plan=plan)
        graph = graph_of(lambda: step.launch(timed.arena.views))
        times = milliseconds(graph.replay, 20 if n_rows < 256 else 4, 5)
        return median(times) if bool(step.logits.isfinite().all()) else float("inf")

    best = timed.model.plan_of(n_rows)
    least = milliseconds_of(best)
    yield {"rows": n_rows, "part": "as planned", "ms": round(least, 4), "plan": told(best)}
    for name, values in parts_of_rows(n_rows):
        start = best
        for value in values:
            if name == "hidden" and start.hidden is None:
                continue
            plan = changed(start, name, value)
            try:
                ms = milliseconds_of(plan)
            except Exception as error:  # noqa: BLE001
                print(n_rows, name, value, repr(error)[:200])
                continue
            yield {"rows": n_rows, "part": name, "value": str(value), "ms": round(ms, 4)}
            if ms < least:
                least, best = ms, plan
    yield {"rows": n_rows, "part": "found", "ms": round(least, 4), "plan": told(best)}


def main() -> int:
    """Check or search; 1 if a check failed."""
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=["check", "search"])
    parser.add_argument("--model", default="1.5B")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256, 1024])
    parser.add_argument("--part", default="0/1")
    args = parser.parse_args()
    with recorded(args) as findings:
        if args.what == "check":
            part, n_parts = map(int, args.part.split("/"))
            for finding in check(args.model, args.rows, part, n_parts):
                findings.write(finding)
        else:
            timed = Timed(args.model, max(args.rows))
            for n_rows in args.rows:
                for finding in search(timed, n_rows):
                    findings.add(finding)
    return 1 if findings.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
