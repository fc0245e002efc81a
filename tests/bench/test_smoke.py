"""Each benchmark runs once with tiny counts, so that none rots. No figure is judged here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wkvm_bench.command import BENCHES

PEERS = {"decode": "rwkv", "fanout": "aiohttp"}
"""The optional packages that a benchmark compares with."""
CASES = {"decode": ["batch 1", "batch 16"], "fanout": ["256 lanes"], "ping": ["unix socket"]}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the peers' warnings and settings stay there."""
    return subprocess.run(
        [sys.executable, "-m", "wkvm_bench", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_runs_and_writes_a_line_a_case(name: str, tmp_path: Path) -> None:
    peer = PEERS.get(name)
    if peer is not None and importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer}, the peer, is not installed")
    done = run(name, "--smoke", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    records = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    assert [record["case"] for record in records] == CASES[name]
    assert all(record["a"]["n"] == 1 and record["settings"]["smoke"] for record in records)


def test_an_unknown_benchmark_is_named_with_the_known_ones() -> None:
    done = run("speed")
    assert done.returncode == 2
    assert all(name in done.stderr for name in BENCHES)
