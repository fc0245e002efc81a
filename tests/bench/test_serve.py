"""The flags of loads on servers, their table and lines."""

import argparse
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wkvm_bench import serve, serve_flags
from wkvm_bench.command import _command, main
from wkvm_bench.figures import Rung, Streamed, summary
from wkvm_bench.harness import BenchError, Comparison
from wkvm_bench.serve import Case, case_name, compared, to_lines
from wkvm_bench.serve_flags import Load, add_flags
from wkvm_bench.serve_text import manner, row
from wkvm_bench.targets import Connected, Target

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


class Named:
    """A source that is never asked."""

    model = "m"

    async def stream(self, prompt: Sequence[int], n_out: int) -> Streamed:
        raise NotImplementedError


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_flags(made)
    return made


def options(*flags: str) -> argparse.Namespace:
    return parser().parse_args(flags)


def server(label: str, backend: str = "wkvm-binary") -> Connected:
    return Connected(Target(label, backend, "u"), Named(), 10)


def rung_of(*seconds: float, error: str | None = None, cpu: float = 0.1) -> Rung:
    done = [Streamed(due_at=0.0, ended_at=one, error=error) for one in seconds]
    return summary(1, done, generator_cpu=cpu, lags=[], bounds={"e2el": 1500.0})


def printed(rung: Rung, rate: float | None = None, ceiling: float | None = None) -> str:
    load = Load(rate, 1, rung.n_requests)
    bound = rung.is_generator_bound
    return row(rung, load, bounds={"e2el": 1500.0}, ceiling=ceiling, is_bound=bound)


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("serve", set(parser()._option_string_actions) | {"--smoke", "--results"}),
        ("report", {"--output", "--images", "--no-images"}),
    ],
)
def test_every_flag_is_in_the_docs_and_no_other(command: str, flags: set[str]) -> None:
    section = DOCS.read_text(encoding="utf-8").partition(f"### wkvm bench {command}")[2]
    section = re.split(r"\n#{2,3} ", section)[0]
    documented = set(re.findall(r"^\| `(--[\w-]+)`", section, re.MULTILINE))
    assert documented == flags - {"-h", "--help"}


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        ("--max-concurrency", "0", "0 is below 1"),
        ("--max-concurrency", "1,0", "0 is below 1"),
        ("--max-concurrency", "1,,2", "'' is no number"),
        ("--max-concurrency", "x", "'x' is no number"),
        ("--num-warmups", "-1", "-1 is below 0"),
        ("--input-len", "1048577", "1048577 is above 1048576"),
        ("--output-len", "0", "0 is below 1"),
        ("--request-rate", "1,0", "'0' is no positive number"),
        ("--request-rate", "nan", "'nan' is no positive number"),
        ("--burstiness", "inf", "'inf' is no positive number"),
        ("--timeout-s", "-1", "'-1' is no positive number"),
        ("--random-range-ratio", "1", "'1' is not from 0 to below 1"),
        ("--random-range-ratio", "nan", "'nan' is not from 0 to below 1"),
        ("--goodput", "itl:5", "'itl:5' is not NAME:MS with one of ttft, tpot, e2el"),
        ("--goodput", "ttft:0", "'0' is no positive number"),
        ("--extra-body", "[]", "'[]' is no JSON object"),
        ("--extra-body", "{", "'{' is no JSON object"),
        ("--target", "wkvm-binary@x", "'wkvm-binary@x' is not LABEL=BACKEND@URL"),
        ("--target", "a=b@c", "'b' is no backend: wkvm-binary, openai-completions, openai-chat"),
    ],
)
def test_what_a_flag_cannot_be_is_refused(
    flag: str, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options(f"{flag}={text}")
    assert f"argument {flag}: {why}" in capsys.readouterr().err


def test_the_largest_length_and_no_warm_up_are_taken() -> None:
    taken = options("--input-len", "1048576", "--num-warmups", "0", "--random-range-ratio", "0")
    assert (taken.input_len, taken.num_warmups, taken.random_range_ratio) == (2**20, 0, 0.0)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--max-concurrency", "1,4"], [Load(None, 1, 3), Load(None, 4, 12)]),
        (["--request-rate", "2,8"], [Load(2.0, None, 100), Load(8.0, None, 100)]),
        (["--request-rate", "2", "--duration-s", "7"], [Load(2.0, None, 14)]),
        (["--request-rate", "2", "--max-concurrency", "5"], [Load(2.0, 5, 100)]),
        (
            ["--request-rate", "inf", "--max-concurrency", "5", "--num-prompts", "9"],
            [Load(None, 5, 9)],
        ),
    ],
)
def test_rungs_are_rates_and_numbers_of_requests_at_a_time(
    flags: list[str], wanted: list[Load]
) -> None:
    assert serve_flags.loads(options(*flags)) == wanted


def test_without_flags_the_ladder_is_of_a_closed_loop_on_the_default_port() -> None:
    given = options()
    assert [load.cap for load in serve_flags.loads(given)] == [1, 2, 4, 8, 16, 32, 64]
    assert serve_flags.targets(given) == [Target("", "wkvm-binary", "tcp://127.0.0.1:8001")]
    chat = options("--backend", "openai-chat", "--label", "x")
    assert serve_flags.targets(chat) == [Target("x", "openai-chat", "http://127.0.0.1:8000")]


def test_a_server_is_named_by_its_label_its_backend_and_its_address() -> None:
    given = options(
        "--target", "a=openai-chat@http://h:1/x=y@z", "--target", "b=wkvm-binary@unix:///s"
    )
    assert serve_flags.targets(given) == [
        Target("a", "openai-chat", "http://h:1/x=y@z"),
        Target("b", "wkvm-binary", "unix:///s"),
    ]
    with pytest.raises(BenchError, match="one label"):
        serve_flags.targets(options(*["--target", "a=wkvm-binary@unix:///s"] * 2))


def test_requests_without_a_rate_and_a_number_at_a_time_are_no_load() -> None:
    with pytest.raises(BenchError, match="needs --max-concurrency"):
        serve_flags.loads(options("--request-rate", "5,inf"))


def test_a_case_is_told_from_others() -> None:
    given = options("--burstiness", "0.5")
    name = case_name(given, server(""), Load(2.5, None, 1), (5, "3 to 6"))
    assert name == "m, wkvm-binary, 5 in, 3 to 6 out, 2.5 requests/s, burstiness 0.5"
    given = options()
    name = case_name(given, server("vLLM"), Load(2.5, 8, 1), (5, 6))
    assert name == "vLLM, 5 in, 6 out, 2.5 requests/s, at most 8 at a time"
    assert case_name(given, server(""), Load(None, 8, 1), (5, 6)).endswith("6 out, 8 at a time")


def test_the_table_says_what_failed_and_when_the_generator_was_the_limit() -> None:
    text = printed(rung_of(1.0, error="QueueFullError", cpu=0.95))
    assert "failed: 1 QueueFullError" in text
    assert "the load generator was busy or late" in text
    assert "busy" not in printed(rung_of(1.0))


def test_the_table_says_how_many_requests_kept_their_bounds() -> None:
    assert "goodput: 0.50 requests/s within e2el 1500 ms (50%)" in printed(rung_of(1.0, 2.0))


def test_the_table_says_when_a_server_falls_behind() -> None:
    behind = [float(i) for i in range(1, 21)]
    assert "2 requests came a second, 1.00 were answered" in printed(rung_of(*behind), rate=2.0)
    assert "came a second" not in printed(rung_of(*behind), rate=1.2)
    assert "came a second" not in printed(rung_of(*behind[:19]), rate=2.0)


def test_the_table_says_from_when_times_count() -> None:
    assert "count from when they were due" in manner([Load(1.0, None, 1)])
    assert "closed loop" in manner([Load(None, 1, 1)])


def test_servers_that_took_turns_are_compared_with_the_first_pair_by_pair() -> None:
    first, other = server("ours"), server("theirs")
    turns = {
        first.target: [{"output_throughput": 10.0}, {"output_throughput": 30.0}],
        other.target: [{"output_throughput": 5.0}, {"output_throughput": 10.0}],
    }
    (found,) = compared(Load(None, 4, 1), (5, 6), [first, other], turns)
    assert (found.case, found.a_name) == ("5 in, 6 out, 4 at a time: output", "ours")
    assert (found.b_name, found.ratio.median) == ("theirs", 2.5)
    assert found.besides == {}
    assert compared(Load(None, 4, 1), (5, 6), [first], turns) == []


def test_a_ratio_says_how_many_requests_it_leaves_out() -> None:
    first, other = server("ours"), server("theirs")
    turns = {
        first.target: [{"output_throughput": 10.0, "failed": 0}] * 2,
        other.target: [{"output_throughput": 5.0, "failed": n} for n in (3, 4)],
    }
    (found,) = compared(Load(None, 4, 1), (5, 6), [first, other], turns)
    assert found.besides == {"failed, ours": 0, "failed, theirs": 7}


def test_a_turn_of_which_nothing_came_is_compared_with_none() -> None:
    first, other = server("ours"), server("theirs")
    turns = {
        first.target: [{"output_throughput": 10.0}],
        other.target: [{"output_throughput": 0.0}],
    }
    assert compared(Load(None, 4, 1), (5, 6), [first, other], turns) == []


def test_lines_have_what_was_asked_for_and_no_key() -> None:
    given = options("--api-key", "s3cret", "--target", "a=openai-chat@http://h:1")
    found: list[Case | Comparison] = [
        Case(name="c", record={"completed": 1}),
        Comparison("d", "a", "b", "ms", (1.0,), (2.0,), None),
    ]
    command = _command(["serve", "--api-key", "s3cret", "--api-key=s3cret", "--seed", "1"])
    lines = to_lines(given, found, command=command, environment={})
    rung, ratio = map(json.loads, lines)
    assert (rung["case"], rung["rung"]) == ("c", {"completed": 1})
    assert rung["settings"]["target"] == ["a=openai-chat@http://h:1"]
    assert ratio["ratio"]["median"] == 0.5
    assert rung["command"] == "python -m wkvm_bench serve --api-key KEY --api-key KEY --seed 1"
    assert "s3cret" not in "".join(lines)


class Kept:
    """What a ladder told as it went on."""

    def __init__(self) -> None:
        self.found = list[Case | Comparison]()

    def __call__(self, found: Sequence[Case | Comparison]) -> None:
        self.found += found


Asked = list[tuple[str, str]]
"""Which server was asked, and what seeded it."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Rungs of servers that are not there; those of more than 2 requests at a time fail."""

    @asynccontextmanager
    async def connected(target: Target, asking: object) -> AsyncIterator[Connected]:
        del asking
        yield Connected(target, Named(), 10)

    found = Asked()

    async def rung(given: object, lengths: object, to: Connected, load: Load, place: str) -> Rung:
        del given, lengths
        found.append((to.target.label, place))
        fails = load.cap is not None and load.cap > 2
        return rung_of(1.0, error="ConnectionLostError" if fails else None)

    monkeypatch.setattr(serve, "connected", connected)
    monkeypatch.setattr(serve, "_rung", rung)
    return found


def ladder(*flags: str) -> argparse.Namespace:
    given = options(*flags)
    given.smoke = False
    return given


async def test_each_rung_is_kept_when_it_is_over_though_nothing_comes_of_a_later_one(
    asked: Asked,
) -> None:
    kept = Kept()
    with pytest.raises(BenchError, match="every request failed: 1 ConnectionLostError"):
        await serve.run(ladder("--max-concurrency", "2,3,1"), kept)
    assert [one.record["failed"] for one in kept.found if isinstance(one, Case)] == [0]
    assert len(asked) == 2


async def test_there_are_files_for_all_requests_that_are_open(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[int]()
    monkeypatch.setattr(serve, "raise_file_limit", limits.append)
    two = ["--target", "a=wkvm-binary@unix:///a", "--target", "b=wkvm-binary@unix:///b"]
    await serve.run(ladder(*two, "--max-concurrency", "1,2"), Kept())
    await serve.run(ladder("--request-rate", "5", "--num-prompts", "70"), Kept())
    assert limits == [4, 70]
    assert len(asked) == 5


async def test_servers_take_turns_in_changing_order_with_what_has_the_same_seed(
    asked: Asked,
) -> None:
    two = ["--target", "a=wkvm-binary@unix:///a", "--target", "b=wkvm-binary@unix:///b"]
    kept = Kept()
    await serve.run(ladder(*two, "--repeat", "2", "--max-concurrency", "1"), kept)
    assert [label for label, _ in asked] == ["a", "b", "b", "a"]
    first, again, other, once_more = (place for _, place in asked)
    assert first == again != other == once_more
    names = [one.name for one in kept.found if isinstance(one, Case)]
    assert names[-1] == "a, 128 in, 128 out, 1 at a time, turn 2 of 2"
    (whole,) = (one for one in kept.found if isinstance(one, Comparison))
    assert (whole.a, whole.b) == ((1000.0, 1000.0), (1000.0, 1000.0))


def test_a_ladder_that_is_stopped_leaves_the_lines_of_what_was_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(given: argparse.Namespace, keep: serve.Keep) -> None:
        del given
        keep([Case(name="first", record={})])
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "run", run)
    assert main(["serve", "--results", str(tmp_path)]) == 130
    (line,) = (tmp_path / "serve.jsonl").read_text().splitlines()
    assert json.loads(line)["case"] == "first"
    captured = capsys.readouterr()
    assert captured.err == "serve: stopped\n"
    assert captured.out == f"added to {tmp_path}/serve.jsonl\n"
