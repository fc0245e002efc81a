"""On a GPU: prompts that go on from what is kept of others, masks of grammars, and embeddings."""

import json
from collections.abc import Callable
from functools import cache

import pytest
import torch
from wkvm_bench.random_weights import random_decoder

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Driver, Outcome, greedy
from tests.engine.fake_gpu import AheadDriver
from tests.engine.families import CONFIGS, decoder_of, prompt_of
from tests.engine.grammar_rig import BYTES
from tests.engine.test_embeddings import embed, numbers
from tests.engine.test_prefixes import TIERS, config
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import Pooling, SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.models.base import Model
from wkvm.models.registry import load_model

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-3
"""Of log probabilities and embeddings of small models in float32."""


@cache
def model_of(name: str) -> Model:
    if name == "rwkv7":
        return load_model(BUNDLED, device="cuda", dtype="float32")
    return random_decoder(CONFIGS[name], device="cuda", dtype=torch.float32, drawn_on="cpu")


@cache
def deterministic() -> Model:
    return load_model(BUNDLED, device="cuda", dtype="float32", deterministic=True)


@pytest.fixture(params=["rwkv7", *CONFIGS])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def driver_of(model: Model, **settings: object) -> AheadDriver:
    return AheadDriver(Engine(model, config(n_slots=20, **settings)))


def warm_and_cold(
    model: Model,
    tier: dict[str, object],
    check: Callable[[Outcome, Outcome], None],
    **settings: object,
) -> None:
    """Texts that share ``n`` ids with one that is over, against an engine that keeps nothing."""
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    cold = driver_of(model, **settings, prefix_cache_bytes=0)
    warm = driver_of(model, **settings, **tier)
    for seed, n in enumerate((64, 65, 127, 129, 191)):
        stem, other = prompt_of(n, seed), prompt_of(80, seed=50 + seed)
        warm.run_spec(RequestSpec(prompt=stem + other, params=greedy(1), borders=(n,)))
        prompt = stem + prompt_of(9, seed=100 + seed)
        got, expected = warm.run(prompt, params), cold.run(prompt, params)
        assert got.reused == n // 64 * 64
        check(got, expected)
    warm.land()
    stats = warm.engine.stats()
    kept = stats["n_prefixes_device"] if stats["n_free_slots"] < 20 else 0
    assert stats["n_free_slots"] + kept == stats["n_slots"]


def same(got: Outcome, expected: Outcome) -> None:
    assert got.ids == expected.ids
    assert got.logprobs == expected.logprobs


def close(got: Outcome, expected: Outcome) -> None:
    assert got.ids == expected.ids
    assert len(got.logprobs) == len(expected.logprobs)
    for one, other in zip(got.logprobs, expected.logprobs, strict=True):
        assert one is not None
        assert other is not None
        assert abs(one.logprob - other.logprob) < TOLERANCE


@TIERS
def test_in_deterministic_mode_a_prompt_that_was_reused_gives_the_same_bits(
    tier: dict[str, object],
) -> None:
    warm_and_cold(deterministic(), tier, same, deterministic=True)


@TIERS
def test_a_prompt_that_was_reused_gives_what_it_gives_when_it_is_computed(
    name: str, tier: dict[str, object]
) -> None:
    warm_and_cold(model_of(name), tier, close)


@TIERS
def test_choices_of_one_request_cost_one_prefill(tier: dict[str, object]) -> None:
    driver, whole = (
        driver_of(deterministic(), **one, deterministic=True)
        for one in (tier, {"prefix_cache_bytes": 0})
    )
    params = SamplingParams(n=8, seed=3, max_tokens=12, ignore_eos=True)
    said = list[list[list[int]]]()
    for one in (driver, whole):
        asked = one.begin(RequestSpec(prompt=prompt_of(300), params=params))
        one.finish()
        one.land()
        said.append([one.outcomes[choice].ids for choice in asked])
    assert said[0] == said[1]
    assert len(set(map(tuple, said[0]))) > 1
    assert driver.engine.stats()["prompt_tokens_total"] == 300 + 7 * 44


def test_answers_by_a_schema_parse_beside_others() -> None:
    model = model_of("rwkv7")
    words = [*BYTES, *(b"" for _ in range(model.info.vocab_size - len(BYTES)))]
    compiler = GrammarCompiler(words, vocab_size=model.info.vocab_size)
    driver = AheadDriver(Engine(model, config(n_slots=20), grammars=compiler))
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    grammar = Grammar("json_schema", json.dumps(schema))
    held = [
        RequestSpec(prompt=prompt_of(70, seed), params=SamplingParams(seed=seed), grammar=grammar)
        for seed in range(8)
    ]
    free = RequestSpec(prompt=prompt_of(70), params=greedy(30))
    alone = driver.run_spec(free).ids
    asked = [driver.begin(one)[0] for one in (*held, free)]
    driver.finish()
    for one in asked[:-1]:
        text = b"".join(words[token_id] for token_id in driver.outcomes[one].ids)
        said = json.loads(text)
        assert said["a"] in ("x", "yy")
        assert isinstance(said["b"], bool)
    assert driver.outcomes[asked[-1]].ids == alone


@pytest.mark.parametrize("pooling", list(Pooling))
def test_embeddings_are_those_of_a_cpu(name: str, pooling: Pooling) -> None:
    exact = load_model(BUNDLED, device="cpu", dtype="float32")
    cpu = Driver(exact if name == "rwkv7" else decoder_of(name), config())
    gpu = driver_of(model_of(name))
    for n in (1, 65, 300):
        there, here = (numbers(embed(one, prompt_of(n, n), pooling)) for one in (gpu, cpu))
        assert (there - here).abs().max() < TOLERANCE * max(1.0, float(here.abs().max()))
