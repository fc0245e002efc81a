"""Whether a state remembers, and how decay makes it forget.

    python -m tools.state_memory --output bench/results/FILE.jsonl --plot docs/state-memory.svg

A name is planted at the start of a story, some sentences without it follow, and there the state is
taken. From that state on somebody asks for the name. Measured is the log probability of the planted
name minus that of another one, its control. Every name is planted once in each scene, and is once
the control of another: what the model thinks of a name anyway cancels. The states are hibernated,
the store is opened again, they are forked, and migrated to another store: each time all states and
margins have the same bits, or the tool fails. Then the same from states that went through the
mutation ``decay``. One JSON line for each factor, and a plot.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from wkvm.core.limits import StoreLimits
from wkvm.core.registry import Carried, Identity, Provenance
from wkvm.models.base import Batch, Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena
from wkvm.state.exchange import Receiver, export_image
from wkvm.state.image import StateImage, pack_ids
from wkvm.state.mutations import Mutations
from wkvm.state.store import Store

BUNDLED = Path("wkvm/bundled/rwkv7-tinystories")
FACTORS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
ROWS = 60
"""States of a step."""
STUDENT = 2.001
"""The 97.5% quantile of Student's t with 59 degrees of freedom: there are 60 names."""

# fmt: off
BOYS = [
    "Tim", "Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Finn", "Bob", "Billy",
    "Noah", "Adam", "Luke", "Oscar", "Charlie", "Peter", "Henry", "Toby", "Jake", "Danny",
    "Hugo", "Eli", "Owen", "Ned", "Gus", "Sami", "Ravi", "Omar", "Kofi", "Theo",
]
GIRLS = [
    "Lily", "Mia", "Anna", "Emma", "Sue", "Lucy", "Rosie", "Sara", "Ella", "Molly",
    "Nina", "Zoe", "Ruby", "Amy", "Kate", "Lola", "Daisy", "Jane", "Mary", "Ivy",
    "Bella", "Poppy", "Tara", "Grace", "Hana", "Maya", "Asha", "Clara", "Nora", "May",
]
# fmt: on
"""Each is one id, with the space before it."""

SCENES = (
    "Once upon a time, there was a brave {child} named {name}. {He} lived near the farm and loved"
    " to play all day. One morning, the sun was warm. The birds sang in the trees, and the grass"
    " was green. A fox came out of the forest with a red ball.",
    "There once was a {child} named {name}. {He} had a little house by the lake. One day, a big"
    " storm came. The wind blew and the rain fell all night. In the morning, there was a rainbow"
    " in the sky. An old turtle sat on a stone by the water.",
    "{name} was a quiet {child}. {He} liked to read books under the big oak tree. Today the market"
    " was full of people. There were apples and pears and warm bread. A tall man stood behind a"
    " table with many bells.",
    "Long ago, there was a funny {child} named {name}. {He} wanted to learn how to swim. The river"
    " was cold, and the stones were smooth. Three ducks swam by, and a frog jumped into the"
    " water. Then an owl flew down from the hill.",
)
TENANT = "tool"

PROBE = ' "Hello, who are you?" "My name is'


@dataclass(frozen=True, slots=True)
class Session:
    """A name planted in a scene."""

    name: str
    control: str
    text: str


@dataclass(frozen=True, slots=True)
class Margins:
    """Planted minus control, in nats, over sessions from states of one decay.

    Attributes:
        decay: the factor.
        n, n_names: sessions, and names among them.
        mean, low, high: and its 95% confidence interval; sessions of one name count as one.
        positive: the share of sessions in which the planted name was likelier.
    """

    decay: float
    n: int
    n_names: int
    mean: float
    low: float
    high: float
    positive: float


def sessions(n_names: int | None = None) -> list[Session]:
    """All names in all scenes; or the first names, boys' and girls'."""
    planted = list[Session]()
    for names, child, he in ((BOYS, "boy", "He"), (GIRLS, "girl", "She")):
        chosen = names[:n_names]
        for at, name in enumerate(chosen):
            control = chosen[(at + 1) % len(chosen)]
            planted += [
                Session(name, control, scene.format(child=child, name=name, He=he))
                for scene in SCENES
            ]
    return planted


class Reader:
    """The model, its tokenizer, and slots to run states in."""

    def __init__(self, path: Path) -> None:
        self.model: Model = load_model(path, device="cpu")
        self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self._arena = Arena(self.model.layout, ROWS, "cpu")
        self.identity = Identity(
            model_digest=self.model.info.digest, fingerprint=self.model.layout.fingerprint
        )

    def ids(self, text: str) -> list[int]:
        """Of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def name_id(self, name: str) -> int:
        """Of a name within a sentence.

        Raises:
            ValueError: it is more than one id.
        """
        (only,) = self.ids(f" {name}")
        return only

    def absorb(self, texts: Sequence[str]) -> Iterator[StateImage]:
        """The state after each text, from the empty one."""
        for start in range(0, len(texts), ROWS):
            some = texts[start : start + ROWS]
            rows = [self.ids(f"<|endoftext|>{text}") for text in some]
            self._arena.zero(range(len(rows)))
            self._forward(rows)
            for slot, ids in enumerate(rows):
                yield StateImage(
                    identity=self.identity,
                    layout=self.model.layout,
                    carried=Carried(n_computed=len(ids)),
                    token_ids=pack_ids(ids),
                    record=self._arena.records[slot].clone(),
                )

    def after(self, states: Sequence[StateImage], text: str) -> Tensor:
        """Log probabilities of what follows ``text`` from each state: ``[B, V]``."""
        ids, parts = self.ids(text), list[Tensor]()
        for start in range(0, len(states), ROWS):
            some = states[start : start + ROWS]
            for slot, state in enumerate(some):
                self._arena.records[slot].copy_(state.record)
            parts.append(self._forward([ids] * len(some)).log_softmax(-1))
        return torch.cat(parts)

    def _forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        lengths = tuple(map(len, rows))
        batch = Batch(
            token_ids=torch.tensor([one for ids in rows for one in ids]),
            slots=torch.arange(len(rows), dtype=torch.int32),
            lengths=lengths,
            slot_list=tuple(range(len(rows))),
            logit_rows=torch.tensor(lengths).cumsum(0) - 1,
        )
        return self.model.forward(batch, self._arena.views)


def margins(reader: Reader, planted: Sequence[Session], states: Sequence[StateImage]) -> Tensor:
    """Planted minus control, ``[n]``, from the state of each session."""
    scores = reader.after(states, PROBE)
    names = torch.tensor([reader.name_id(one.name) for one in planted])
    controls = torch.tensor([reader.name_id(one.control) for one in planted])
    of_names, of_controls = (
        scores.gather(1, ids[:, None])[:, 0].double() for ids in (names, controls)
    )
    return of_names - of_controls


def summary(decay: float, planted: Sequence[Session], found: Tensor) -> Margins:
    """In short. Sessions of one name are not independent, so the interval is of their means."""
    by_name = dict[str, list[float]]()
    for session, margin in zip(planted, found.tolist(), strict=True):
        by_name.setdefault(session.name, []).append(margin)
    means = [statistics.fmean(one) for one in by_name.values()]
    mean = statistics.fmean(means)
    error = STUDENT * statistics.stdev(means) / sqrt(len(means))
    positive = float((found > 0).double().mean())
    return Margins(decay, len(planted), len(means), mean, mean - error, mean + error, positive)


def decayed(states: Sequence[StateImage], factor: float) -> list[StateImage]:
    """The states after the mutation."""
    mutations = Mutations()
    return [mutations.apply("decay", {"factor": factor}, [one]).image for one in states]


def journey(
    reader: Reader, states: Sequence[StateImage], folder: Path
) -> Iterator[tuple[str, list[StateImage]]]:
    """The states after each of the ways that must not change a bit of them, one after the other."""
    names = [f"s{at}" for at in range(len(states))]
    no_memory = StoreLimits(host_bytes=0)

    def loaded(store: Store, prefix: str = "") -> list[StateImage]:
        return [store.load(TENANT, prefix + name).image for name in names]

    with closing(Store.open(str(folder / "a"), clock=time.time, limits=no_memory)) as store:
        for name, state in zip(names, states, strict=True):
            store.commit(TENANT, name, state, provenance=Provenance(operation="create"))
        yield "hibernated", loaded(store)
    with closing(Store.open(str(folder / "a"), clock=time.time, limits=no_memory)) as store:
        yield "restarted", loaded(store)
        for name in names:
            store.fork(TENANT, name, [f"fork-{name}"])
        forks = loaded(store, "fork-")
    yield "forked", forks
    with closing(Store.open(str(folder / "b"), clock=time.time, limits=no_memory)) as store:
        for name, state in zip(names, forks, strict=True):
            arrived = moved(reader, state)
            store.commit(TENANT, name, arrived, provenance=Provenance(operation="import"))
        yield "migrated", loaded(store)


def moved(reader: Reader, state: StateImage) -> StateImage:
    """The state after a way out of the engine and in again, in chunks."""
    export = export_image(state)
    receiver = Receiver(
        export.n_bytes, reader.identity, reader.model.layout, reader.model.info.vocab_size
    )
    for chunk in export.chunks():
        receiver.feed(chunk)
    return receiver.finish().image


class BitsChangedError(Exception):
    """A state that came back is not the one that went."""


def measure(reader: Reader, factors: Sequence[float], n_names: int | None) -> Iterator[Margins]:
    """The margins for each factor.

    Raises:
        BitsChangedError: a state that was hibernated, restarted, forked or migrated, or the margin
            from it, differs in a bit.
    """
    planted = sessions(n_names)
    states = list(reader.absorb([one.text for one in planted]))
    here = margins(reader, planted, states)
    with TemporaryDirectory() as folder:
        for stage, after in journey(reader, states, Path(folder)):
            margins_equal = (margins(reader, planted, after) == here).tolist()
            n_equal = sum(
                equal and one.record.equal(other.record)
                for equal, one, other in zip(margins_equal, states, after, strict=True)
            )
            if n_equal < len(planted):
                raise BitsChangedError(f"{stage}: {n_equal} of {len(planted)} states are equal")
            print(json.dumps({"stage": stage, "equal_bits": n_equal}), flush=True)
    for factor in factors:
        yield summary(factor, planted, margins(reader, planted, decayed(states, factor)))


WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 64, 48, 40, 16


def plot(rows: Sequence[Margins]) -> str:
    """The margins over the factor, with their intervals, as SVG."""
    rows = sorted(rows, key=lambda one: one.decay)
    top = max(1.0, max(one.high for one in rows))
    low = min(0.0, min(one.low for one in rows))

    def x(decay: float) -> float:
        return LEFT + (1 - decay) * (WIDTH - LEFT - RIGHT)

    def y(margin: float) -> float:
        return TOP + (top - margin) / (top - low) * (HEIGHT - TOP - BOTTOM)

    def points(pairs: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in pairs)

    band = [(one.decay, one.high) for one in rows] + [(one.decay, one.low) for one in rows[::-1]]
    line = [(one.decay, one.mean) for one in rows]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22">Planted name minus control, nats: mean over {rows[0].n} sessions'
        " and 95% interval</text>",
    ]
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(step):.1f}" y2="{y(step):.1f}"'
        f' stroke="{"black" if step == 0 else "#ddd"}"/>'
        f'<text x="{LEFT - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step}</text>'
        for step in range(int(top) + 1)
    ]
    parts += [
        f'<text x="{x(tenth / 10):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
        f"{tenth / 10:g}</text>"
        for tenth in range(0, 11, 2)
    ]
    parts += [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        "factor of decay (1: nothing is forgotten)</text>",
        f'<polygon points="{points(band)}" fill="#3b7dd8" fill-opacity="0.25"/>',
        f'<polyline points="{points(line)}" fill="none" stroke="#1f5fb4" stroke-width="2"/>',
    ]
    parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="#1f5fb4"/>' for a, b in line]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write lines and plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--output", type=Path, required=True, help="lines are appended to it")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    parser.add_argument("--names", type=int, help="of boys, and of girls; all without it")
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args(argv)
    about: dict[str, Any] = {
        "bench": "state-memory",
        "model": arguments.model.name,
        "commit": arguments.commit,
        "date": time.strftime("%Y-%m-%d"),
        "device": "cpu",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    rows = list[Margins]()
    with torch.inference_mode(), arguments.output.open("a") as output:
        for row in measure(Reader(arguments.model), FACTORS, arguments.names):
            fields = {name: round(value, 4) for name, value in asdict(row).items()}
            print(json.dumps(fields), flush=True)
            output.write(json.dumps({**fields, **about}) + "\n")
            rows.append(row)
    if arguments.plot is not None:
        arguments.plot.write_text(plot(rows))


if __name__ == "__main__":
    main()
