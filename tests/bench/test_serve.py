"""The ladder's flags, table and lines."""

import argparse
import re
from pathlib import Path

import pytest
from wkvm_bench.load import Streamed, summary
from wkvm_bench.serve import add_flags, case_name, row

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_flags(made)
    return made


def test_every_flag_is_in_the_docs_and_no_other() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("### wkvm bench serve")[2]
    section = re.split(r"\n#{2,3} ", section)[0]
    documented = set(re.findall(r"^\| `(--[\w-]+)`", section, re.MULTILINE))
    flags = set(parser()._option_string_actions) - {"-h", "--help"}
    assert documented == flags | {"--smoke", "--results"}


@pytest.mark.parametrize(
    ("text", "why"),
    [("0", "0 is below 1"), ("1,0", "0 is below 1"), ("1,,2", "'' is no number"), ("x", "'x' is")],
)
def test_a_ladder_has_numbers_of_streams(
    text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--concurrency", text])
    assert f"argument --concurrency: {why}" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--rate", "--timeout-s"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_rates_and_times_are_positive(flag: str, text: str) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([f"{flag}={text}"])


def test_a_case_is_told_from_others() -> None:
    options = parser().parse_args(["--ctx", "5", "--out", "6", "--rate", "2.5"])
    assert case_name(options, "m", 1) == "m, binary, 5 in, 6 out, 1 stream, 2.5 requests/s"
    options = parser().parse_args(["--backend", "openai"])
    assert case_name(options, "m", 2) == "m, openai, 128 in, 128 out, 2 streams"


def test_the_table_says_what_failed_and_when_the_generator_was_the_limit() -> None:
    done = [Streamed(due_at=0.0, ended_at=1.0, error="QueueFullError")]
    text = row(summary(1, done, generator_cpu=0.95, lags=[]))
    assert "failed: 1 QueueFullError" in text
    assert "the load generator was busy all the time" in text
    assert "busy" not in row(summary(1, done, generator_cpu=0.1, lags=[]))
