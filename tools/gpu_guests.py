"""What it costs to move the pages of a guest between a GPU and host memory, beside its steps.

    python tools/gpu_guests.py --output bench/results/FILE.jsonl

A pool of the shape of transformers' default Qwen3-Next, pages of 1.5 MiB, and sessions of 8k to
128k tokens: both ways by ``PageMover``, with pages side by side and scattered, against one copy of
as many bytes from or to memory that is pinned already; how long the thread that launches is
kept; and how much longer products take on the device meanwhile, which stand for steps. One JSON
line per finding. Exit status 1 if bytes differ or a bar was missed.
"""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

from tools.gpu_findings import Finding, parser_of, recorded  # noqa: E402
from wkvm.core.layout import PAGE_TOKENS, GuestSpec  # noqa: E402
from wkvm.engine.page_mover import Job, PageMover  # noqa: E402
from wkvm.state.guest import GuestPool  # noqa: E402

SPEC = GuestSpec(n_layers=12, n_parts=2, n_heads=2, head_dim=256, dtype="bfloat16")
SESSIONS = (8_192, 32_768, 131_072)
LAUNCH_MS, SLOWED, TIMES_BARE = 1.0, 1.1, 2.0
"""The bars: of a launch, of the products beside, and of a move against the bare copy."""

REPEATS = 5


def finished_in(job: Job) -> float:
    """Seconds until a job is over."""
    began = time.perf_counter()
    job.wait(600)
    if job.error is not None:
        raise job.error
    return time.perf_counter() - began


def moves(pool: GuestPool, mover: PageMover) -> Iterator[Finding]:
    """Both ways, by how long a session is and how its pages lie."""
    rng = random.Random(1)
    for n_tokens in SESSIONS:
        n = n_tokens // PAGE_TOKENS
        host = torch.empty(n * SPEC.page_bytes, dtype=torch.uint8)
        pinned = torch.empty(n * SPEC.page_bytes, dtype=torch.uint8, pin_memory=True)
        bare_s = bare_copy_s(pool, pinned)
        del pinned
        for lie in ("side by side", "scattered"):
            pages = list(range(n)) if lie == "side by side" else rng.sample(range(pool.n_pages), n)
            for way in ("down", "up"):
                launches, seconds = list[float](), list[float]()
                for _ in range(REPEATS):
                    began = time.perf_counter()
                    job = mover.down(pages, host) if way == "down" else mover.up(pages, host)
                    launches.append(time.perf_counter() - began)
                    seconds.append(finished_in(job))
                launch_ms, s = 1e3 * median(launches), median(seconds)
                yield {
                    "timing": f"{n_tokens:,} tokens {way}, pages {lie}",
                    "bytes": host.numel(),
                    "ms": round(1e3 * s, 2),
                    "bare_ms": round(1e3 * bare_s, 2),
                    "launch_ms": round(launch_ms, 3),
                    "ok": launch_ms < LAUNCH_MS and s < TIMES_BARE * bare_s,
                }
            yield {"check": f"bytes of {n} pages, {lie}", "ok": is_copy(pool, pages, host)}


def bare_copy_s(pool: GuestPool, pinned: Tensor) -> float:
    """Seconds of one copy of as many bytes from the device to pinned memory."""
    source = pool.page_bytes.view(-1)[: pinned.numel()]
    seconds = list[float]()
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        pinned.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def is_copy(pool: GuestPool, pages: Sequence[int], host: Tensor) -> bool:
    """Whether the host has what the pages hold, in their order."""
    torch.cuda.synchronize()
    rows = host.view(len(pages), -1)
    return all(torch.equal(pool.page_bytes[page].cpu(), rows[at]) for at, page in enumerate(pages))


def beside(pool: GuestPool, mover: PageMover) -> Iterator[Finding]:
    """Products on the device's own queue, alone and while pages come and go."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(512 * SPEC.page_bytes, dtype=torch.uint8)

    def product_ms() -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        for _ in range(20):
            torch.mm(a, a)
        ended.record()
        ended.synchronize()
        ms: float = began.elapsed_time(ended) / 20
        return ms

    product_ms()
    alone = median(product_ms() for _ in range(REPEATS))
    for way in ("down", "up"):
        times = list[float]()
        for _ in range(REPEATS):
            pages = range(512)
            job = mover.down(pages, host) if way == "down" else mover.up(pages, host)
            while not job.is_over:
                times.append(product_ms())
        slowed = median(times) / alone
        yield {
            "timing": f"a product of 4,096 while pages go {way}, against alone",
            "times": round(slowed, 4),
            "ok": slowed < SLOWED,
        }


def main() -> int:
    """Measure, and write what was found."""
    arguments = parser_of(__doc__).parse_args()
    with recorded(arguments) as findings:
        pool = GuestPool(SPEC, 2 * SESSIONS[-1] // PAGE_TOKENS, 1, "cuda")
        pool.page_bytes.random_(0, 256)
        mover = PageMover(pool)
        for finding in (*moves(pool, mover), *beside(pool, mover)):
            findings.add(finding)
        return int(findings.n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
