"""Each benchmark runs once with tiny counts, so that none rots. No figure is judged here.

The soak has a file of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from wkvm_bench.command import BENCHES

from tests.stalls import without_lateness

PEERS = {
    "decode": ["rwkv"],
    "frontier": ["transformers"],
    "gateway": ["fastapi"],
    "json": ["orjson"],
    "peers": ["llama_cpp", "gguf", "rwkv7_hf", "rwkv"],
}
"""The optional packages that a benchmark compares with."""
LEFT_OVER = [
    "tasks",
    "file descriptors",
    "HTTP connections",
    "HTTP requests",
    "n_running",
    "n_queued",
    "n_paused",
    "n_lanes",
    "n_connections",
    "slots",
    "requests without an end",
]
CASES = {
    "aborts": [*LEFT_OVER, "RSS, second half"],
    "clients": [
        "bundled on cpu, 6 clients",
        "tokens of usage apart from those that the engine counted",
    ],
    "decode": ["batch 1", "batch 16"],
    "engine": [
        "tiny on cpu, 4 rows",
        "tiny on cpu, 4 rows: CPU time of the host a step",
        "tiny on cpu, 4 rows: p99 between ids beside a prompt of 96, against undisturbed",
        "tiny on cpu, 4 rows: a prompt of 96 beside them, against alone",
    ],
    "fanout": ["256 lanes"],
    "frontier": ["sessions of 64 tokens in 4 MiB"],
    "gateway": [
        "first event, idle, no wait",
        "first event, idle",
        "events, 1 stream",
        "events, 16 streams",
        "first event, 16 at once",
        "events, 64 streams",
        "first event, 64 at once",
    ],
    "grammars": [
        "mask of a token among 2,000: an object with a schema",
        "mask of a token among 2,000: any JSON object",
        "mask of a token among 2,000: a regular expression",
        "4 rows of the bundled model, 1 with a grammar",
        "4 rows of the bundled model, 4 with a grammar",
    ],
    "host": [
        "8 streams, steps of 3.2 ms: from ids to the next launch",
        "8 streams, steps of 3.2 ms: the device waits",
        "8 streams, steps of 3.2 ms: ids that arrive",
    ],
    "json": [
        "text of an event, 4 characters",
        "text of an event, 40 characters",
        "text of an event, 400 characters",
        "event with all its fields",
        "reply, 100 kB of text",
        "body, small, checked",
        "body, small, parsed alone",
        "body, 100 kB of ids, checked",
        "body, 100 kB of ids, parsed alone",
    ],
    "kernels": [
        f"{kernel}, {load}"
        for load in ("2 rows", "a prompt of 8")
        for kernel in (
            "RWKV-7, 2 heads of 8",
            "Mamba-2, 2 heads of 8 by 8",
            "gated delta rule, 2 heads of 8",
        )
    ]
    + [f"a product of 64 by 64, {n} rows" for n in (2, 8)],
    "ladders": [
        f"{operation}, 2 states of 0.1 MiB"
        for operation in ("fork", "hibernate", "resume", "migrate")
    ],
    "overload": [
        f"{door}, {what}"
        for door in ("binary", "HTTP")
        for what in (
            "at 2 times the capacity",
            "at 4 times the capacity",
            "at twice the capacity: ids computed that are of use",
            "at two and four times: a refusal comes, p50",
            "at twice the capacity: requests of a tenant that asks for less than its share that"
            " are whole in time",
            "at twice the capacity: requests of a higher priority that are whole in time",
            "at twice the capacity: requests of all others that are whole in time",
        )
    ],
    "peers": [
        "decode, llama.cpp, 1 stream",
        "a prompt of 16, llama.cpp",
        "decode, llama.cpp in float32, 1 stream",
        "a prompt of 16, llama.cpp in float32",
        "decode, transformers, 1 stream",
        "a prompt of 16, transformers",
        "decode, rwkv, 1 stream",
        "a prompt of 16, rwkv",
    ],
    "ping": ["unix socket"],
    "server": [
        "tiny on cpu, 4 streams",
        "tiny on cpu, 4 streams: CPU time of the server a step",
    ],
    "states": [
        "bundled on cpu, 20 sessions: from disk to the next id",
        "bundled on cpu, 20 sessions: p99 from disk to the next id, against p50",
        "bundled on cpu, 20 sessions: the store opens",
        "bundled on cpu, 20 sessions: a look-up in the catalogue",
        "a live stream moves: its client waits, p50",
        "a live stream moves: its client waits, p99",
        "a live stream moves: ids lost, repeated or others",
    ],
    "turns": [
        "4 turns: tokens that a turn computes beyond its new ones, at most",
        "first token at turn 4",
        "first token at turn 4 against turn 2, kept",
        "first token at turn 4 against turn 2, computed whole",
        "16 choices of one prompt: tokens computed for each beyond the prompt's own",
        "three questions about a document at once: tokens computed, against one",
    ],
    "workers": [
        f"8 streams, {pace}, {what}"
        for pace in ("a step every 2 ms", "any step")
        for what in (
            "2 against 1",
            "1 against 0",
            "1 against 0: ping of the engine's process, p90",
        )
    ],
    "start": ["tiny on cpu, no kernel compiled before", "tiny on cpu, kernels compiled before"],
    "serve": [
        *(
            f"null, {backend}, 4 in, 3 out, {n} at a time"
            for backend in ("wkvm-binary", "openai-completions", "openai-chat")
            for n in (1, 2)
        ),
        "null, wkvm-binary, 4 in, 3 out, 1000 requests/s",
        "null, openai-completions, 4 in, 3 out, 1000 requests/s",
        "4 in, 3 out, 1000 requests/s: output",
        "4 in, 3 out, 1000 requests/s: first id, median",
        "4 in, 3 out, 1000 requests/s: request, p99",
    ],
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the peers' warnings and settings stay there."""
    return subprocess.run(
        [sys.executable, "-m", "wkvm_bench", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("name", [one for one in BENCHES if one != "soak"])
def test_a_benchmark_runs_and_writes_a_line_a_case(name: str, tmp_path: Path) -> None:
    missing = [peer for peer in PEERS.get(name, []) if importlib.util.find_spec(peer) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = run(name, "--smoke", "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert without_lateness(done.stderr) == ""
    records = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    assert [record["case"] for record in records] == CASES[name]
    assert all(record["settings"]["smoke"] for record in records)
    assert all(record["a"]["n"] == 1 for record in records if "a" in record)
    assert all(record["rung"]["errors"] == {} for record in records if "rung" in record)
    # What is so however fast the machine is.
    facts = [record for record in records if record.get("unit") in ("left over", "tokens")]
    assert [record["case"] for record in facts if not record["met"]] == []


def test_an_unknown_benchmark_is_named_with_the_known_ones() -> None:
    done = run("speed")
    assert done.returncode == 2
    assert all(name in done.stderr for name in BENCHES)
