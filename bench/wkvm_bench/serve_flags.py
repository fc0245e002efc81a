"""The flags of ``wkvm bench serve``, and what they are checked for.

Names are those of ``vllm bench serve`` where they mean the same.
"""

import argparse
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wkvm_bench.harness import BenchError
from wkvm_bench.lengths import MAX_LENGTH, Lengths, read_pairs
from wkvm_bench.targets import BACKENDS, Asking, Target

BOUNDED = ("ttft", "tpot", "e2el")
DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16, 32, 64)
PROMPTS_A_STREAM = 3
PROMPTS_OF_A_RATE = 100
UNKEPT = {"api_key", "results", "name"}
"""Flags that are not in the lines of results."""


@dataclass(frozen=True, slots=True)
class Load:
    """One rung: requests at a rate, or so many at a time, or both.

    Attributes:
        rate: requests a second; None sends each as soon as another is over.
        cap: requests that are open at a time; None is any number.
        n_prompts: requests in all.
    """

    rate: float | None
    cap: int | None
    n_prompts: int

    @property
    def words(self) -> str:
        """What tells it from others."""
        if self.rate is None:
            return f"{self.cap} at a time"
        return f"{self.rate:g} requests/s" + (f", at most {self.cap} at a time" if self.cap else "")


def loads(options: argparse.Namespace) -> list[Load]:
    """All rungs: each rate with each number of requests at a time."""
    rates = options.request_rate or (None,)
    is_closed = rates == (None,)
    caps = options.max_concurrency or (DEFAULT_CONCURRENCY if is_closed else (None,))
    found = list[Load]()
    for rate in rates:
        for cap in caps:
            if rate is not None:
                given = options.duration_s
                n = PROMPTS_OF_A_RATE if given is None else max(1, round(rate * given))
            elif cap is not None:
                n = PROMPTS_A_STREAM * cap
            else:
                raise BenchError("--request-rate inf needs --max-concurrency")
            found.append(Load(rate, cap, options.num_prompts or n))
    return found


def targets(options: argparse.Namespace) -> list[Target]:
    """The servers, in order; the first is what others are compared with."""
    if options.target:
        labels = [one.label for one in options.target]
        if len(set(labels)) < len(labels):
            raise BenchError("two of --target have one label")
        return list(options.target)
    url = options.base_url or BACKENDS[options.backend]
    return [Target(options.label or "", options.backend, url)]


def lengths(options: argparse.Namespace) -> Lengths:
    """How long prompts and outputs are.

    Raises:
        BenchError: the file of lengths is none.
    """
    pairs = () if options.lengths is None else read_pairs(options.lengths)
    return Lengths(options.input_len, options.output_len, options.random_range_ratio, pairs)


def asking(options: argparse.Namespace) -> Asking:
    """How every server is asked."""
    most = max((load.cap or load.n_prompts for load in loads(options)), default=1)
    return Asking(
        n_streams=most,
        endpoint=options.endpoint,
        model=options.model,
        more=options.extra_body,
        vocab_size=options.vocab_size,
        api_key=options.api_key or os.environ.get("WKVM_API_KEY"),
        temperature=options.temperature,
        top_p=options.top_p,
        ignore_eos=options.ignore_eos,
        counts_events=options.count_events,
        timeout_s=options.timeout_s,
        n_connections=options.connections,
    )


def settings(options: argparse.Namespace) -> dict[str, object]:
    """What was asked for, as a line of results has it."""
    kept = {name: value for name, value in vars(options).items() if name not in UNKEPT}
    kept["target"] = [f"{one.label}={one.backend}@{one.url}" for one in options.target or ()]
    kept["lengths"] = None if options.lengths is None else options.lengths.name
    return kept


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark, beside those of all."""
    _add_servers(parser)
    _add_requests(parser)
    add = parser.add_argument_group("when requests are sent").add_argument
    add(
        "--max-concurrency",
        type=_counts,
        metavar="N,...",
        help="requests at a time, rung by rung (default: 1,2,4,8,16,32,64; any number with a rate)",
    )
    add(
        "--request-rate",
        type=_rates,
        metavar="X,...",
        help="requests a second, at random times, rung by rung; their times count from when they"
        " were due (default: inf, each as soon as another one is over)",
    )
    add(
        "--burstiness",
        type=_positive,
        default=1.0,
        metavar="X",
        help="of a rate: below 1 requests come in bursts, above it more evenly (default: 1, a"
        " Poisson process)",
    )
    add(
        "--num-prompts",
        type=_count,
        metavar="N",
        help="requests of a rung (default: 3 for each at a time; 100 of a rate)",
    )
    add("--duration-s", type=_positive, metavar="X", help="of a rate: requests for so long")
    add(
        "--num-warmups",
        type=_count_or_none,
        metavar="N",
        help="requests before a rung that do not count (default: one for each at a time; 4 of a"
        " rate)",
    )
    add(
        "--repeat",
        type=_count,
        default=1,
        metavar="N",
        help="each rung so often, on several servers by turns (default: 1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    add = parser.add_argument_group("what is judged").add_argument
    add(
        "--goodput",
        type=_bound,
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="bounds of ttft, tpot and e2el: how many requests a second keep them all",
    )
    add(
        "--check-generator",
        action="store_true",
        help="first see how much this load generator can take from a server that does nothing",
    )


def _add_servers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("servers").add_argument
    add("--backend", choices=list(BACKENDS), default="wkvm-binary", help="(default: %(default)s)")
    add(
        "--base-url",
        metavar="URL",
        help="tcp://HOST:PORT or http://HOST:PORT, or unix:///PATH"
        " (default: the backend's port of this machine)",
    )
    add("--label", metavar="NAME", help="what reports call it (default: its model and backend)")
    add(
        "--target",
        type=Target.parse,
        action="append",
        metavar="LABEL=BACKEND@URL",
        help="a server, instead of the three flags above; given again, another one that takes turns"
        " with the first",
    )
    add("--endpoint", metavar="PATH", help="over HTTP (default: the backend's, below /v1)")
    add("--model", metavar="NAME", help="over HTTP (default: the first that the server names)")
    add("--api-key", metavar="KEY", help="(default: the environment variable WKVM_API_KEY)")
    add(
        "--connections",
        type=_count,
        metavar="N",
        help="of the binary protocol (default: one for 1,024 requests at a time)",
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("requests").add_argument
    add(
        "--input-len", type=_length, default=128, metavar="N", help="ids of a prompt (default: 128)"
    )
    add(
        "--output-len",
        type=_length,
        default=128,
        metavar="N",
        help="ids of an output (default: 128)",
    )
    add(
        "--random-range-ratio",
        type=_share,
        default=0.0,
        metavar="X",
        help="both drawn evenly, from so much less to so much more (default: 0, all alike)",
    )
    add(
        "--lengths",
        type=Path,
        metavar="FILE",
        help="both drawn from JSON lines with input_len and output_len",
    )
    add(
        "--vocab-size",
        type=_count,
        metavar="N",
        help="ids of prompts are below this (default: the server's; over HTTP, prompts are words)",
    )
    add("--temperature", type=float, default=0.8, metavar="X", help="(default: %(default)s)")
    add("--top-p", type=float, default=0.9, metavar="X", help="(default: %(default)s)")
    add(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="outputs may end earlier (default: they are of full length, or an error)",
    )
    add(
        "--count-events",
        action="store_true",
        help="over HTTP, for servers that tell no usage: each event with text is one id",
    )
    add(
        "--extra-body",
        type=_object,
        default={},
        metavar="JSON",
        help="over HTTP: further fields of each request",
    )
    add(
        "--timeout-s",
        type=_positive,
        default=600.0,
        metavar="X",
        help="of a request (default: 600)",
    )


# --- values -------------------------------------------------------------------------------


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _count(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _count_or_none(text: str) -> int:
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def _length(text: str) -> int:
    number = _count(text)
    if number > MAX_LENGTH:
        raise argparse.ArgumentTypeError(f"{number} is above {MAX_LENGTH}")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return number


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to below 1")
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _rates(text: str) -> tuple[float | None, ...]:
    return tuple(None if part == "inf" else _positive(part) for part in text.split(","))


def _bound(text: str) -> tuple[str, float]:
    name, _, ms = text.partition(":")
    if name not in BOUNDED:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:MS with one of {', '.join(BOUNDED)}"
        )
    return name, _positive(ms)


def _object(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value
