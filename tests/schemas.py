"""JSON schemas at random, and what is known of each: for the tests of grammars.

Each schema is one that some value fits. It is bounded if every text that fits it, but for white
space and the digits of numbers, has a limit to its length.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

KEYS = ("a", "b", "name", "ключ", "名前", "with space", 'quo"te', "back\\slash", "é", "🐭", "a/b~c")
PATTERNS = (
    ("^[a-z]{2,6}$", True),
    ("^(foo|bar)-[0-9]{1,3}$", True),
    ("^[а-я]{1,4}$", True),  # noqa: RUF001
    ("^\\d{3}-\\d{4}$", True),
    ("^x+$", False),
    ("ab", False),
)
"""Patterns, and whether what they match has a limit to its length."""
FORMATS = (
    ("date", True),
    ("time", False),
    ("date-time", False),
    ("uuid", True),
    ("ipv4", True),
    ("ipv6", True),
    ("email", False),
    ("hostname", False),
    ("duration", False),
    ("uri", False),
)
WORDS = ("red", "green", "", "ü", 'say "x"', "\n", "\\", "🦜 parrot")


@dataclass(frozen=True)
class Made:
    """A schema.

    Attributes:
        schema: JSON.
        is_bounded: see the module.
        kinds: which keywords it is made of.
    """

    schema: Schema
    is_bounded: bool
    kinds: frozenset[str]


class Maker:
    """Makes schemas. The same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._definitions = dict[str, Schema]()
        self._is_bounded = True
        self._kinds = set[str]()

    def make(self) -> Made:
        """The next schema."""
        self._definitions, self._is_bounded, self._kinds = {}, True, set()
        schema = self._any(self._random.randint(1, 4))
        if self._definitions:
            schema = {**schema, "$defs": self._definitions}
        return Made(schema, self._is_bounded, frozenset(self._kinds))

    def _any(self, depth: int) -> Schema:
        leaves: list[Callable[[], Schema]] = [
            self._string,
            self._string,
            self._number,
            self._number,
            self._enum,
            self._const,
            self._simple,
        ]
        if depth == 0:
            return self._random.choice(leaves)()
        branches: list[Callable[[int], Schema]] = [
            self._object,
            self._object,
            self._object,
            self._array,
            self._array,
            self._tuple,
            self._any_of,
            self._one_of,
            self._all_of,
            self._reference,
            self._recursive,
            self._map,
        ]
        if self._random.random() < 0.2:
            return self._random.choice(leaves)()
        return self._random.choice(branches)(depth - 1)

    def _note(self, *kinds: str) -> None:
        self._kinds.update(kinds)

    def _chance(self, of: float) -> bool:
        return self._random.random() < of

    def _open(self) -> None:
        self._is_bounded = False

    # --- values -------------------------------------------------------------------------------

    def _simple(self) -> Schema:
        kind = self._random.choice(("boolean", "null", ["boolean", "null"]))
        self._note("type")
        return {"type": kind}

    def _string(self) -> Schema:
        schema: Schema = {"type": "string"}
        match self._random.randrange(4):
            case 0:
                pattern, is_bounded = self._random.choice(PATTERNS)
                schema["pattern"] = pattern
                self._note("pattern")
                if not is_bounded:
                    if self._chance(0.5):
                        schema["maxLength"] = self._random.randint(3, 12)
                        self._note("maxLength")
                    else:
                        self._open()
            case 1:
                schema["format"], is_bounded = self._random.choice(FORMATS)
                self._note("format")
                if not is_bounded:
                    self._open()
            case 2:
                low = self._random.randint(0, 4)
                schema |= {"minLength": low, "maxLength": low + self._random.randint(0, 8)}
                self._note("minLength", "maxLength")
            case _:
                if self._chance(0.8):
                    schema["maxLength"] = self._random.randint(0, 9)
                    self._note("maxLength")
                else:
                    self._open()
        return schema

    def _number(self) -> Schema:
        schema: Schema = {"type": self._random.choice(("integer", "number"))}
        is_whole = schema["type"] == "integer"
        low = self._random.randint(-1000, 1000) / (1 if is_whole else 8)
        high = low + self._random.randint(2, 500)
        if is_whole:
            low, high = int(low), int(high)
        if self._chance(0.6):
            schema[self._random.choice(("minimum", "exclusiveMinimum"))] = low
            self._note("minimum")
        if self._chance(0.6):
            schema[self._random.choice(("maximum", "exclusiveMaximum"))] = high
            self._note("maximum")
        if self._chance(0.15) and len(schema) == 1:
            schema["multipleOf"] = self._random.choice((2, 7, 10) if is_whole else (0.5, 0.25, 3))
            self._note("multipleOf")
        return schema

    def _enum(self) -> Schema:
        values: list[Any] = self._random.sample(WORDS, self._random.randint(1, 4))
        if self._chance(0.4):
            values += [None, 1.5, -3, True, ["x", {"y": 1}], {"z": []}][
                : self._random.randint(1, 6)
            ]
        self._note("enum")
        return {"enum": values}

    def _const(self) -> Schema:
        values: list[Any] = ["x", 7, None, False, [1, "2"], {"a": {"b": None}}, "ключ"]
        self._note("const")
        return {"const": self._random.choice(values)}

    # --- containers ---------------------------------------------------------------------------

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(KEYS, self._random.randint(0, 4))
        properties = {name: self._any(depth) for name in names}
        schema: Schema = {"type": "object", "properties": properties}
        required = [name for name in names if self._chance(0.6)]
        if required:
            schema["required"] = required
            self._note("required")
        match self._random.randrange(5):
            case 0 if depth:
                schema["additionalProperties"] = self._any(0)
                self._open()
            case 1:
                self._open()
            case _:
                schema["additionalProperties"] = False
        self._note("properties", "additionalProperties")
        return schema

    def _map(self, depth: int) -> Schema:
        schema: Schema = {"type": "object"}
        if self._chance(0.5):
            schema["patternProperties"] = {"^k[0-9]$": self._any(depth)}
            schema["additionalProperties"] = False
            self._note("patternProperties")
        else:
            schema["additionalProperties"] = self._any(depth)
            self._note("additionalProperties")
        if self._chance(0.5):
            low = self._random.randint(0, 1)
            schema |= {"minProperties": low, "maxProperties": low + self._random.randint(1, 3)}
            self._note("minProperties", "maxProperties")
        self._open()
        return schema

    def _array(self, depth: int) -> Schema:
        schema: Schema = {"type": "array", "items": self._any(depth)}
        if self._chance(0.5):
            schema["minItems"] = self._random.randint(0, 3)
            self._note("minItems")
        if self._chance(0.8):
            schema["maxItems"] = schema.get("minItems", 0) + self._random.randint(0, 3)
            self._note("maxItems")
        else:
            self._open()
        self._note("items")
        return schema

    def _tuple(self, depth: int) -> Schema:
        parts = [self._any(depth) for _ in range(self._random.randint(1, 3))]
        self._note("prefixItems")
        schema: Schema = {"type": "array", "prefixItems": parts, "items": False}
        if self._chance(0.7):
            schema["minItems"] = len(parts)
        return schema

    # --- combinations -------------------------------------------------------------------------

    def _any_of(self, depth: int) -> Schema:
        self._note("anyOf")
        return {"anyOf": [self._any(depth) for _ in range(self._random.randint(1, 3))]}

    def _one_of(self, depth: int) -> Schema:
        """Of kinds that no value has two of, or objects that a constant tells apart."""
        self._note("oneOf")
        if self._chance(0.5):
            parts = [self._string(), self._number(), {"type": "boolean"}, {"type": "null"}]
            return {"oneOf": self._random.sample(parts, self._random.randint(1, 4))}
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": self._any(depth)},
                    "required": ["kind"],
                    "additionalProperties": False,
                }
                for kind in ("x", "y")
            ]
        }

    def _all_of(self, depth: int) -> Schema:
        self._note("allOf")
        if depth and self._chance(0.5):
            self._open()
            return {
                "allOf": [
                    {"type": "object", "properties": {name: self._any(0)}, "required": [name]}
                    for name in self._random.sample(KEYS, 2)
                ]
            }
        low = self._random.randint(-50, 50)
        return {
            "allOf": [
                {"type": "integer", "minimum": low},
                {"maximum": low + self._random.randint(1, 90)},
            ]
        }

    def _reference(self, depth: int) -> Schema:
        name = f"d{len(self._definitions)}"
        self._definitions[name] = {}
        self._definitions[name] = self._any(depth)
        self._note("$ref")
        return {"$ref": f"#/$defs/{name}"}

    def _recursive(self, depth: int) -> Schema:
        name = f"tree{len(self._definitions)}"
        self._definitions[name] = {}
        self._definitions[name] = {
            "type": "object",
            "properties": {
                "value": self._any(0),
                "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
        self._open()
        self._note("$ref", "recursion")
        return {"$ref": f"#/$defs/{name}"}
