"""A text scored on a GPU: through the kernels of prompts, and through captured decode steps."""

import pytest
import torch

from tests.engine.test_score import run
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.models.base import Model
from wkvm.models.registry import load_model

pytestmark = pytest.mark.gpu

IDS = [0, *(i * 37 % 4000 + 2 for i in range(149))]
NATS = {"float32": 1e-3, "bfloat16": 0.5}
"""Of ids at random, each of which is unlikely: rounding moves their logits most."""


def logprobs(engine: Engine, path: str) -> torch.Tensor:
    scores, _ = run(engine, path, IDS, n_top=0)
    assert [one.token_id for one in scores] == IDS[1:]
    return torch.tensor([one.logprob for one in scores])


@pytest.mark.parametrize("dtype", NATS)
def test_both_paths_give_the_log_probabilities_of_a_cpu(dtype: str, bundled: Model) -> None:
    from tests.engine.conftest import BUNDLED

    expected = logprobs(Engine(bundled, EngineConfig(n_slots=2)), "chunked")
    model = load_model(BUNDLED, device="cuda", dtype=dtype)
    engine = Engine(model, EngineConfig(n_slots=2, dtype=dtype))
    for path in ("chunked", "decode"):
        error = (logprobs(engine, path) - expected).abs()
        assert error.max() < NATS[dtype], path
