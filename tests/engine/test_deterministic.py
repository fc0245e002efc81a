"""Deterministic mode on a CPU: what comes of a request has the same bits, whoever else runs."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from tests.engine.driver import Driver, Outcome
from tests.engine.test_runner import prompt_row
from tests.fakes import FakeModel, fake_continuation
from tests.models.tiny_rwkv7 import Tiny, batch_of, random_weights, write_pth
from wkvm.core.config import EngineConfig
from wkvm.core.layout import StateLayout
from wkvm.core.plan import StepPlan, StepResult
from wkvm.core.request import Logprobs
from wkvm.core.sampling import SamplingParams
from wkvm.engine.alone import pieces
from wkvm.engine.engine import Engine
from wkvm.engine.runner import Runner
from wkvm.models.base import Batch, DecodeStep, Model, ModelInfo, StateViews
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena

BASE = SamplingParams(max_tokens=6, logprobs=2, seed=5, ignore_eos=True)
KINDS = [
    replace(BASE, temperature=0),
    replace(BASE, temperature=0.9, top_p=0.8),
    replace(BASE, top_k=40, min_p=0.01, prompt_logprobs=1),
    replace(BASE, repetition_penalty=1.3, frequency_penalty=0.2, penalty_decay=0.97),
]


class Watched(Model):
    """A model that keeps the logits of its last forward pass."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.logits: Tensor | None = None

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def layout(self) -> StateLayout:
        return self._model.layout

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        self.logits = self._model.forward(batch, states)
        return self.logits

    def decode_step(self, n_rows: int, *, apart: bool = False) -> DecodeStep | None:
        return self._model.decode_step(n_rows, apart=apart)

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        return self._model.workspace_bytes(n_tokens, n_logit_rows)

    def capture_prompts(self, states: StateViews) -> None:
        self._model.capture_prompts(states)

    def prompt_graph_bytes(self) -> int:
        return self._model.prompt_graph_bytes()


@dataclass
class Notes:
    """By request and position: the bytes of the state and of the logits there."""

    bits: dict[int, dict[int, tuple[bytes, bytes]]] = field(
        default_factory=dict[int, dict[int, tuple[bytes, bytes]]]
    )


def driver(model: Model, config: EngineConfig) -> tuple[Driver, Notes]:
    """An engine that is watched piece by piece."""
    watched, notes = Watched(model), Notes()

    class Noting(Runner):
        def _run(self, plan: StepPlan) -> StepResult:
            result = super()._run(plan)
            (row,), logits = plan.rows, watched.logits
            assert logits is not None
            state = arenas[0].read(row.slot)
            of_request = notes.bits.setdefault(row.request_id, {})
            of_request[row.position + row.n_ids] = (
                b"".join(state[name].numpy().tobytes() for name in sorted(state)),
                logits.numpy().tobytes(),
            )
            return result

    arenas = list[Arena]()

    def make(model: Model, arena: Arena, config: EngineConfig) -> Runner:
        arenas.append(arena)
        return Noting(model, arena, poison_freed=True, deterministic=config.deterministic)

    made = Driver(model, config)
    made.engine = Engine(watched, config, make_runner=make)
    return made, notes


def prompts(n: int, *, seed: int, longest: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 63, 64, 65, 129, rng.randint(1, longest)]) for _ in range(n)]
    return [tuple(rng.choices(range(600), k=length)) for length in lengths]


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Seen = tuple[list[int], list[Logprobs | None], list[Logprobs], dict[int, tuple[bytes, bytes]]]


def seen(outcome: Outcome, bits: dict[int, tuple[bytes, bytes]]) -> Seen:
    return outcome.ids, outcome.logprobs, outcome.prompt_logprobs, bits


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose products are a library's, which adds up in an order that suits the batch."""
    tiny = Tiny(width=192, ffn_width=500, vocab_size=601, ranks=(20, 12, 20, 28))
    path = write_pth(tmp_path_factory.mktemp("plain") / "model.pth", random_weights(tiny))
    return load_model(path, device="cpu", dtype="float32")


def test_bits_depend_on_the_batch_in_general(plain: Model) -> None:
    """If not, nothing is shown by the test below."""
    logits = list[Tensor]()
    for rows in ([(0, (5,))], [(0, (5,)), *((i, (i,)) for i in range(1, 8))]):
        logits.append(plain.forward(batch_of(rows), Arena(plain.layout, 8, "cpu").views)[0])
    assert not torch.equal(*logits)


@pytest.mark.parametrize(
    ("name", "seed", "n_threads"),
    [("bundled", 1, 1), ("plain", 2, 1), ("bundled", 3, 2), ("plain", 4, 2)],
)
def test_bits_do_not_depend_on_the_batch(
    request: pytest.FixtureRequest, name: str, seed: int, n_threads: int
) -> None:
    model: Model = request.getfixturevalue(name)
    rng = random.Random(seed)
    # Threads wait for one another by spinning, which takes long where cores are few.
    n_requests = 12 if n_threads == 1 else 8
    asked = [
        (prompt, replace(KINDS[i % len(KINDS)], seed=i))
        for i, prompt in enumerate(prompts(n_requests, seed=seed, longest=300))
    ]
    with threads(n_threads):
        config = EngineConfig(
            n_slots=rng.randint(3, 8),
            max_num_batched_tokens=rng.choice([1, 100, 256, 2048]),
            deterministic=True,
            n_threads=n_threads,
        )
        crowd, of_crowd = driver(model, config)
        waiting, submitted = list(asked), dict[int, tuple[tuple[int, ...], SamplingParams]]()
        while waiting or not crowd.is_idle:
            for _ in range(min(rng.randrange(4), len(waiting))):
                one = waiting.pop(rng.randrange(len(waiting)))
                submitted[crowd.submit(*one)] = one
            crowd.step()
        for request_id, (prompt, params) in submitted.items():
            lonely, of_lonely = driver(model, replace(config, n_slots=1))
            outcome = lonely.run(prompt, params)
            (bits,) = of_lonely.bits.values()
            in_crowd = seen(crowd.outcomes[request_id], of_crowd.bits[request_id])
            assert in_crowd == seen(outcome, bits)
            assert len(outcome.ids) == BASE.max_tokens
            assert max(bits) == len(prompt) + BASE.max_tokens - 1


def test_the_ids_are_the_oracles() -> None:
    made = Driver(FakeModel(), EngineConfig(deterministic=True, poison_freed_slots=True))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    asked = {made.submit(tuple(range(n)), params): n for n in (1, 60, 64)}
    made.finish()
    for request_id, n in asked.items():
        assert made.outcomes[request_id].ids == fake_continuation(tuple(range(n)), 9)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("position", [0, 128])
def test_pieces_are_a_row_cut_at_multiples_of_64(n: int, position: int) -> None:
    params = SamplingParams(prompt_logprobs=0)
    row = prompt_row(0, tuple(range(n)), params)
    row = row._replace(position=position, fresh=position == 0, next_id=7, banned_ids=(3,))
    cut = list(pieces(row))
    assert [piece.position for piece in cut] == list(range(position, position + n, 64))
    assert sum((piece.ids for piece in cut), ()) == row.ids
    assert [piece.fresh for piece in cut] == [row.fresh] + [False] * (len(cut) - 1)
    assert [piece.samples for piece in cut] == [False] * (len(cut) - 1) + [True]
    assert [piece.next_id for piece in cut] == [*(piece.ids[0] for piece in cut[1:]), 7]
    assert [piece.banned_ids for piece in cut] == [()] * (len(cut) - 1) + [(3,)]


def test_a_row_that_is_not_finite_ends_its_own_request_at_once() -> None:
    model = FakeModel()
    arena = Arena(model.layout, 3, "cpu")
    runner = Runner(model, arena, poison_freed=True, deterministic=True)
    params = SamplingParams(temperature=0, prompt_logprobs=0)
    good, bad = prompt_row(0, (1, 2), params), prompt_row(1, (5,) * 200, params)
    runner.run(StepPlan((good, bad)))
    n_before = model.n_forwards
    arena.poison([1])
    result = runner.run(
        StepPlan((bad._replace(fresh=False), good._replace(request_id=9, slot=2))),
    )
    assert result.not_finite == {0}
    assert list(result.token_ids) == [None, *fake_continuation((1, 2), 1)]
    assert set(result.prompt_logprobs) == {1}
    assert model.n_forwards == n_before + 2
