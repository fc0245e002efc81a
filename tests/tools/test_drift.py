"""The ways to a log probability, on a CPU and short texts; a GPU has a job of its own for it."""

import json
from collections.abc import Iterator

import pytest
import torch

from tools.drift import long, paths
from wkvm.core.layout import StateOptions

NATS = 1e-4
"""Float32 on texts of the bundled model: one unit in the last place of a logit is 2e-6."""


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_decode_prompts_and_trainer_agree_with_float64_up_to_rounding() -> None:
    findings = list(paths("cpu", ("float32",), 2, 70))
    ways = ("decode", "chunked", "trainer", "float64")
    assert [one["drift"] for one in findings] == [
        f"{a} against {b}" for at, a in enumerate(ways) for b in ways[at + 1 :]
    ]
    for one in findings:
        assert one["nats"]["n"] == 2 * 69
        assert one["nats"]["max"] < NATS, one
    json.dumps(findings)


def test_many_steps_drift_no_further_than_few() -> None:
    (finding,) = long("cpu", [("float32", StateOptions())], 1, 150)
    assert finding["nats"]["max"] < NATS
    assert len(finding["mean_by_tenth"]) == 10
    assert max(finding["max_by_tenth"][5:]) < NATS
