"""Facts about names, references, and what is written down of a state."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Grammar
from wkvm.core.limits import StoreLimits, check_provenance
from wkvm.core.registry import (
    Carried,
    Identity,
    Parent,
    Provenance,
    Ref,
    SamplerMemory,
    check_name,
    parse_ref,
)

WORDS = st.integers(0, 2**64 - 1)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
SAMPLERS = st.builds(
    SamplerMemory,
    seed=WORDS,
    branch=WORDS,
    position=WORDS,
    n_generated=st.integers(0, 1000),
    seen=IDS,
    counts=st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.floats(0, 1e9, width=32)), max_size=5
    ).map(tuple),
    grammar=st.none() | st.builds(Grammar, st.just("regex"), st.text(max_size=9)),
    grammar_ids=IDS,
)


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "x" * 128, "CON", "a..b"])
def test_a_name_is_letters_digits_and_three_marks(name: str) -> None:
    assert check_name(name) == name
    assert parse_ref(name) == Ref(name)
    assert parse_ref(f"{name}@7") == Ref(name, 7)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "%2e%2e", "a/b", "a\0", "\uff0e", "x" * 129, "-a", "_a", "a b", "a\n"]  # noqa: RUF005
    + ["é", "a@", "@1", "a@0", "a@01", "a@-1", "a@1x", "a@1@2", f"a@{2**54}", "a@٣"],
)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError):
        parse_ref(name)


@given(carried=st.builds(Carried, n_computed=st.integers(0, 2**40), sampler=SAMPLERS))
def test_what_a_state_carries_comes_back_from_json_equal(carried: Carried) -> None:
    assert Carried.from_json(json.loads(json.dumps(carried.to_json()))) == carried


@pytest.mark.parametrize(
    "change",
    [
        {"n_computed": -1},
        {"n_computed": True},
        {"n_computed": 1.0},
        {"pending": [1, 2]},
        {"pending": [-1]},
        {"pending": "1"},
        {"sampler": {}},
        {"more": 1},
    ],
)
def test_json_that_is_not_carried_is_refused(change: dict[str, Any]) -> None:
    good = {"n_computed": 3, "pending": [1], "sampler": None}
    assert Carried.from_json(good).pending == (1,)
    with pytest.raises(ValueError, match=r".+"):
        Carried.from_json(good | change)


@pytest.mark.parametrize("value", ["x", "A0", "0" * 129, 3])
def test_an_identity_is_made_of_hex_digests(value: Any) -> None:
    with pytest.raises(ValueError, match="hex"):
        Identity(model_digest=value, fingerprint="ab")


def test_a_provenance_comes_back_from_json_equal() -> None:
    one = Provenance(
        operation="blend",
        parameters={"weights": [0.5, 0.5]},
        parents=(Parent(ref="a@1", content_id="00"), Parent(ref="", content_id="11")),
        n_before=3,
        n_after=3,
        seed=2**64 - 1,
        cuts=(64, 128),
    )
    assert Provenance.from_json(json.loads(check_provenance(one, StoreLimits()))) == one
