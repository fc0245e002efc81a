"""How long the prompts and outputs of a load are: fixed, drawn around a mean, or as in a file."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wkvm_bench.harness import BenchError

MAX_LENGTH = 2**20
"""Of a prompt or an output, in ids."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Pairs of lengths, of a prompt and its output.

    Attributes:
        n_in, n_out: in ids, where there are no ``pairs``.
        range_ratio: draws both evenly from so much below to so much above: 0.5 of 100 is 50 to 150.
        pairs: what is drawn from instead, evenly.
    """

    n_in: int
    n_out: int
    range_ratio: float = 0.0
    pairs: Sequence[tuple[int, int]] = ()

    def draw(self, seed: int | str) -> Iterator[tuple[int, int]]:
        """Pairs without end, always the same ones of a seed."""
        # Another sequence than that of the prompts' ids, which have the same seed.
        random_ = random.Random(f"lengths {seed}")
        if self.pairs:
            while True:
                yield random_.choice(self.pairs)
        if not self.range_ratio:
            yield from itertools.repeat((self.n_in, self.n_out))
        while True:
            yield self._around(random_, self.n_in), self._around(random_, self.n_out)

    def _around(self, random_: random.Random, mean: int) -> int:
        low, high = mean * (1 - self.range_ratio), mean * (1 + self.range_ratio)
        return max(1, random_.randint(round(low), round(high)))

    @property
    def words(self) -> tuple[int | str, int | str]:
        """Of prompts and of outputs, for people: a number, or from where to where."""
        if self.pairs:
            ins, outs = zip(*self.pairs, strict=True)
            return _range(min(ins), max(ins)), _range(min(outs), max(outs))
        if not self.range_ratio:
            return self.n_in, self.n_out
        return tuple(  # type: ignore[return-value]
            _range(max(1, round(n * (1 - self.range_ratio))), round(n * (1 + self.range_ratio)))
            for n in (self.n_in, self.n_out)
        )


def read_pairs(path: Path) -> list[tuple[int, int]]:
    """The pairs in a file of JSON lines, each with the numbers ``input_len`` and ``output_len``.

    Raises:
        BenchError: the file cannot be read, has no line, or has one that is none of these.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise BenchError(f"{path}: {why}") from error
    pairs = list[tuple[int, int]]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            pair = record["input_len"], record["output_len"]
        except (ValueError, LookupError, TypeError, RecursionError):
            pair = (0, 0)
        if not all(type(n) is int and 1 <= n <= MAX_LENGTH for n in pair):
            raise BenchError(
                f"{path}, line {number}: not an object whose input_len and output_len are"
                f" from 1 to {MAX_LENGTH:,}"
            )
        pairs.append(pair)
    if not pairs:
        raise BenchError(f"{path}: no lines")
    return pairs


def _range(low: int, high: int) -> int | str:
    return low if low == high else f"{low} to {high}"
