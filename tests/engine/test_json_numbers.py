"""Numbers come to an end, however much a model likes a digit."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.grammar_rig import BYTES, Rig, schema
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.json_numbers import MAX_NUMBER, NumberIds, Numbers

IDS = NumberIds(BYTES)


@pytest.mark.parametrize("digit", "0123456789.e-")
@pytest.mark.parametrize(
    "limits",
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.2},
        {"type": "integer", "multipleOf": 7},
        {"type": "integer", "multipleOf": 10},
    ],
    ids=str,
)
def test_a_number_ends_though_the_model_wants_one_digit_alone(
    digit: str, limits: dict[str, object]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, logit_bias=((ord(digit), 100.0),))
    wanted = {
        "type": "object",
        "properties": {"a": limits, "b": {"type": "array", "items": limits, "maxItems": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    rig = Rig()
    (outcome,) = rig.ask(schema(wanted), params)
    rig.finish()
    assert outcome.status is Status.STOPPED
    assert isinstance(json.loads(bytes(outcome.ids))["a"], int | float)


def test_a_number_that_is_all_of_the_text_ends_too() -> None:
    params = SamplingParams(temperature=0, max_tokens=200, logit_bias=((ord("7"), 100.0),))
    rig = Rig()
    (outcome,) = rig.ask(schema({"type": "number"}), params)
    rig.finish()
    assert outcome.status is Status.STOPPED
    assert bytes(outcome.ids) == b"7" * MAX_NUMBER


def test_digits_within_a_string_are_no_number() -> None:
    params = SamplingParams(temperature=0, max_tokens=300, logit_bias=((ord("7"), 100.0),))
    rig = Rig()
    (outcome,) = rig.ask(schema({"type": "string", "maxLength": 100}), params)
    rig.finish()
    assert bytes(outcome.ids) == b'"%b"' % (b"7" * 100)


@given(st.recursive(st.text(max_size=50) | st.integers() | st.floats(allow_nan=False), st.lists))
def test_text_is_told_from_numbers(value: object) -> None:
    numbers = Numbers(IDS)
    text = json.dumps([value, "1" * 60, "\\" * 3 + '"' + "2" * 60]).encode()
    everything = b"\xff" * 32
    for byte in text:
        numbers.advance(byte)
        kept = numbers.limit(everything, may_end=False, after=lambda _: (b"", False))
        assert kept == everything


def test_a_vocabulary_tells_which_ids_go_on_with_a_number() -> None:
    ids = NumberIds([b"", b"1", b"23", b"4,", b",5", b"e", b"7"])
    assert ids.any_digit == 0b1101110
    assert ids.digits == [1, 6]
