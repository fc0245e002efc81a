"""The command line: which benchmark, how long, and where its figures go."""

import argparse
import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import uvloop

from wkvm_bench import serve, serve_flags, soak
from wkvm_bench.harness import BenchError, Comparison, Finding
from wkvm_bench.report import command as report
from wkvm_bench.results import RESULTS, append, environment, to_line, to_text

BENCHES = {
    "aborts": "100,000 streams of the HTTP gateway given up in every state: what is left of them",
    "clients": "100 clients at once over HTTP and the binary protocol, and usage of all interfaces",
    "decode": "the bundled model against the rwkv package, batch 1 and 16",
    "engine": "the engine against the bare forward pass, 256 rows, alone and beside a long prompt",
    "fanout": "256 lanes of one connection against one aiohttp stream of events",
    "frontier": "sessions resident under a cap of memory, and their rate, against a transformer",
    "gateway": "streamed chats of the HTTP gateway against a FastAPI server like vLLM's",
    "grammars": "the mask of a token, and a batch of 64 rows with none, one and 64 grammars",
    "host": "a server beside a device that takes 3.2 ms a step: what its host takes",
    "json": "msgspec against orjson, for what the gateway reads and writes",
    "kernels": "recurrences and products on a CPU, each under its roofline",
    "ladders": "fork, hibernate, resume, migrate by size and number, against bare files",
    "overload": "half to four times of what a server can do, over both doors: what is of use of it",
    "peers": "the bundled model against llama.cpp, transformers and rwkv on the same CPU",
    "ping": "a ping over a unix socket against a bare uvloop echo",
    "serve": "loads on running servers, wkvm's or others: times and rates (serve --help)",
    "soak": "a day's work by counts on a server over both doors: what is left and what grows",
    "server": "a server's 256 streams on a unix socket against the bare forward pass",
    "states": "thousands of sessions on disk: to the next id of one, and moves of a live stream",
    "turns": "a chat of 40 turns sent whole each time, with what is kept of prompts and without",
    "workers": "256 streams of HTTP by 1 and 2 gateway processes beside a null engine, and by none",
    "start": "a server of a 1.5B model from the command to ready, kernels compiled or not",
}

REPORT = ("report", "JSON lines of results as Markdown, with plots (report --help)")
"""Measures nothing."""

MODULES = {"json": "json_codecs"}
"""Where a benchmark is whose module cannot have its name."""


SECRET = "--api-key"
"""The flag whose value is nobody else's."""

Results: TypeAlias = Sequence[Comparison | Finding]


def main(argv: Sequence[str]) -> int:
    """Run a benchmark and print its figures.

    Returns:
        The exit status: 0 for a run, whatever its figures; 1 where it could not be run.
    """
    if argv[:1] == ["serve"]:
        return _serve(argv)
    if argv[:1] == ["soak"]:
        return _soak(argv)
    if argv[:1] == ["report"]:
        return _report(argv)
    arguments = _parser().parse_args(argv)
    compare: Callable[..., Coroutine[Any, Any, Results]]
    compare = importlib.import_module(
        f"wkvm_bench.{MODULES.get(arguments.name, arguments.name)}"
    ).compare
    settings = {"smoke": arguments.smoke, "threads": arguments.threads}
    running = compare(smoke=arguments.smoke, n_threads=arguments.threads)
    return _findings(argv, arguments, running, settings)


def _findings(
    argv: Sequence[str],
    arguments: argparse.Namespace,
    running: Coroutine[Any, Any, Results],
    settings: Mapping[str, object],
) -> int:
    """Run a benchmark, print what it found, and keep it."""
    before = environment()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(running)
    except BenchError as error:
        print(f"{arguments.name}: {error}", file=sys.stderr)
        return 1
    for result in results:
        print(to_text(arguments.name, result))
    command = _command(argv)
    lines = [
        to_line(arguments.name, one, command=command, settings=settings, environment=before)
        for one in results
    ]
    return _keep(arguments, lines)


def _soak(argv: Sequence[str]) -> int:
    """A day's work, which has flags of its own."""
    parser = argparse.ArgumentParser(prog="wkvm bench soak", description=soak.__doc__)
    parser.add_argument("name", choices=["soak"], help=argparse.SUPPRESS)
    soak.add_flags(parser)
    _add_common(parser)
    arguments = parser.parse_args(argv)
    names = ("smoke", "requests", "rounds", "seed", "traced")
    settings = {name: value for name, value in vars(arguments).items() if name in names}
    return _findings(argv, arguments, soak.run(arguments), settings)


def _serve(argv: Sequence[str]) -> int:
    """The ladder of loads, which has flags of its own."""
    parser = argparse.ArgumentParser(
        prog="wkvm bench serve",
        description=serve.__doc__,
        allow_abbrev=False,  # a key is known by its flag's name
    )
    parser.add_argument("name", choices=["serve"], help=argparse.SUPPRESS)
    serve_flags.add_flags(parser)
    _add_common(parser)
    arguments = parser.parse_args(argv)
    before, command, kept_in = environment(), _command(argv), list[Path]()
    folder = _folder(arguments)

    def keep(found: Sequence[serve.Case | Comparison]) -> None:
        """Each rung when it is over: a ladder may take hours, and its last rung fail."""
        if folder is not None:
            lines = serve.to_lines(arguments, found, command=command, environment=before)
            try:
                kept_in.append(append(folder, arguments.name, lines))
            except OSError as error:
                raise BenchError(f"results: {folder}: {error.strerror}") from error

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve.run(arguments, keep))
    except BenchError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("serve: stopped", file=sys.stderr)
        return 130
    finally:
        if kept_in:
            print(f"added to {kept_in[-1]}")
    return 0


def _report(argv: Sequence[str]) -> int:
    """What was measured before, for people."""
    parser = argparse.ArgumentParser(prog="wkvm bench report", description=report.__doc__)
    parser.add_argument("name", choices=["report"], help=argparse.SUPPRESS)
    report.add_flags(parser)
    try:
        report.run(parser.parse_args(argv))
    except BenchError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


def _command(argv: Sequence[str]) -> list[str]:
    """As it is kept with figures, which others read: without keys."""
    kept, rest = list[str](), iter(argv)
    for one in rest:
        kept.append(SECRET if one.startswith(f"{SECRET}=") else one)
        if kept[-1] == SECRET:
            kept.append("KEY")
            if one == SECRET:
                next(rest, None)
    return ["python", "-m", "wkvm_bench", *kept]


def _keep(arguments: argparse.Namespace, lines: Sequence[str]) -> int:
    """Append the lines to where they belong, if anywhere.

    Returns:
        The exit status: 1 if they could not be written.
    """
    folder = _folder(arguments)
    if folder is not None:
        try:
            print(f"added to {append(folder, arguments.name, lines)}")
        except OSError as error:
            print(f"{arguments.name}: results: {folder}: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _folder(arguments: argparse.Namespace) -> Path | None:
    """Where lines go, if anywhere."""
    folder: Path | None = arguments.results
    if folder is None and RESULTS.is_dir() and not arguments.smoke:
        folder = RESULTS
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wkvm bench",
        description="Measure wkvm: beside a peer, both by turns, or by itself.",
        epilog="\n".join(f"  {name:<8} {what}" for name, what in [*BENCHES.items(), REPORT]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(BENCHES), help="the benchmark")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="of both sides of decode (default 1)"
    )
    _add_common(parser)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--smoke", action="store_true", help="once, with tiny counts")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="append JSON lines here (default: the checkout's bench/results; none for --smoke)",
    )
