"""What embeddings are made of, for a small random model of every architecture."""

import struct
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Driver, greedy
from tests.engine.fake_gpu import AheadDriver, SteppingModel, fake_gpu_runner
from tests.engine.families import CONFIGS, config_of, decoder_of, prompt_of
from tests.fakes import FakeModel, absorb, hidden_of
from wkvm.core.config import EngineConfig
from wkvm.core.errors import InvalidParameterError, NonFiniteError
from wkvm.core.request import Status
from wkvm.core.sampling import Pooling, SamplingParams
from wkvm.engine.engine import Engine, runner_of
from wkvm.engine.interface import RunnerLike
from wkvm.models.base import Model
from wkvm.models.decoder import Decoder
from wkvm.models.registry import load_model
from wkvm.server.embeddings import EmbeddingSum
from wkvm.state.arena import Arena

TOLERANCE = 2e-4


def wanting(pooling: Pooling) -> SamplingParams:
    return SamplingParams(max_tokens=0, pooling=pooling)


def vector_of(driver: Driver, request_id: int, pooling: Pooling, n_ids: int) -> bytes:
    total = EmbeddingSum(pooling, n_ids)
    for values in driver.outcomes[request_id].pooled:
        total.add(values)
    message = total.message(0)
    assert message is not None
    return message.vector


def embed(driver: Driver, ids: tuple[int, ...], pooling: Pooling) -> bytes:
    request_id = driver.submit(ids, wanting(pooling))
    driver.finish()
    return vector_of(driver, request_id, pooling, len(ids))


def numbers(vector: bytes) -> torch.Tensor:
    return torch.tensor(struct.unpack(f"<{len(vector) // 4}f", vector))


@cache
def rwkv7() -> Model:
    torch.set_num_threads(1)
    return load_model(BUNDLED, device="cpu", dtype="float32")


@pytest.fixture(params=["rwkv7", *CONFIGS])
def model(request: pytest.FixtureRequest) -> Model:
    return rwkv7() if request.param == "rwkv7" else decoder_of(request.param)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_text_has_the_vector_that_it_has_alone(model: Model, pooling: Pooling) -> None:
    texts = [prompt_of(n, n) for n in (1, 5, 64, 65, 130, 200)]
    alone = Driver(model, config_of(model, n_slots=1))  # type: ignore[arg-type]
    expected = [numbers(embed(alone, ids, pooling)) for ids in texts]
    settings = {"n_slots": 4, "max_num_batched_tokens": 96}
    driver = Driver(model, config_of(model, **settings))  # type: ignore[arg-type]
    driver.submit(prompt_of(70), greedy(20))
    asked = [driver.submit(ids, wanting(pooling)) for ids in texts]
    driver.finish()
    for request_id, ids, vector in zip(asked, texts, expected, strict=True):
        got = numbers(vector_of(driver, request_id, pooling, len(ids)))
        assert got.shape == vector.shape
        assert (got - vector).abs().max() < TOLERANCE
        assert driver.outcomes[request_id].ids == []


@pytest.mark.parametrize("pooling", list(Pooling))
def test_of_a_deterministic_engine_it_is_the_same_to_the_bit(
    model: Model, pooling: Pooling
) -> None:
    texts = [prompt_of(n, n) for n in (5, 130, 200)]
    alone = Driver(model, config_of(model, n_slots=1, deterministic=True))  # type: ignore[arg-type]
    expected = [embed(alone, ids, pooling) for ids in texts]
    settings = {"n_slots": 4, "max_num_batched_tokens": 96, "deterministic": True}
    driver = Driver(model, config_of(model, **settings))  # type: ignore[arg-type]
    driver.submit(prompt_of(70), greedy(8))
    asked = [driver.submit(ids, wanting(pooling)) for ids in texts]
    driver.finish()
    for request_id, ids, vector in zip(asked, texts, expected, strict=True):
        assert vector_of(driver, request_id, pooling, len(ids)) == vector


def test_the_last_hidden_state_is_what_the_head_is_given(model: Model) -> None:
    """Through the head it gives the log probabilities that the model tells."""
    ids = prompt_of(100)
    driver = Driver(model, config_of(model, n_slots=1))  # type: ignore[arg-type]
    hidden = numbers(embed(driver, ids, Pooling.LAST))[None]
    if isinstance(model, Decoder):
        network = model._network
        logits = network.head(hidden, None)[0] * network.logit_scale
    else:
        logits = model._head(hidden)[0].float()  # type: ignore[attr-defined]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=5)
    (told,) = driver.run(ids, params).logprobs
    assert told is not None
    expected = torch.log_softmax(logits, dim=0)
    for top in told.top:
        assert top.logprob == pytest.approx(float(expected[top.token_id]), abs=1e-4)


def test_the_mean_is_that_of_all_prefixes() -> None:
    model, ids = rwkv7(), prompt_of(70)
    driver = Driver(model, EngineConfig(n_slots=4, n_threads=1))
    each = [numbers(embed(driver, ids[: n + 1], Pooling.LAST)) for n in range(len(ids))]
    mean = numbers(embed(driver, ids, Pooling.MEAN))
    assert (mean - torch.stack(each).mean(dim=0)).abs().max() < TOLERANCE


def test_of_a_state_it_is_the_matrices_averaged_over_their_keys() -> None:
    model, ids = rwkv7(), prompt_of(70)
    arenas = list[Arena]()

    def runner(model: Model, arena: Arena, config: EngineConfig) -> RunnerLike:
        arenas.append(arena)
        return runner_of(model, arena, config)

    driver = Driver(model, EngineConfig(n_slots=1, n_threads=1))
    driver.engine = Engine(model, EngineConfig(n_slots=1, n_threads=1), make_runner=runner)
    vector = numbers(embed(driver, ids, Pooling.STATE))
    # The only slot still has what was left in it.
    matrices = arenas[0].views["rwkv7.wkv"][0, -1]
    n_heads, n_keys, n_values = matrices.shape
    for head in range(n_heads):
        for value in range(n_values):
            expected = sum(float(matrices[head, key, value]) for key in range(n_keys)) / n_keys
            assert float(vector[head * n_values + value]) == pytest.approx(expected, abs=1e-5)


def test_steps_ahead_on_a_device_tell_the_same() -> None:
    ids, state, hidden = (3, 1, 4, 1, 5) * 30, 0, list[float]()
    for token_id in ids:
        state = absorb(state, token_id)
        hidden.append(hidden_of(state))
    config = EngineConfig(n_slots=4, max_num_batched_tokens=64)
    driver = AheadDriver(Engine(SteppingModel(), config, make_runner=fake_gpu_runner))  # type: ignore[arg-type]
    driver.submit((7, 7), greedy(9))
    asked = {
        pooling: driver.submit(ids, wanting(pooling)) for pooling in (Pooling.LAST, Pooling.MEAN)
    }
    driver.finish()
    driver.land()
    last = numbers(vector_of(driver, asked[Pooling.LAST], Pooling.LAST, len(ids)))
    mean = numbers(vector_of(driver, asked[Pooling.MEAN], Pooling.MEAN, len(ids)))
    assert last.tolist() == pytest.approx([hidden[-1]])
    assert mean.tolist() == pytest.approx([sum(hidden) / len(hidden)])


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])
def test_a_vector_that_is_not_finite_ends_its_own_request_alone(pooling: Pooling) -> None:
    class Broken(FakeModel):
        def forward(self, batch, states):  # type: ignore[no-untyped-def]
            hidden, last = batch.hidden, batch.token_ids.tolist()

            class Sink:
                def take(self, residual, norm, first=0):  # type: ignore[no-untyped-def]
                    stain = torch.tensor([[float("nan") if one == 9 else 0.0] for one in last])
                    hidden.take(residual + stain, norm, first)

            return super().forward(
                replace(batch, hidden=None if hidden is None else Sink()), states
            )

    driver = Driver(Broken(), EngineConfig(n_slots=4))
    bad = driver.submit((1, 2, 9), wanting(pooling))
    good = driver.submit((1, 2, 3), wanting(pooling))
    driver.finish()
    end = driver.outcomes[bad].end
    assert end is not None
    assert (end.status, type(end.error)) == (Status.FINISHED_ERROR, NonFiniteError)
    assert len(vector_of(driver, good, pooling, 3)) == 4


def test_a_model_without_matrices_has_no_embeddings_of_states() -> None:
    driver = Driver(FakeModel(), EngineConfig(n_slots=1))
    with pytest.raises(InvalidParameterError, match="pooling"):
        driver.submit((1,), wanting(Pooling.STATE))


def test_no_hidden_states_are_made_where_nobody_wants_any() -> None:
    seen = list[object]()
    model = FakeModel(before_forward=lambda batch: seen.append(batch.hidden))
    driver = Driver(model, EngineConfig(n_slots=2))
    driver.run((1, 2, 3), greedy(4))
    assert seen
    assert set(seen) == {None}
