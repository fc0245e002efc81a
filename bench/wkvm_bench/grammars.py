"""What grammars cost: the mask of a token, and a batch of 64 rows with none, one and 64 of them.

The mask is that of a vocabulary of 65,536 tokens, cut from English text as a tokenizer's would be,
along texts that fit a JSON schema. The batch is of the bundled model, by the engine as it is
served; its rows write JSON that never ends. Their steps alternate with those of rows without.
Times are of the one thread that does the work, so that neighbours of the machine do not count.
"""

import json
import pydoc_data.topics
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from wkvm.assembly.engine import build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.core.config import EngineConfig
from wkvm.core.grammar import Constraint, Grammar, Unbound
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm_bench.harness import BenchError, Comparison, Finding, alternate

N_ROWS = 64
VOCAB_SIZE = 65_536
LONGEST = 10
"""Bytes of a token of the vocabulary."""

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["happy", "sad", "sleepy"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
    },
    "required": ["name", "age", "mood", "tags"],
    "additionalProperties": False,
}
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
ENDLESS = {"type": "array", "items": PERSON, "minItems": 2000, **COMPACT}
KINDS = {
    "an object with a schema": Grammar("json_schema", json.dumps({**PERSON, **COMPACT})),
    "any JSON object": Grammar("json_schema", json.dumps({"type": "object", **COMPACT})),
    "a regular expression": Grammar("regex", r"[a-z]{3,8}( [a-z]{2,8}){20,40}\."),
}


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark on a CPU. ``n_threads`` are torch's."""
    size, n_texts = (2_000, 1) if smoke else (VOCAB_SIZE, 12)
    results = masks(size, n_texts)
    n_rows, n_steps, n = (4, 6, 1) if smoke else (N_ROWS, 40, 7)
    batch = Batch(n_rows, n_threads)
    for n_held in (1, n_rows):

        async def held(n_held: int = n_held) -> float:
            return batch.step_ms(n_held, n_steps)

        async def free() -> float:
            return batch.step_ms(0, n_steps)

        a, b = await alternate(held, free, n)
        case = f"{n_rows} rows of the bundled model, {n_held} with a grammar"
        results.append(Comparison(case, "with", "without", "ms of CPU a step", a, b, None))
    return results


def masks(size: int, n_texts: int) -> list[Comparison | Finding]:
    """Times of the mask of a token, and of what follows when it was chosen."""
    compiler = GrammarCompiler(vocabulary(size), vocab_size=size)
    results = list[Comparison | Finding]()
    for kind, grammar in KINDS.items():
        times_us = list[float]()
        compiler.prepare()
        began = time.perf_counter()
        constraint = bound(compiler, grammar, 0)
        compiled_ms = (time.perf_counter() - began) * 1e3
        for seed in range(n_texts):
            times_us += follow(constraint, size, random.Random(seed))
            constraint = bound(compiler, grammar, seed + 1)
        ordered = sorted(times_us)
        results.append(
            Finding(
                f"mask of a token among {size:,}: {kind}",
                statistics.median(ordered),
                "us of CPU",
                None,
                {
                    "p99, us": ordered[int(0.99 * (len(ordered) - 1))],
                    "tokens": float(len(ordered)),
                    "compiled, ms": compiled_ms,
                },
            )
        )
    return results


def bound(compiler: GrammarCompiler, grammar: Grammar, number: int) -> Constraint:
    """A constraint of a grammar, once it is compiled."""
    compiler.want([Unbound(number, grammar, (), None)])
    while not (ready := compiler.turn(lambda _: True)):
        compiler.wait()
    ((_, constraint),) = ready
    if isinstance(constraint, Exception):
        raise BenchError(str(constraint))
    return constraint


def follow(constraint: Constraint, size: int, choice: random.Random) -> list[float]:
    """Microseconds of each token of a text whose tokens are chosen at random."""
    times = list[float]()
    while len(times) < 200:
        began = time.thread_time()
        mask = constraint.next_ids(may_stop=True)
        took = time.thread_time() - began
        allowed = [
            token_id for token_id in range(size) if mask[token_id >> 3] >> (token_id & 7) & 1
        ]
        if not allowed:
            break
        token_id = choice.choice(allowed)
        began = time.thread_time()
        is_over = constraint.advance(token_id)
        times.append((took + time.thread_time() - began) * 1e6)
        if is_over:
            break
    return times


def vocabulary(size: int) -> list[bytes]:
    """All bytes, and the pieces of a text that are worth most as tokens."""
    text = "".join(pydoc_data.topics.topics.values()).encode()
    counts = Counter[bytes]()
    for length in range(2, LONGEST + 1):
        counts.update(text[at : at + length] for at in range(0, len(text) - length, 2))
    worth = sorted(counts, key=lambda piece: (-counts[piece] * (len(piece) - 1), piece))
    return [*(bytes((byte,)) for byte in range(256)), *worth][:size]


class Batch:
    """Rows of the bundled model, of which some are held to a grammar."""

    def __init__(self, n_rows: int, n_threads: int) -> None:
        config = EngineConfig(n_slots=n_rows, n_threads=n_threads, request_timeout_s=1e6)
        path = Path(BUNDLED)
        self._engine: Engine = build_engine(path, config, served_name="x", takes_grammars=True)
        self._n_rows = n_rows

    def step_ms(self, n_held: int, n_steps: int) -> float:
        """The median of some steps of all rows, of which ``n_held`` have a grammar."""
        engine, now = self._engine, 0.0
        grammar = Grammar("json_schema", json.dumps(ENDLESS))
        ids = list[int]()
        for row in range(self._n_rows):
            params = SamplingParams(max_tokens=n_steps + 20, seed=row, ignore_eos=True)
            spec = RequestSpec(
                prompt=(5, 6, 7), params=params, grammar=grammar if row < n_held else None
            )
            ids += engine.submit(spec, now)
        for _ in range(8):  # prompts, and the grammar, where it is not kept
            engine.step(now)
        times = list[float]()
        for _ in range(n_steps):
            began = time.thread_time()
            engine.step(now)
            times.append(time.thread_time() - began)
        for request_id in ids:
            engine.cancel(request_id, now)
        engine.step(now)
        return statistics.median(times) * 1e3
