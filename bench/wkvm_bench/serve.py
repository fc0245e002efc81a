"""``wkvm bench serve``: a ladder of loads on a running server, over the binary protocol or HTTP.

Every rung has more streams than the one before. Each of its requests has a random prompt and an
output of a given length; what came when is reported as percentiles, and one JSON line a rung.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from wkvm_bench import load_binary, load_openai
from wkvm_bench.harness import BenchError
from wkvm_bench.load import Plan, Rung, Source, Spread, random_prompts, run_rung
from wkvm_bench.results import to_rung_line
from wkvm_bench.servers import running

ADDRESSES = {"binary": "tcp://127.0.0.1:8001", "openai": "http://127.0.0.1:8000"}
LANES_PER_CONNECTION = 1024
"""A server's default limit."""
N_WORDS = 2**16
"""Words of a prompt are drawn from so many numbers, of which several are the same word."""

Case = tuple[str, Rung]


async def run(options: argparse.Namespace) -> list[Case]:
    """Run the ladder, of both backends for ``--smoke``.

    Returns:
        Each rung, and the name of its case.

    Raises:
        BenchError: there is no server, or nothing at all came of a rung.
    """
    if not options.smoke:
        return await _ladder(options, options.address or ADDRESSES[options.backend])
    options.ctx, options.out, options.rounds, options.concurrency = 4, 3, 1, (1, 2)
    cases = list[Case]()
    for options.backend, kind in (("binary", "null"), ("openai", "gateway")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.sock"
            async with running(kind, path):
                cases += await _ladder(options, f"unix://{path}")
    return cases


async def _ladder(options: argparse.Namespace, address: str) -> list[Case]:
    cases = list[Case]()
    async with _source(options, address) as (source, vocab_size):
        prompts = random_prompts(options.seed, options.ctx, vocab_size)
        for n_streams in options.concurrency:
            plan = Plan(
                n_streams=n_streams,
                n_rounds=options.rounds,
                n_out=options.out,
                rate=options.rate,
                seed=options.seed,
            )
            rung = await run_rung(source, plan, prompts, warm_up=options.warm_up)
            cases.append((case_name(options, source.model, n_streams), rung))
            print(HEAD if len(cases) == 1 else "", end="", file=sys.stdout)
            print(row(rung), flush=True)
            if rung.errors and rung.n_requests == sum(rung.errors.values()):
                raise BenchError(f"every request failed: {_errors(rung)}")
    return cases


@asynccontextmanager
async def _source(options: argparse.Namespace, address: str) -> AsyncIterator[tuple[Source, int]]:
    """A connected backend, and the ids that prompts are drawn from."""
    common = {
        "api_key": options.api_key or os.environ.get("WKVM_API_KEY"),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "timeout_s": options.timeout_s,
    }
    if options.backend == "binary":
        n_connections = options.connections or -(-max(options.concurrency) // LANES_PER_CONNECTION)
        async with load_binary.connected(address, n_connections=n_connections, **common) as binary:
            yield binary, options.vocab_size or binary.server.vocab_size
        return
    async with load_openai.connected(
        address, model=options.model, vocab_size=options.vocab_size, **common
    ) as openai:
        yield openai, options.vocab_size or N_WORDS


def case_name(options: argparse.Namespace, model: str, n_streams: int) -> str:
    """What tells a rung from others."""
    rate = f", {options.rate:g} requests/s" if options.rate else ""
    plural = "" if n_streams == 1 else "s"
    return (
        f"{model}, {options.backend}, {options.ctx} in, {options.out} out, "
        f"{n_streams} stream{plural}{rate}"
    )


# --- for people ---------------------------------------------------------------------------

HEAD = (
    "streams requests    ids/s  steady |     first id, ms      |   between ids, ms     |"
    "        request, ms        | generator\n"
    "                                  |    p50     p90     p99|    p50     p90     p99|"
    "      p50      p90      p99| cores\n"
)


def row(rung: Rung) -> str:
    """A rung as a line of the table, and lines for what has to be known of it."""
    steady = "-" if rung.steady_ids_per_s is None else f"{rung.steady_ids_per_s:,.0f}"
    cells = [
        f"{rung.n_streams:>7} {rung.n_requests:>8} {rung.ids_per_s:>8,.0f} {steady:>7} ",
        _three(rung.ttft, 7),
        _three(rung.itl, 7),
        _three(rung.e2e, 8),
        f" {rung.generator_cpu:.2f}",
    ]
    lines = ["|".join(cells)]
    if rung.errors:
        lines.append(f"    failed: {_errors(rung)}")
    if rung.is_generator_bound:
        lines.append("    the load generator was busy all the time: the server may do better")
    return "\n".join(lines)


def _three(spread: Spread | None, width: int) -> str:
    if spread is None:
        return " ".join(["-".rjust(width)] * 3)
    return " ".join(
        f"{ms:>{width}.{2 if ms < 100 else 0}f}" for ms in (spread.p50, spread.p90, spread.p99)
    )


def _errors(rung: Rung) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(rung.errors.items()))


# --- the command line ---------------------------------------------------------------------


def lines(
    options: argparse.Namespace,
    cases: Sequence[Case],
    *,
    command: Sequence[str],
    environment: Mapping[str, object],
) -> list[str]:
    """A JSON line for each rung."""
    settings = {
        name: getattr(options, name)
        for name in ("smoke", "ctx", "out", "rounds", "rate", "temperature", "top_p", "seed")
    }
    return [
        to_rung_line(
            "serve",
            case,
            {**asdict(rung), "is_generator_bound": rung.is_generator_bound},
            command=command,
            settings=settings,
            environment=environment,
        )
        for case, rung in cases
    ]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark, beside those of all."""
    add = parser.add_argument
    add("--backend", choices=sorted(ADDRESSES), default="binary", help="(default: %(default)s)")
    add(
        "--address",
        metavar="URL",
        help="tcp://HOST:PORT or http://HOST:PORT, or unix:///PATH"
        " (default: the backend's port of this machine)",
    )
    add("--ctx", type=_count, default=128, metavar="N", help="ids of a prompt (default: 128)")
    add("--out", type=_count, default=128, metavar="N", help="ids of an output (default: 128)")
    add(
        "--concurrency",
        type=_counts,
        default=(1, 2, 4, 8, 16, 32, 64),
        metavar="N,...",
        help="streams at a time, rung by rung (default: 1,2,4,8,16,32,64)",
    )
    add("--rounds", type=_count, default=3, metavar="N", help="requests a stream (default: 3)")
    add(
        "--rate",
        type=_positive,
        metavar="X",
        help="requests a second, at random times, by as many streams at most"
        " (default: each as soon as a stream is free)",
    )
    add(
        "--no-warm-up",
        dest="warm_up",
        action="store_false",
        help="count from the first request on (default: one of each stream does not count)",
    )
    add("--temperature", type=float, default=0.8, metavar="X", help="(default: %(default)s)")
    add("--top-p", type=float, default=0.9, metavar="X", help="(default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of prompts and times (default: 0)")
    add(
        "--vocab-size",
        type=_count,
        metavar="N",
        help="ids of prompts are below this (default: the server's; over HTTP, prompts are words)",
    )
    add("--model", metavar="NAME", help="over HTTP (default: the first that the server names)")
    add("--api-key", metavar="KEY", help="(default: the environment variable WKVM_API_KEY)")
    add("--connections", type=_count, metavar="N", help="binary (default: one for 1,024 streams)")
    add(
        "--timeout-s",
        type=_positive,
        default=600.0,
        metavar="X",
        help="of a request (default: 600)",
    )


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))
