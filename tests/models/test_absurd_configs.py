"""A config.json that no model has is refused by name, before memory is taken for what it says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from wkvm_bench.random_weights import blueprint, write_folder

from tests.models.oracles.architectures import ARCHITECTURES
from tests.models.oracles.case import Architecture
from wkvm.core.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpointError,
    UnsupportedModelError,
)
from wkvm.core.layout import DEFAULT_STATE
from wkvm.models.config_file import MAX_LAYERS, MAX_SHOWN
from wkvm.models.registry import describe

MAMBA, FALCON, KIMI = ("Mamba2", "FalconH1", "KimiLinear")
NOT_FINITE = {"__float__": "NaN"}


def config_of(name: str) -> dict[str, Any]:
    architecture = next(one for one in ARCHITECTURES if one.name == name)
    return {"model_type": architecture.model_type, **architecture.cases[0].config}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda one: one.name)
@pytest.mark.parametrize("n_layers", [MAX_LAYERS + 1, 10**9, 2**64])
def test_more_layers_than_any_model_has_are_refused(
    architecture: Architecture, n_layers: int
) -> None:
    config = config_of(architecture.name) | {"num_hidden_layers": n_layers}
    with pytest.raises(CorruptCheckpointError):
        blueprint(config)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Qwen3Next", "num_experts"),
        ("Qwen3_5Moe", "num_experts"),
        ("GraniteMoeHybrid", "num_local_experts"),
        ("NemotronH", "n_routed_experts"),
        ("KimiLinear", "num_experts"),
    ],
)
def test_more_experts_than_any_model_has_are_refused(name: str, field: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="experts"):
        blueprint(config_of(name) | {field: 10**9})


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        (MAMBA, {"layer_norm_epsilon": -1.0}, "layer_norm_epsilon"),
        (MAMBA, {"layer_norm_epsilon": NOT_FINITE}, "NaN"),
        (MAMBA, {"expand": {"__float__": "x"}}, "float"),
        (MAMBA, {"expand": {"__float__": None}}, "float"),
        (FALCON, {"key_multiplier": float("inf")}, "key_multiplier"),
        (FALCON, {"key_multiplier": 1e300}, "key_multiplier"),
        (FALCON, {"mlp_multipliers": [1.0, float("inf")]}, "mlp_multipliers"),
        (FALCON, {"mamba_d_state": 10**30}, "mamba_d_state"),
        (FALCON, {"mamba_d_state": -1, "ssm_multipliers": [1.0] * 5}, "mamba state"),
        (FALCON, {"rope_parameters": {"rope_theta": 10**400}}, "rope_theta"),
        (FALCON, {"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta"),
        (FALCON, {"rope_parameters": {"rope_type": []}}, "rope_type"),
        (KIMI, {"layer_types": ["full_attention"] * 10_000}, "layer_types"),
        (KIMI, {"num_nextn_predict_layers": 10**9}, "1000000000 layers"),
        (FALCON, {"mamba_d_head": "x" * 1000}, "mamba_d_head"),
        ("NemotronH", {"mlp_hidden_act": "x" * 1000}, "mlp_hidden_act"),
        ("NemotronH", {"layers_block_type": ["x" * 1000] * 4}, "of kind"),
    ],
)
def test_a_number_that_no_model_has_is_refused_by_its_name(
    name: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        blueprint(config_of(name) | changes)
    assert len(str(caught.value)) < 2 * MAX_SHOWN + 200


def test_multipliers_of_a_state_too_large_to_be_made_take_no_memory() -> None:
    config = config_of(FALCON) | {"mamba_d_state": 2**30, "ssm_multipliers": [1.0] * 5}
    assert blueprint(config).sizes.n_layers == config["num_hidden_layers"]


@pytest.mark.parametrize("pattern", ["-", "E", "-E-"])
def test_layers_none_of_which_remembers_anything_are_no_model(pattern: str) -> None:
    config = config_of("NemotronH") | {"hybrid_override_pattern": pattern}
    with pytest.raises(UnsupportedModelError, match="remembers"):
        blueprint(config)


def test_pages_that_would_not_end_where_memory_is_aligned_are_refused_by_the_dtype() -> None:
    model = blueprint(config_of(KIMI) | {"kv_lora_rank": 13})
    assert model.layout("float32", DEFAULT_STATE).guest is not None
    with pytest.raises(ConfigError, match=r"bfloat16: 19 numbers .* float32 runs"):
        model.layout("bfloat16", DEFAULT_STATE)


def test_a_long_value_is_cut_off_in_the_message() -> None:
    config = config_of(FALCON) | {"hidden_act": "silu" * 1000}
    with pytest.raises(UnsupportedModelError, match="hidden_act") as caught:
        blueprint(config)
    assert len(str(caught.value)) < MAX_SHOWN + 200


def test_a_file_that_is_nested_deep_is_refused_before_anybody_goes_down_there(
    tmp_path: Path,
) -> None:
    folder, config = tmp_path / "model", config_of(MAMBA)
    write_folder(folder, config, dtype=torch.float32, device="cpu")
    nested = "[" * 500 + "]" * 500
    text = json.dumps(config | {"unknown": 0}).replace('"unknown": 0', f'"unknown": {nested}')
    (folder / "config.json").write_text(text, "utf-8")
    with pytest.raises(CorruptCheckpointError, match="nested"):
        describe(folder, device="cpu")
