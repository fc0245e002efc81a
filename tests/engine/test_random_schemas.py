"""Whatever JSON schema is asked for, what a model that knows nothing says fits it."""

import json
from collections import Counter
from collections.abc import Callable

import jsonschema
import pytest

from tests.engine.driver import Outcome
from tests.engine.grammar_rig import Rig
from tests.schemas import Made, Maker
from wkvm.core.grammar import Grammar
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams
from wkvm.gateway.schemas import check_schema

FORMATS = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
"""What the library checks without others."""
N_SIDE_BY_SIDE = 16
BOUNDED_TOKENS, OPEN_TOKENS = 8000, 300
LITTLE_SPACE = tuple((byte, -5.0) for byte in b" \t\r\n")
"""White space is bounded too, but makes texts long."""
ALL_KINDS = {
    *("$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "format", "items"),
    *("maxItems", "maxLength", "maximum", "minItems", "minLength", "minProperties", "minimum"),
    *("multipleOf", "oneOf", "pattern", "patternProperties", "prefixItems", "properties"),
    *("recursion", "required", "type", "maxProperties"),
}


def answers(rig: Rig, made: list[Made], first_seed: int) -> list[Outcome]:
    outcomes = list[Outcome]()
    for at, one in enumerate(made):
        assert check_schema(one.schema, "schema", at="json") == one.schema
        params = SamplingParams(
            seed=first_seed + at,
            max_tokens=BOUNDED_TOKENS if one.is_bounded else OPEN_TOKENS,
            logit_bias=LITTLE_SPACE,
        )
        outcomes += rig.ask(Grammar("json_schema", json.dumps(one.schema)), params)
    rig.finish()
    return outcomes


def check_many(seed: int, n: int) -> Counter[str]:
    """Ask for ``n`` schemas. Returns how many there were of what."""
    maker, rig, counts = Maker(seed), Rig(n_slots=N_SIDE_BY_SIDE), Counter[str]()
    for first in range(0, n, N_SIDE_BY_SIDE):
        made = [maker.make() for _ in range(min(N_SIDE_BY_SIDE, n - first))]
        for one, outcome in zip(made, answers(rig, made, first), strict=True):
            text = bytes(outcome.ids)
            counts.update(one.kinds)
            counts["schemas"] += 1
            counts["bounded"] += one.is_bounded
            if outcome.status is Status.STOPPED:
                counts["stopped"] += 1
                value = json.loads(text.decode())
                validator = jsonschema.Draft202012Validator(one.schema, format_checker=FORMATS)
                assert validator.is_valid(value), (one.schema, text)
            else:
                assert outcome.status is Status.LENGTH, (one.schema, outcome)
                assert not one.is_bounded, (one.schema, text)
    return counts


def test_what_ends_by_itself_fits_its_schema_and_bounded_schemas_end() -> None:
    counts = check_many(seed=1, n=112)
    assert counts["schemas"] == 112
    assert counts["stopped"] > 80
    assert counts["bounded"] > 40


@pytest.mark.slow
def test_two_thousand_schemas_are_kept_to(record_property: Callable[[str, object], None]) -> None:
    counts = check_many(seed=0, n=2000)
    for name, count in sorted(counts.items()):
        record_property(name, count)
    print(dict(sorted(counts.items())))
    assert counts["schemas"] == 2000
    assert counts["stopped"] > 1700
    assert counts["bounded"] > 900
    assert counts.keys() >= ALL_KINDS
    assert min(counts[kind] for kind in ALL_KINDS) > 20
