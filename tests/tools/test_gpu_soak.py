"""The worst requests run to their ends, on the fake model."""

from collections import Counter

from tests.fakes import FakeModel
from tools.gpu_soak import run, worst
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine


def test_the_worst_requests_all_end_by_their_length() -> None:
    engine = Engine(FakeModel(), EngineConfig(n_slots=5, max_queue=100))
    specs = [spec for spec in worst(64, 3) if len(spec.prompt) < 100]
    assert run(engine, specs) == Counter({"LENGTH": 6})


def test_every_kind_of_rule_is_among_them() -> None:
    params = [spec.params for spec in worst(64, 1)]
    assert any(one.has_penalties for one in params)
    assert any(one.logit_bias and one.allowed_ids for one in params)
    assert any(one.prompt_logprobs for one in params)
