from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from wkvm.core.config import MAX_SLOTS, EngineConfig
from wkvm.core.errors import ConfigError
from wkvm.core.layout import StateOptions


def make(field: str, value: object) -> EngineConfig:
    values: dict[str, Any] = {field: value}
    return EngineConfig(**values)


@pytest.mark.parametrize(
    ("field", "setting", "low"),
    [
        ("n_slots", "slots", 1),
        ("max_num_batched_tokens", "max-num-batched-tokens", 1),
        ("decode_prompt_tokens", "decode-prompt-tokens", 1),
        ("max_queue", "max-queue", 0),
        ("max_completed_requests", "max-completed-requests", 0),
        ("max_model_len", "max-model-len", 1),
        ("max_slots_per_tenant", "max-slots-per-tenant", 1),
        ("n_threads", "threads", 1),
        ("seed", "seed", 0),
    ],
)
def test_counts_start_at_their_lowest_value(field: str, setting: str, low: int) -> None:
    make(field, low)
    with pytest.raises(ConfigError) as caught:
        make(field, low - 1)
    assert caught.value.setting == setting
    assert setting in str(caught.value)


@pytest.mark.parametrize(
    ("field", "setting", "high"),
    [
        ("n_slots", "slots", MAX_SLOTS),
        ("n_threads", "threads", 1024),
        ("max_model_len", "max-model-len", 2**53),
        ("max_queued_tokens", "max-queued-tokens", 2**53),
        ("request_timeout_s", "request-timeout-s", 2**31),
    ],
)
def test_settings_end_at_their_highest_value(field: str, setting: str, high: int) -> None:
    make(field, high)
    with pytest.raises(ConfigError) as caught:
        make(field, high + 1)
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("field", "setting"),
    [("request_timeout_s", "request-timeout-s"), ("stall_timeout_s", "stall-timeout-s")],
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_times_are_positive_and_finite(field: str, setting: str, value: float) -> None:
    make(field, 0.001)
    with pytest.raises(ConfigError) as caught:
        make(field, value)
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("device", ["auto", "cpu", "cuda"]),
        ("dtype", ["auto", "float32", "bfloat16", "float16"]),
    ],
)
def test_choices_are_those_of_the_list(field: str, allowed: list[str]) -> None:
    for value in allowed:
        make(field, value)
    with pytest.raises(ConfigError) as caught:
        make(field, "tpu")
    assert caught.value.setting == field


def test_a_seed_is_below_two_to_the_64() -> None:
    make("seed", 2**64 - 1)
    with pytest.raises(ConfigError):
        make("seed", 2**64)


def test_a_config_cannot_be_changed() -> None:
    config = EngineConfig()
    with pytest.raises(FrozenInstanceError):
        config.n_slots = 3  # type: ignore[misc]


def test_states_are_float32_and_written_at_once_unless_asked_otherwise() -> None:
    assert EngineConfig().state == StateOptions("float32", deferred=False)
    config = EngineConfig(state_dtype="float16", deferred_writes=True)
    assert config.state == StateOptions("float16", deferred=True)
    with pytest.raises(ConfigError) as caught:
        EngineConfig(state_dtype="int8")
    assert caught.value.setting == "state-dtype"
