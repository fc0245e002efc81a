"""How deep and how large a schema of an answer may be, and one level or one part beyond that."""

import pytest

from wkvm.gateway.failures import HttpError
from wkvm.gateway.schemas import MAX_DEPTH, MAX_SUBSCHEMAS, Schema, check_schema


def deep(n: int) -> Schema:
    """``n`` levels below the first."""
    schema: Schema = {"type": "string"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


def wide(n: int) -> Schema:
    """``n`` schemas, the outermost included."""
    parts = {f"p{i}": {"type": "string"} for i in range(n - 1)}
    return {"type": "object", "properties": parts}


@pytest.mark.parametrize("n", [MAX_DEPTH - 1, MAX_DEPTH])
def test_so_many_levels_are_taken(n: int) -> None:
    assert check_schema(deep(n), "response_format", at="schema") == deep(n)


def test_a_level_more_is_refused() -> None:
    with pytest.raises(HttpError, match=f"the limit is {MAX_DEPTH} levels"):
        check_schema(deep(MAX_DEPTH + 1), "response_format", at="schema")


@pytest.mark.parametrize("n", [MAX_SUBSCHEMAS - 1, MAX_SUBSCHEMAS])
def test_so_many_schemas_in_one_are_taken(n: int) -> None:
    assert check_schema(wide(n), "response_format", at="schema") == wide(n)


def test_a_schema_more_is_refused() -> None:
    with pytest.raises(HttpError, match=f"more than {MAX_SUBSCHEMAS:,} subschemas"):
        check_schema(wide(MAX_SUBSCHEMAS + 1), "response_format", at="schema")
