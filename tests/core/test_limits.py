"""Facts about how much a store takes, and what it takes as tags and records."""

import math
from typing import Any

import pytest

from wkvm.core.errors import InvalidParameterError
from wkvm.core.limits import StoreLimits, check_provenance, check_tags
from wkvm.core.registry import Provenance

LIMITS = StoreLimits(tags_per_handle=2, tag_chars=8, provenance_bytes=300)


@pytest.mark.parametrize("parameters", [{"x": object()}, {"x": math.nan}, {"x": "y" * 300}])
def test_a_provenance_that_is_not_json_or_too_long_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        check_provenance(Provenance(operation="x", parameters=parameters), LIMITS)


@pytest.mark.parametrize("tags", [{"": "x"}, {"a": "x" * 9}, {"a\0": ""}, {"a": "\ud83d"}])
def test_tags_are_short_printable_text(tags: dict[str, str]) -> None:
    assert check_tags({"a": "8 chars!", "b": ""}, LIMITS) == {"a": "8 chars!", "b": ""}
    with pytest.raises(InvalidParameterError):
        check_tags(tags, LIMITS)
    with pytest.raises(InvalidParameterError):
        check_tags({"a": "", "b": "", "c": ""}, LIMITS)


@pytest.mark.parametrize(
    "change",
    [
        {"disk_reserve": 1.0},
        {"handles_per_tenant": 0},
        {"host_bytes": -1},
        {"forks_at_once": 1.5},
        {"disk_reserve": math.nan},
        {"bytes_per_tenant": True},
    ],
)
def test_limits_are_numbers_that_make_sense(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        StoreLimits(**change)
