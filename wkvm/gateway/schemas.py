"""JSON schemas that clients bring: which can be made grammars, and how they are laid out."""

from collections.abc import Mapping
from typing import NoReturn, TypeAlias, cast

from wkvm.gateway.failures import invalid

MAX_DEPTH = 64
"""Levels of subschemas."""
MAX_SUBSCHEMAS = 4096

Schema: TypeAlias = dict[str, object]

FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
"""What a string's ``format`` may be."""
UNSUPPORTED_FORMATS = frozenset(
    (
        "idn-email",
        "idn-hostname",
        "iri",
        "iri-reference",
        "json-pointer",
        "regex",
        "relative-json-pointer",
        "uri-reference",
        "uri-template",
    )
)
"""Those of the standard that no grammar expresses. Others are somebody's own, and only notes."""

UNSUPPORTED = frozenset(
    (
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    )
)
"""Keywords of JSON Schema that no grammar expresses. Others that are unknown say nothing about a
value, by the standard, and are ignored."""

_NEUTRAL: Mapping[str, object] = {
    "uniqueItems": False,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
}
"""Values of some of these that ask for nothing."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")


def check_schema(schema: object, field: str, *, at: str) -> object:
    """Check that a schema has only keywords that can be made a grammar.

    Not all that can be wrong with a schema is found: the rest shows when it is compiled.

    Args:
        schema: as JSON has it. Linear in its size.
        field: of the request, for errors.
        at: where in that field it is.

    Returns:
        The schema, without what asks for nothing.

    Raises:
        HttpError: 400; it names the keyword and where it is.
    """
    return _Checker(field, at).check(schema, "#", 0)


class _Checker:
    def __init__(self, field: str, at: str) -> None:
        self._field = field
        self._at = at
        self._n_subschemas = 0

    def check(self, schema: object, path: str, depth: int) -> object:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._refuse(f"{path} is no schema: neither an object nor true or false")
        self._n_subschemas += 1
        if depth > MAX_DEPTH:
            self._refuse(f"nested too deeply: the limit is {MAX_DEPTH} levels")
        if self._n_subschemas > MAX_SUBSCHEMAS:
            self._refuse(f"more than {MAX_SUBSCHEMAS:,} subschemas")
        result = Schema()
        for key, value in cast("Mapping[str, object]", schema).items():
            inner = f"{path}/{key}"
            if key in UNSUPPORTED:
                if key in _NEUTRAL and value is _NEUTRAL[key]:
                    continue
                self._refuse(f'the keyword "{key}", at {inner}, is not supported')
            result[key] = self._value(key, value, inner, depth + 1)
        if _counts_twice(result):
            why = "more properties than are listed, of names that may come twice"
            self._refuse(f'"minProperties", at {path}/minProperties, asks for {why}')
        form = result.get("format")
        if isinstance(form, str) and form not in FORMATS and _may_be_string(result):
            if form in UNSUPPORTED_FORMATS:
                known = ", ".join(sorted(FORMATS))
                self._refuse(f'the format "{form}", at {path}/format, is none of {known}')
            del result["format"]
        return result

    def _value(self, key: str, value: object, path: str, depth: int) -> object:
        if key in _MAPS and isinstance(value, Mapping):
            entries = cast("Mapping[str, object]", value)
            return {name: self.check(one, f"{path}/{name}", depth) for name, one in entries.items()}
        if key in _LISTS and isinstance(value, list):
            parts = cast("list[object]", value)
            return [self.check(one, f"{path}/{n}", depth) for n, one in enumerate(parts)]
        if key == "items" and isinstance(value, list):
            self._refuse(f'"items", at {path}, is a list: it is called "prefixItems"')
        if key in _SINGLES:
            return self.check(value, path, depth)
        if key == "$ref" and not (isinstance(value, str) and value.startswith("#")):
            self._refuse(f'"$ref", at {path}, does not refer to a part of the schema itself')
        return value

    def _refuse(self, why: str) -> NoReturn:
        raise invalid(self._field, f"{self._at}: {why}")


def _counts_twice(schema: Schema) -> bool:
    """Whether an object may seem to have as many properties as it needs since one came twice.

    A grammar does not know which names it has had that are not listed.
    """
    least, required = schema.get("minProperties"), schema.get("required")
    n_required = len(cast("list[object]", required)) if isinstance(required, list) else 0
    if not isinstance(least, int | float) or least <= max(1, n_required):
        return False
    is_closed = schema.get("additionalProperties") is False
    return not (is_closed and "patternProperties" not in schema)


def _may_be_string(schema: Schema) -> bool:
    kinds = schema.get("type", "string")
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def closed(schema: Schema) -> Schema:
    """A schema whose objects have the properties that are listed and no others.

    By itself JSON Schema allows any others, which nobody means who lists some, and with which a
    model may go on for ever. What says itself what else there may be, or needs more than it
    lists, is left as it is, as is a schema that joins lists of properties.
    """
    return schema if _is_joined(schema) else cast("Schema", _closed(schema))


def compact(schema: Schema, *, lenient: bool = False) -> Schema:
    """A schema whose JSON has no white space outside of strings: a model might never end it.

    Args:
        lenient: ignore what no grammar can express, instead of refusing it.
    """
    layout = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return {**schema, "x-guidance": {**layout, "lenient": lenient}}


def roomy(schema: object) -> object:
    """A schema whose JSON may have some white space, unless it says itself how it is laid out."""
    if not isinstance(schema, Mapping):
        return schema
    return {"x-guidance": {"whitespace_pattern": WHITE_SPACE}, **cast("Schema", schema)}


WHITE_SPACE = r"[ \n\r\t]{1,40}"
"""Between the parts of a JSON value. The engine has the same where it is given a schema."""

_CLOSED_MAPS = ("properties", "$defs", "definitions")
_CLOSED_LISTS = ("anyOf", "oneOf", "prefixItems")
_OPENING = frozenset(("additionalProperties", "patternProperties", "unevaluatedProperties"))
"""With one of these, what else an object may have is said there."""
_JOINING = frozenset(("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"))
"""With one of these, an object has more properties than are listed beside it."""


def _is_joined(schema: object) -> bool:
    """Whether an object's properties are listed in several places: none of them has all."""
    if isinstance(schema, Mapping):
        entries = cast("Mapping[str, object]", schema)
        parts = entries.get("allOf")
        if isinstance(parts, list) and len(cast("list[object]", parts)) > 1:
            return True
        if "properties" in entries and _JOINING & entries.keys():
            return True
        return any(_is_joined(entry) for entry in entries.values())
    if isinstance(schema, list):
        return any(_is_joined(entry) for entry in cast("list[object]", schema))
    return False


def _closed(schema: object) -> object:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(cast("Mapping[str, object]", schema))
    for key in _CLOSED_MAPS:
        if isinstance(entries := result.get(key), Mapping):
            named = cast("Mapping[str, object]", entries)
            result[key] = {name: _closed(entry) for name, entry in named.items()}
    for key in _CLOSED_LISTS:
        if isinstance(entries := result.get(key), list):
            result[key] = [_closed(entry) for entry in cast("list[object]", entries)]
    if "items" in result:
        result["items"] = _closed(result["items"])
    if isinstance(listed := result.get("properties"), Mapping) and not _OPENING & result.keys():
        needed = result.get("required")
        if not isinstance(needed, list) or all(
            name in listed for name in cast("list[object]", needed)
        ):
            result["additionalProperties"] = False
    return result
