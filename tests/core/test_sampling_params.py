import math
from typing import Any

import pytest

from wkvm.core.errors import InvalidParameterError, TokenOutOfRangeError
from wkvm.core.sampling import (
    MAX_BIASED_IDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_IDS,
    MAX_TOKENS,
    SamplingParams,
)

TINY = math.ulp(0.0)


def above(value: float) -> float:
    return math.nextafter(value, math.inf)


def below(value: float) -> float:
    return math.nextafter(value, -math.inf)


NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (TINY, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (TINY, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "penalty_decay": (TINY, 1.0),
}
"""By field: the lowest and the highest number that is allowed."""

INTEGERS: dict[str, tuple[int, int]] = {
    "top_k": (0, 2**31 - 1),
    "min_tokens": (0, 256),  # the default of max_tokens
    "max_tokens": (0, MAX_TOKENS),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "seed": (0, MAX_SEED),
    "n": (1, MAX_N),
}


def make(field: str, value: object) -> SamplingParams:
    values: dict[str, Any] = {field: value}
    return SamplingParams(**values)


def refused(field: str, value: object) -> bool:
    """Whether the value is refused, which must be by the name of its field."""
    try:
        make(field, value)
    except InvalidParameterError as error:
        return error.field == field and field in str(error)
    return False


def test_every_field_is_in_a_table_here() -> None:
    others = {"logit_bias", "allowed_ids", "stop_ids", "ignore_eos", "pooling"}
    assert set(SamplingParams.__dataclass_fields__) == {*NUMBERS, *INTEGERS, *others}


@pytest.mark.parametrize(("field", "limits"), NUMBERS.items())
def test_numbers_are_allowed_up_to_their_limits_and_no_further(
    field: str, limits: tuple[float, float]
) -> None:
    low, high = limits
    assert not refused(field, low)
    assert not refused(field, above(low))
    assert refused(field, below(low))
    assert not refused(field, high)
    assert not refused(field, below(high))
    assert refused(field, above(high))
    assert not refused(field, 1)
    assert refused(field, 101)
    assert refused(field, -101)


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, True, False, "1", None, 10**400, 1 + 0j]
)
def test_what_is_no_finite_number_is_refused(field: str, value: object) -> None:
    assert refused(field, value)


@pytest.mark.parametrize(("field", "limits"), INTEGERS.items())
def test_integers_are_allowed_up_to_their_limits_and_no_further(
    field: str, limits: tuple[int, int]
) -> None:
    low, high = limits
    assert not refused(field, low)
    assert not refused(field, low + 1)
    assert refused(field, low - 1)
    assert not refused(field, high)
    assert not refused(field, high - 1)
    assert refused(field, high + 1)


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [True, False, 1.0, math.nan, math.inf, "1"])
def test_what_is_no_integer_is_refused(field: str, value: object) -> None:
    assert refused(field, value)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs", "seed"])
def test_what_is_optional_may_be_none(field: str) -> None:
    assert not refused(field, None)


def test_min_tokens_may_reach_max_tokens_and_no_further() -> None:
    SamplingParams(min_tokens=5, max_tokens=5)
    with pytest.raises(InvalidParameterError, match="min_tokens: 6 exceeds"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize(
    ("field", "limit", "entry"),
    [("logit_bias", MAX_BIASED_IDS, (1, 0.5)), ("stop_ids", MAX_STOP_IDS, 1)],
)
def test_lists_are_allowed_up_to_their_limits(field: str, limit: int, entry: object) -> None:
    assert not refused(field, (entry,) * (limit - 1))
    assert not refused(field, (entry,) * limit)
    assert refused(field, (entry,) * (limit + 1))


@pytest.mark.parametrize("bias", [above(100.0), below(-100.0), math.nan, math.inf, True])
def test_biases_have_the_limits_of_a_penalty(bias: float) -> None:
    assert not refused("logit_bias", ((1, 100.0), (2, -100.0)))
    assert refused("logit_bias", ((1, 0.0), (2, bias)))


def test_an_empty_list_of_allowed_ids_is_refused() -> None:
    assert refused("allowed_ids", ())
    assert not refused("allowed_ids", (1,))
    assert not refused("allowed_ids", None)


def with_id(field: str, token_id: int) -> SamplingParams:
    return make(field, ((5, 0.0), (token_id, 0.0)) if field == "logit_bias" else (5, token_id))


ID_FIELDS = ["logit_bias", "allowed_ids", "stop_ids"]


@pytest.mark.parametrize("field", ID_FIELDS)
def test_ids_are_allowed_from_zero_to_below_the_vocabulary(field: str) -> None:
    with_id(field, 0).check_ids(100)
    with_id(field, 99).check_ids(100)


@pytest.mark.parametrize("field", ID_FIELDS)
@pytest.mark.parametrize("token_id", [-1, 100, 2**31, 2**63 - 1])
def test_ids_out_of_the_vocabulary_are_named(field: str, token_id: int) -> None:
    with pytest.raises(TokenOutOfRangeError) as caught:
        with_id(field, token_id).check_ids(100)
    assert (caught.value.field, caught.value.token_id) == (field, token_id)


@pytest.mark.parametrize("field", ID_FIELDS)
@pytest.mark.parametrize("token_id", [True, 1.0, math.nan, "1"])
def test_ids_that_are_no_integers_are_refused(field: str, token_id: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        with_id(field, token_id).check_ids(100)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("repetition_penalty", 1.1), ("presence_penalty", 0.1), ("frequency_penalty", -0.1)],
)
def test_each_penalty_counts_as_one(field: str, value: float) -> None:
    assert make(field, value).has_penalties
    assert not SamplingParams(penalty_decay=0.5).has_penalties
