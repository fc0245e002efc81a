"""The parameters as notebooks give them, against the engine's."""

import dataclasses

import pytest

from wkvm import SamplingParams
from wkvm.core.errors import InvalidParameterError
from wkvm.core.sampling import SamplingParams as EngineParams


def test_the_fields_are_the_engines_and_stop() -> None:
    ours = {field.name for field in dataclasses.fields(SamplingParams)}
    engines = {field.name for field in dataclasses.fields(EngineParams)} - {"pooling"}
    assert ours == engines | {"stop"}


def test_what_is_not_said_is_as_the_engine_has_it() -> None:
    assert EngineParams(**SamplingParams().keywords({})) == EngineParams()


def test_what_is_said_goes_before_what_is_suggested() -> None:
    suggested = {"temperature": 0.8, "top_p": 0.9}
    keywords = SamplingParams(top_p=0.5).keywords(suggested)
    assert (keywords["temperature"], keywords["top_p"]) == (0.8, 0.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("top_p", 0.0),
        ("max_tokens", -1),
        ("n", 0),
        ("logprobs", 21),
        ("seed", 2**64),
        ("logit_bias", {5: 101.0}),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [5]),
        ("stop", b"a"),
        *((name, None) for name in ("stop", "stop_ids", "min_tokens", "max_tokens", "ignore_eos")),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_at_once(field: str, value: object) -> None:
    with pytest.raises(InvalidParameterError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_one_stop_is_as_a_list_of_one() -> None:
    assert SamplingParams(stop="ab").stops == SamplingParams(stop=["ab"]).stops == ("ab",)
