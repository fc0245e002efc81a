"""Frequencies of rotary positions are those of transformers, and what is not run is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.rope_config import read_rope
from wkvm.models.weights import Checkpoint

YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
YARN_OF_256 = YARN | {"original_max_position_embeddings": 256}

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "a part": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10.0,
            "partial_rotary_factor": 0.4,
        }
    },
    "as before": {"rope_theta": 5e4, "partial_rotary_factor": 0.3, "rope_scaling": None},
    "linear, as before": {"rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 300.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
    "yarn": {"rope_parameters": YARN_OF_256},
    "yarn, all set": {
        "rope_parameters": YARN
        | {
            "original_max_position_embeddings": 1000,
            "beta_fast": 20,
            "beta_slow": 2,
            "truncate": False,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
        }
    },
    "yarn, a low base": {
        "rope_parameters": YARN | {"rope_theta": 10.0, "original_max_position_embeddings": 800}
    },
    "yarn, its scaling known": {
        "rope_parameters": YARN
        | {"original_max_position_embeddings": 64, "attention_factor": 1.3, "factor": 40.0}
    },
}

EXPECTED: dict[str, tuple[list[float], float]] = {
    "default": (
        [
            1,
            0.2511886,
            0.06309573,
            0.01584893,
            0.003981072,
            0.001,
            0.0002511886,
            6.309574e-05,
            1.584893e-05,
            3.981073e-06,
        ],
        1,
    ),
    "a part": ([1, 0.5623413, 0.3162278, 0.1778279], 1),
    "as before": ([1, 0.02714418, 0.0007368063], 1),
    "linear, as before": (
        [
            0.3333333,
            0.1129748,
            0.03828994,
            0.0129774,
            0.004398359,
            0.001490712,
            0.0005052387,
            0.0001712379,
            5.803669e-05,
            1.967007e-05,
        ],
        1,
    ),
    "llama3": (
        [
            1,
            0.5653116,
            0.3195772,
            0.1806607,
            0.1021296,
            0.05773502,
            0.0198784,
            0.00501596,
            0.001303806,
            0.0007370568,
        ],
        1,
    ),
    "yarn": (
        [
            1,
            0.4700142,
            0.216405,
            0.09686993,
            0.04162766,
            0.01677051,
            0.006005622,
            0.003225975,
            0.001732862,
            0.0009308229,
        ],
        1.1386294,
    ),
    "yarn, all set": (
        [
            1,
            0.5371591,
            0.28854,
            0.1549919,
            0.07209092,
            0.02967168,
            0.01107571,
            0.00333738,
            0.001732862,
            0.0009308229,
        ],
        1.0394038,
    ),
    "yarn, a low base": (
        [
            1,
            0.7943282,
            0.6309573,
            0.5011872,
            0.3981072,
            0.3162278,
            0.2377321,
            0.1781484,
            0.1330178,
            0.09891558,
        ],
        1.1386294,
    ),
    "yarn, its scaling known": (
        [
            1,
            0.4062266,
            0.1478767,
            0.04165407,
            0.002081383,
            0.001118034,
            0.0006005621,
            0.0003225975,
            0.0001732862,
            9.308229e-05,
        ],
        1.3,
    ),
}
"""What transformers 5.24 makes of these, for heads of 20 and 4,096 positions: frequencies, and
what is turned is multiplied by."""


def checkpoint(config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(Path("a folder"), config, {}, (), {})


@pytest.mark.parametrize("name", CONFIGS)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    config = {"max_position_embeddings": 4096} | CONFIGS[name]
    rotary = read_rope(checkpoint(config), config, 20).on("cpu")
    frequencies, scaling = EXPECTED[name]
    torch.testing.assert_close(rotary.frequencies, torch.tensor(frequencies), rtol=2e-6, atol=0)
    assert rotary.scaling == pytest.approx(scaling, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "longrope"}, "'longrope'"),
        ({"rope_type": "default", "stretch": 2.0}, "stretch"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "beta_fast"),
    ],
)
def test_what_would_change_frequencies_is_refused(parameters: dict[str, Any], says: str) -> None:
    config = {"rope_parameters": parameters}
    with pytest.raises(UnsupportedModelError, match=says):
        read_rope(checkpoint(config), config, 64)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"rope_parameters": {"rope_type": "linear"}}, "factor None"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position"),
        ({"rope_theta": "high"}, "rope_theta 'high'"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5"),
        ({"partial_rotary_factor": 0.05}, "3 elements"),
        ({"rope_parameters": [1]}, r"\[1\]"),
        ({"rope_theta": 1e-300}, "rope_theta 1e-300"),
        ({"rope_parameters": YARN_OF_256 | {"factor": 10**400}}, "factor 1000"),
        ({"rope_parameters": YARN_OF_256 | {"rope_theta": 1.0}}, "rope_theta 1.0"),
        ({"rope_parameters": YARN_OF_256 | {"attention_factor": "x"}}, "attention_factor 'x'"),
        ({"rope_parameters": YARN_OF_256 | {"beta_fast": -1}}, "beta_fast -1"),
        ({"rope_parameters": YARN_OF_256 | {"beta_slow": float("nan")}}, "beta_slow nan"),
        ({"rope_parameters": YARN_OF_256 | {"mscale": [1]}}, r"mscale \[1\]"),
        ({"rope_parameters": YARN_OF_256 | {"truncate": "no"}}, "truncate 'no'"),
        (
            {
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0},
                "max_position_embeddings": 0,
            },
            "factor None",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=says):
        read_rope(checkpoint(config), config, 64)
