"""A text scored through both paths: whole, and id by id as if it were decoded."""

import math

import pytest
from wkvm_protocol.messages import Score, pack_ids

from tests.engine.fake_gpu import SteppingModel, fake_gpu_runner
from tests.fakes import FakeModel, fake_logits
from wkvm.core.config import EngineConfig
from wkvm.core.errors import InvalidParameterError
from wkvm.core.request import (
    EndEvent,
    Logprobs,
    PooledEvent,
    PromptLogprobsEvent,
    ReusedEvent,
    SavedEvent,
    Status,
    TokenEvent,
    by_request,
)
from wkvm.engine.engine import Engine
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.models.base import Batch, Model
from wkvm.server.scores import score_spec
from wkvm.state.arena import Arena

VOCAB = 64
TEXT = [7, 0, 3, 3, 61, 12, 0, 5]


def run(
    engine: Engine, path: str, ids: list[int] = TEXT, n_top: int = 2
) -> tuple[list[Logprobs], EndEvent]:
    """Score a text: its log probabilities and its end."""
    spec = score_spec(Score(1, pack_ids(ids), path, n_top), "local")
    (request_id,) = engine.submit(spec, 0.0)
    scores, end = list[Logprobs](), None
    while end is None:
        for event in by_request(engine.step(0.0)):
            if event.request_id != request_id:
                continue
            match event:
                case PromptLogprobsEvent():
                    scores += event.logprobs
                case TokenEvent():
                    assert event.logprobs is not None
                    scores.append(event.logprobs)
                case SavedEvent() | PooledEvent() | ReusedEvent():
                    raise AssertionError("nobody asked for it")
                case EndEvent():
                    end = event
    return scores, end


@pytest.mark.parametrize("path", ["chunked", "decode"])
def test_log_probabilities_are_those_of_the_model(path: str) -> None:
    # 0 ends a turn of this model, and is scored like any other id
    engine = Engine(FakeModel(VOCAB, eos_ids=(0,)), EngineConfig(n_slots=2))
    scores, end = run(engine, path)
    assert end.status is Status.LENGTH
    assert [one.token_id for one in scores] == TEXT[1:]
    for place, one in enumerate(scores, start=1):
        logits = fake_logits(TEXT[:place], VOCAB)
        norm = math.log(sum(math.exp(logit) for logit in logits))
        assert one.logprob == pytest.approx(logits[one.token_id] - norm, abs=1e-5)
        assert one.rank == 1 + sum(logit > logits[one.token_id] for logit in logits)
        best = sorted(range(VOCAB), key=lambda i: (-logits[i], i))
        assert [top.token_id for top in one.top] == best[:2]


def test_the_chunked_path_takes_many_ids_a_step_and_the_decode_path_one() -> None:
    lengths = list[tuple[int, ...]]()

    def note(batch: Batch) -> None:
        lengths.append(batch.lengths)

    model = FakeModel(VOCAB)
    model.before_forward = note
    engine = Engine(model, EngineConfig(n_slots=2))
    run(engine, "chunked")
    assert lengths == [(8,)]
    lengths.clear()
    run(engine, "decode")
    assert lengths == [(1,)] * 7


@pytest.mark.parametrize("path", ["chunked", "decode"])
def test_one_id_has_nothing_to_be_scored(path: str) -> None:
    engine = Engine(FakeModel(VOCAB), EngineConfig(n_slots=2))
    scores, end = run(engine, path, [5])
    assert scores == []
    assert end.status is Status.LENGTH


def test_the_paths_agree_on_the_bundled_model_up_to_rounding(bundled: Model) -> None:
    engine = Engine(bundled, EngineConfig(n_slots=2))
    ids = [i * 37 % 4000 + 2 for i in range(150)]
    chunked, _ = run(engine, "chunked", ids, n_top=0)
    decoded, _ = run(engine, "decode", ids, n_top=0)
    drift = [abs(a.logprob - b.logprob) for a, b in zip(chunked, decoded, strict=True)]
    assert len(drift) == 149
    assert max(drift) < 1e-3


def test_a_device_that_runs_ahead_scores_the_same() -> None:
    model = SteppingModel(VOCAB, eos_ids=(0,))
    config = EngineConfig(n_slots=2)

    def make(given: Model, arena: Arena, config: EngineConfig) -> GpuRunner:
        assert given is model
        return fake_gpu_runner(model, arena, config)

    engine = Engine(model, config, make_runner=make)
    on_cpu = Engine(FakeModel(VOCAB, eos_ids=(0,)), config)
    for path in ("chunked", "decode"):
        scores, _ = run(engine, path)
        expected, _ = run(on_cpu, path)
        assert scores == expected


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(InvalidParameterError, match="path: 'fast' is neither chunked nor decode"):
        score_spec(Score(1, pack_ids([1]), "fast"), "local")
    for path in ("chunked", "decode"):
        with pytest.raises(InvalidParameterError, match="n_top"):
            score_spec(Score(1, pack_ids([1, 2]), path, 21), "local")
