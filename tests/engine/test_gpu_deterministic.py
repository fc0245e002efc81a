"""Deterministic mode on a GPU: what comes of a request has the same bits, whoever else runs."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from wkvm_bench.random_model import Size, write_random

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Outcome
from tests.engine.fake_gpu import AheadDriver
from wkvm.core.config import EngineConfig
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.base import Model
from wkvm.models.registry import load_model

pytestmark = pytest.mark.gpu

N_REQUESTS = 90
BASE = SamplingParams(max_tokens=12, logprobs=2, ignore_eos=True)
KINDS = [
    replace(BASE, temperature=0),
    replace(BASE, temperature=0.9, top_p=0.8),
    replace(BASE, top_k=40, min_p=0.01, prompt_logprobs=1),
    replace(BASE, repetition_penalty=1.3, frequency_penalty=0.2, penalty_decay=0.97),
]


@pytest.fixture(scope="module", params=["bundled", "wide"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = BUNDLED
    if request.param == "wide":
        path = tmp_path_factory.mktemp("wide") / "model.pth"
        size = Size(2, 2048, 65_536, (96, 96, 64, 256))
        write_random(path, size, dtype=torch.bfloat16, device="cuda")
    return load_model(path, device="cuda", dtype="bfloat16", deterministic=True)


def requests(seed: int) -> list[tuple[tuple[int, ...], SamplingParams]]:
    rng = random.Random(seed)
    asked = list[tuple[tuple[int, ...], SamplingParams]]()
    for i in range(N_REQUESTS):
        length = rng.choice([1, 2, 63, 64, 65, 129, rng.randint(1, 700)])
        params = replace(rng.choice(KINDS), seed=i)
        asked.append((tuple(rng.choices(range(600), k=length)), params))
    return asked


def what_came(outcome: Outcome) -> object:
    return outcome.ids, outcome.logprobs, outcome.prompt_logprobs


def test_bits_do_not_depend_on_the_batch_the_bucket_or_the_cuts(model: Model) -> None:
    rng = random.Random(1)
    config = EngineConfig(deterministic=True, n_slots=80, max_num_batched_tokens=512)
    crowd = AheadDriver(Engine(model, config))
    waiting = requests(2)
    asked = dict[int, tuple[tuple[int, ...], SamplingParams]]()
    while waiting or not crowd.is_idle:
        # At first they come one by one, then all at once: batches are of all sizes.
        n_new = rng.randrange(2) if len(asked) < 20 else rng.choice([0, 0, 0, 30])
        for _ in range(min(n_new, len(waiting))):
            one = waiting.pop(rng.randrange(len(waiting)))
            asked[crowd.submit(*one)] = one
        crowd.step()
    crowd.land()
    alone = AheadDriver(Engine(model, replace(config, n_slots=1, max_num_batched_tokens=2048)))
    differ = list[str]()
    for request_id, (prompt, params) in asked.items():
        expected, came = alone.run(prompt, params), crowd.outcomes[request_id]
        if what_came(came) != what_came(expected):
            pairs = zip(came.logprobs, expected.logprobs, strict=False)
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            differ.append(f"prompt of {len(prompt)}, output from {first}: {params}")
    print(f"{len(differ)} of {len(asked)} differ")
    assert not differ
