"""A day's work by counts: a little here, and in parts as much as is promised."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wkvm_bench.soak import Slope

from tests.soak import SOAKING, seed, tell

N_REQUESTS, N_TRACED = 230_000, 80_000
"""Of one part. Resident memory comes and goes by a MiB: of fewer requests its slope says nothing.
Memory of every fifth part is traced, which takes twice the time."""
TIMEOUT_S = 3600.0
WHAT = {
    "requests": ("requests of every kind over both doors", "requests"),
    "aborts": ("requests given up in every state", "aborts"),
    "forks": ("states forked and deleted", "forks"),
    "hibernations": ("states hibernated and resumed", "hibernations"),
    "bad clients": ("bad clients", "clients"),
    "bursts": ("bursts of more requests than may wait", "bursts"),
}
FLAT = "the growth in a million requests"


@pytest.mark.long
def test_after_a_days_work_all_is_as_before_and_nothing_has_grown(tmp_path: Path) -> None:
    flags = ["--smoke"]
    if SOAKING:
        is_traced = seed() % 5 == 0
        flags = ["--requests", str(N_TRACED if is_traced else N_REQUESTS), "--seed", str(seed())]
        flags += ["--traced"] if is_traced else []
    done = subprocess.run(
        [sys.executable, "-m", "wkvm_bench", "soak", "--results", str(tmp_path), *flags],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = (tmp_path / "soak.jsonl").read_text().splitlines()
    found: dict[str, dict[str, Any]] = {line["case"]: line for line in map(json.loads, lines)}
    left_over = {
        case: line["besides"]
        for case, line in found.items()
        if line["unit"] == "left over" and not line["met"]
    }
    assert left_over == {}, done.stdout
    grown = {case: line for case, line in found.items() if case.endswith(FLAT)}
    if SOAKING:  # A smaller run shows how memory fills up to its limits.
        missed = {case: line["value"] for case, line in grown.items() if not line.get("met", True)}
        assert missed == {}, done.stdout
    slower = found["p99 of requests, last tenth against first"]
    figures = {f"{case}, {line['unit']}": line["value"] for case, line in grown.items()}
    figures["p99, last tenth against first"] = slower["value"]
    for name, (what, unit) in WHAT.items():
        extra = figures if name == "requests" else {}
        tell(10, what, int(slower["besides"][name]), unit, **extra)


def test_a_slope_has_the_upper_end_that_a_table_of_students_t_gives() -> None:
    # On a line but for 1, -1, -1 and 1 three times, which have neither a mean nor a slope.
    apart = (1, -1, -1, 1) * 3
    slope = Slope.of(range(12), [1 + 3 * x + error for x, error in enumerate(apart)])
    spread = sum((x - 5.5) ** 2 for x in range(12))
    t = 1.812  # 0.95 on one side, 10 degrees of freedom
    assert slope.value == pytest.approx(3.0)
    assert slope.upper == pytest.approx(3.0 + t * (12 / 10 / spread) ** 0.5, rel=1e-3)


def test_what_does_not_grow_has_no_slope() -> None:
    assert Slope.of(range(5), [7.0] * 5) == Slope(0.0, 0.0)
