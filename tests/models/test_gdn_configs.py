"""What is made of the configurations of models with Gated DeltaNet."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from wkvm.core.layout import DEFAULT_STATE, GuestSpec
from wkvm.models.blueprint import Blueprint
from wkvm.models.registry import blueprint_of, describe
from wkvm.models.weights import Checkpoint

NO_POSITIONS = {"rope_parameters": {"rope_theta": None}}


def _blueprint(config: dict[str, Any]) -> Blueprint:
    checkpoint = Checkpoint(Path("folder"), config, {}, (), {})
    return blueprint_of(checkpoint, config["model_type"])


@pytest.mark.parametrize(
    ("config", "n_parameters", "state", "guest"),
    [
        ({"model_type": "qwen3_next"}, 79_674_391_296, (36, 32, 128, 128), (12, 2, 2, 256)),
        ({"model_type": "qwen3_5_text"}, 8_953_803_264, (24, 32, 128, 128), (8, 2, 4, 256)),
        ({"model_type": "qwen3_5_moe_text"}, 34_660_610_688, (30, 32, 128, 128), (10, 2, 2, 256)),
        (
            {"model_type": "olmo_hybrid", **NO_POSITIONS},
            7_430_870_688,
            (24, 30, 96, 192),
            (8, 2, 30, 128),
        ),
    ],
)
def test_a_field_that_is_left_out_is_what_transformers_takes_it_for(
    config: dict[str, Any],
    n_parameters: int,
    state: tuple[int, ...],
    guest: tuple[int, int, int, int],
) -> None:
    """The numbers are those of transformers' classes with their default configurations."""
    blueprint = _blueprint(config)
    assert sum(map(prod, blueprint.weights.values())) == n_parameters
    layout = blueprint.layout("bfloat16", DEFAULT_STATE)
    assert layout.tensors[0].shape == state
    assert layout.guest == GuestSpec(*guest, dtype="bfloat16")


def test_fla_makes_feed_forward_layers_multiples_of_256() -> None:
    weights = _blueprint({"model_type": "gated_deltanet"}).weights
    assert weights["model.layers.0.mlp.down_proj.weight"] == (2048, 5632)


def test_ids_that_end_a_turn_may_stand_in_the_text_part_of_a_config(tmp_path: Path) -> None:
    text = {
        "vocab_size": 9,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "eos_token_id": 7,
    }
    config = {"model_type": "qwen3_5", "text_config": text}
    weights = _blueprint(config).weights
    save_file(
        {name: torch.zeros(shape) for name, shape in weights.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert describe(tmp_path, device="cpu").eos_ids == (7,)
