"""``wkvm bench serve``: loads on running servers, over the binary protocol or OpenAI's interfaces.

A rung is a load: so many requests at a time, or so many a second. Each has a random prompt and an
output of a given length; what came when is reported as rates and percentiles, and one JSON line a
rung. Several servers take turns, and are compared.
"""

import argparse
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from wkvm.cli.terminal import on_one_line
from wkvm.server.process import raise_file_limit
from wkvm_bench import serve_flags
from wkvm_bench.ceiling import ceiling
from wkvm_bench.figures import Rung
from wkvm_bench.harness import BenchError, Comparison
from wkvm_bench.lengths import Lengths
from wkvm_bench.load import Plan, prompts_of, run_rung
from wkvm_bench.results import to_line, to_rung_line, to_text
from wkvm_bench.serve_flags import Load
from wkvm_bench.serve_text import HEAD, errors, manner, row
from wkvm_bench.servers import running
from wkvm_bench.targets import Connected, Target, connected

AN_ID = "an id, median"
COMPARED = {
    "output": ("tokens/s", "output_throughput"),
    "first id, median": ("ms", "median_ttft_ms"),
    AN_ID: ("ms", "median_tpot_ms"),
    "request, p99": ("ms", "p99_e2el_ms"),
}
"""Figures of several servers whose ratios are told: their unit, and their field in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a load on a server came to.

    Attributes:
        name: what tells it from others.
        record: its figures, as a line of results has them.
    """

    name: str
    record: Mapping[str, object]


Keep = Callable[[Sequence[Case | Comparison]], None]
"""Takes what came of a rung when it is over: what comes later may fail."""


async def run(options: argparse.Namespace, keep: Keep) -> None:
    """Run the ladder; for ``--smoke`` with tiny counts, on servers of its own without a model.

    Raises:
        BenchError: there is no server, or nothing at all came of a rung.
    """
    if not options.smoke:
        await _ladder(options, serve_flags.targets(options), keep)
        return
    options.input_len, options.output_len, options.num_prompts = 4, 3, 2
    options.goodput, options.check_generator = [("ttft", 60_000.0)], True
    async with _servers_without_a_model() as without:
        for target in without:
            options.max_concurrency, options.request_rate = (1, 2), None
            await _ladder(options, [target], keep)
            options.check_generator = False
        options.max_concurrency, options.request_rate = None, (1000.0,)
        await _ladder(options, without[:2], keep)


@asynccontextmanager
async def _servers_without_a_model() -> AsyncIterator[list[Target]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for kind in ("null", "gateway"):
            await stack.enter_async_context(running(kind, folder / kind))
        yield [
            Target("", "wkvm-binary", f"unix://{folder}/null"),
            Target("", "openai-completions", f"unix://{folder}/gateway"),
            Target("", "openai-chat", f"unix://{folder}/gateway"),
        ]


async def _ladder(options: argparse.Namespace, targets: Sequence[Target], keep: Keep) -> None:
    rungs, asking = serve_flags.loads(options), serve_flags.asking(options)
    lengths = serve_flags.lengths(options)
    raise_file_limit(asking.n_streams * len(targets))  # over HTTP each has a connection
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(connected(one, asking)) for one in targets]
        ceilings = dict[str, float]()
        if options.check_generator:
            most = max(load.cap or 64 for load in rungs)
            for backend in {one.backend for one in targets}:
                n_out = options.output_len
                ceilings[backend] = await ceiling(backend, asking, n_streams=most, n_out=n_out)
                print(
                    f"{backend}: this load generator takes {ceilings[backend]:,.0f} ids/s at most"
                )
        print(manner(rungs) + HEAD, end="")
        for number, load in enumerate(rungs):
            turns = {server.target: list[Mapping[str, object]]() for server in servers}
            for turn in range(options.repeat):
                for server in servers if turn % 2 == 0 else reversed(servers):
                    place = f"{options.seed} {number} {turn}"
                    in_words = case_name(options, server, load, lengths.words)
                    print(on_one_line(in_words))
                    rung = await _rung(options, lengths, server, load, place)
                    most_taken = ceilings.get(server.target.backend)
                    sent = _sent(options, lengths, server, load)
                    record = {**sent, **rung.record(most_taken)}
                    bound = bool(record["is_generator_bound"])
                    bounds = dict(options.goodput)
                    print(row(rung, load, bounds=bounds, ceiling=most_taken, is_bound=bound))
                    if not rung.n_completed:
                        raise BenchError(f"every request failed: {errors(rung)}")
                    turns[server.target].append(record)
                    suffix = f", turn {turn + 1} of {options.repeat}" if options.repeat > 1 else ""
                    keep([Case(name=f"{in_words}{suffix}", record=record)])
            # Ids of servers without a model come all at once, or not: there is no ratio of nothing.
            figures = [name for name in COMPARED if not (options.smoke and name == AN_ID)]
            found = compared(load, lengths.words, servers, turns, figures)
            for comparison in found:
                print(to_text("serve", comparison))
            if found:
                keep(found)


async def _rung(
    options: argparse.Namespace, lengths: Lengths, server: Connected, load: Load, place: str
) -> Rung:
    """One load on one server.

    ``place`` in the ladder seeds prompts, lengths and times: several servers get the same ones, and
    no prompt comes twice to a server that may have kept it.
    """
    plan = Plan(
        n_streams=load.cap,
        n_requests=load.n_prompts,
        rate=load.rate,
        burstiness=options.burstiness,
        seed=place,
        bounds=dict(options.goodput),
    )
    return await run_rung(
        server.source,
        plan,
        prompts_of(place, (n_in for n_in, _ in lengths.draw(place)), server.vocab_size),
        outputs=(n_out for _, n_out in lengths.draw(place)),
        n_warm_up=options.num_warmups,
    )


def _sent(
    options: argparse.Namespace, lengths: Lengths, server: Connected, load: Load
) -> dict[str, object]:
    """What was sent to whom, as a line of results has it."""
    n_in, n_out = lengths.words
    return {
        "label": server.target.label or None,
        "backend": server.target.backend,
        "model_id": server.source.model,
        "input_len": n_in,
        "output_len": n_out,
        "request_rate": load.rate,
        "burstiness": None if load.rate is None else options.burstiness,
        "max_concurrency": load.cap,
        "goodput": dict(options.goodput),
    }


def compared(
    load: Load,
    words: tuple[int | str, int | str],
    servers: Sequence[Connected],
    turns: Mapping[Target, Sequence[Mapping[str, object]]],
    figures: Sequence[str] = tuple(COMPARED),
) -> list[Comparison]:
    """The first server against each other one, turn by turn; nothing where there is one alone."""
    first, *others = servers
    found = list[Comparison]()
    for other in others:
        for what in figures:
            unit, name = COMPARED[what]
            sides = [[one.get(name) for one in turns[s.target]] for s in (first, other)]
            a, b = ([x for x in side if isinstance(x, float) and x > 0] for side in sides)
            if not len(a) == len(b) == len(sides[0]):
                continue  # nothing came of a turn
            case = f"{words[0]} in, {words[1]} out, {load.words}: {what}"
            names = called(first), called(other)
            failed = {f"failed, {called(s)}": _n_failed(turns[s.target]) for s in (first, other)}
            besides = failed if any(failed.values()) else {}
            found.append(Comparison(case, *names, unit, tuple(a), tuple(b), None, besides))
    return found


def _n_failed(turns: Sequence[Mapping[str, object]]) -> float:
    counts = (one.get("failed") for one in turns)
    return sum(n for n in counts if isinstance(n, int))


def called(server: Connected) -> str:
    """What a server is called in a report."""
    return server.target.label or f"{server.source.model}, {server.target.backend}"


def case_name(
    options: argparse.Namespace, server: Connected, load: Load, words: tuple[int | str, int | str]
) -> str:
    """What tells a rung from others."""
    shape = "" if options.burstiness == 1 else f", burstiness {options.burstiness:g}"
    return f"{called(server)}, {words[0]} in, {words[1]} out, {load.words}{shape}"


def to_lines(
    options: argparse.Namespace,
    found: Sequence[Case | Comparison],
    *,
    command: Sequence[str],
    environment: Mapping[str, object],
) -> list[str]:
    """A JSON line for each."""
    settings, lines = serve_flags.settings(options), list[str]()
    for one in found:
        if isinstance(one, Case):
            line = to_rung_line(
                "serve",
                one.name,
                one.record,
                command=command,
                settings=settings,
                environment=environment,
            )
        else:
            line = to_line(
                "serve", one, command=command, settings=settings, environment=environment
            )
        lines.append(line)
    return lines
