"""docs/operations.md says to operators what is so: flags, reasons, statuses, fields, metrics."""

import argparse
import json
import logging
import re
from pathlib import Path
from typing import get_args

from wkvm.cli.parser import build_parser
from wkvm.cli.status import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE
from wkvm.core.config import ServerConfig
from wkvm.gateway.monitoring import health
from wkvm.server.crashes import MAX_BYTES, MAX_REPORTS, report_of
from wkvm.server.guard import END_TIMEOUT_S, EXIT_ENGINE_FAILED, EXIT_STALLED
from wkvm.server.log import JsonFormatter

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def part(title: str) -> str:
    """What is below a heading, up to the next one."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    """The first cells of the rows of a part's table, without its head."""
    rows = [line for line in part(title).splitlines() if line.startswith("| ")]
    return [row.split(" | ")[0].removeprefix("| ") for row in rows[1:]]


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found |= flags_of(child)
    return found


def test_every_flag_that_it_names_is_there() -> None:
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - flags_of(build_parser()) == set()


def test_the_reasons_of_readiness_are_those_that_there_are() -> None:
    named = [cell.strip("`") for cell in first_cells("Readiness")]
    in_http = (ROOT / "docs/http.md").read_text("utf-8")
    assert sorted(named) == sorted(get_args(health.Reason))
    assert all(f"| `{reason}` | " in in_http for reason in named)


def test_the_exit_statuses_are_those_that_there_are() -> None:
    named = {int(cell) for cell in first_cells("Exit statuses") if cell.isdecimal()}
    expected = {EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_ENGINE_FAILED, EXIT_STALLED}
    assert named == {0, *expected}


def test_the_fields_of_a_report_are_those_that_it_has() -> None:
    named = [name for cell in first_cells("Crash reports") for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(report_of("engine_failed", EXIT_ENGINE_FAILED))
    text = part("Crash reports")
    assert f"at most {MAX_BYTES // 1024} KiB" in text
    assert f"The newest {MAX_REPORTS} are kept" in text


def test_the_fields_of_the_log_are_those_that_it_has() -> None:
    record = logging.LogRecord("wkvm", logging.INFO, "", 1, "no", (), None)
    for field in json.loads(JsonFormatter("serve").format(record)):
        assert f"`{field}`" in part("Log")


def test_every_metric_that_it_names_is_one() -> None:
    in_http = (ROOT / "docs/http.md").read_text("utf-8")
    named = set(re.findall(r"\bwkvm_\w+", part("Metrics worth an alert")))
    assert named
    assert {name for name in named if f"`{name}" not in in_http} == set()


def test_the_times_that_it_gives_are_the_defaults() -> None:
    config = ServerConfig()
    assert f"`--drain-timeout-s` ({config.drain_timeout_s:g})" in part("Stop")
    assert f"`--step-timeout-s` ({config.step_timeout_s:g})" in part("When the engine fails")
    assert f"The end takes {END_TIMEOUT_S:g} s at most" in part("When the engine fails")
    assert f"after {health.MAX_STEP_AGE_S:g} s at most" in part("Readiness")
