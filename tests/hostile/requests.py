"""Requests for every route, with a value that should not be at any place of their bodies.

Places come from the types by which the routes read, and routes from their table; so what is added
later is tried too.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from msgspec import inspect

from tests.hostile.grammar import mutated
from tests.threats.walk import Place, places
from tests.threats.world import SAMPLES, World, body_of, with_bodies
from wkvm.gateway.calls import Route
from wkvm.gateway.routes import ROUTES

JSON = {"Content-Type": "application/json"}


def nested(levels: int) -> Any:
    """Arrays within each other."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


class Written(str):
    """A text that is put into the body as it is: JSON that ``json`` does not write."""

    __slots__ = ()


INTEGERS = (-(2**63) - 1, -(2**63), -1, 0, 1, 2, 64, 129, 2**31, 2**53 + 1, 2**63, 2**64, 10**400)
FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, -0.0, 0.5, Written("1e400"))
TEXTS = (
    "",
    " ",
    "x",
    "\x00",
    "\ud83d",
    "\udc00\ud83d",
    "\ufeff",
    "\U0001f98a",
    "../../x",
    "a\r\nX-A: b",
    "a" * 300,
    "\u00e9" * 70_000,
    "{{ 7 * 7 }}",
    "(a+)+b",
    "\uff0e\uff0e/x",
)
LISTS: tuple[Any, ...] = ([], [[]], [None], [1] * 3000, ["a"] * 300, nested(126), nested(200))
OBJECTS: tuple[Any, ...] = (
    {},
    {"": ""},
    {"a": {"b": [1, None]}},
    {str(n): n for n in range(1100)},
    Written('{"a": 1, "a": 2}'),
    Written('{"a":' * 200 + "1" + "}" * 200),
)
OTHERS: tuple[Any, ...] = (None, True, False, "1", 1.0, [1], {"a": 1})
NAMES = (
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a@0",
    "a@-1",
    "a@x",
    "a" * 200,
    "\x00",
    "\uff0e",
    "CON",
    "é",
)
QUERIES = ("", "-1", "0", "1", "257", "9" * 30, "x", "true", "1e5", "%", "\x00", "a:b", ":")
BROKEN = (b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"a":"\xc0\x80"}', b"{}{}")
"""Bodies that are no JSON, or not of an object."""


@dataclass
class Request:
    """One request.

    Attributes:
        what: is tried.
    """

    route: Route
    path: str
    what: str
    data: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class Maker:
    """Makes requests, all that are random from ``chance``."""

    world: World
    chance: random.Random

    def __post_init__(self) -> None:
        self.tries = [
            (route, kind, place) for route, kind in with_bodies() for place in places(kind, SAMPLES)
        ]
        self.without = [route for route in ROUTES if route.path != "/v1/ws"]

    def requests(self) -> Iterator[Request]:
        """Without end: the places in turn, so that each of them is tried, and others among them."""
        order = list(self.tries)
        while True:
            self.chance.shuffle(order)
            for route, kind, place in order:
                yield self.of_place(route, kind, place)
                if self.chance.random() < 0.2:
                    yield self.of_path(self.chance.choice(self.without))

    def of_place(self, route: Route, kind: Any, place: Place) -> Request:
        """A body that has something else at a place, and perhaps at others."""
        value = self.value_at(place)
        body = body_of(route, kind, **{place.field: place.wrap(value)})
        what = f"{place} = {value!r:.80}"
        while self.chance.random() < 0.3:
            _, other, at = self.chance.choice(self.tries)
            if other is kind and at.field != place.field:
                more = self.value_at(at)
                body[at.field] = at.wrap(more)
                what += f", {at} = {more!r:.80}"
        data = written(body)
        if self.chance.random() < 0.05:
            data, what = mutated(self.chance, data, data), f"{what}, changed"
        elif self.chance.random() < 0.02:
            data = self.chance.choice(BROKEN)
            what = repr(data)
        return Request(route, self.world.url(route), what, data, dict(JSON))

    def of_path(self, route: Route) -> Request:
        """A path and a query of any kind."""
        path = self.world.url(route)
        if "{" in route.path and (route.method == "DELETE" or self.chance.random() < 0.5):
            name = quote(self.chance.choice(NAMES), safe="")
            path = route.path.split("{")[0] + name + route.path.rpartition("}")[2]
        for one in route.doc.query if route.doc is not None else ():
            if self.chance.random() < 0.5:
                value = quote(self.chance.choice(QUERIES), safe="")
                path += f"{'&' if '?' in path else '?'}{one.name}={value}"
        data = None
        if route.method in ("POST", "PUT", "PATCH") and self.chance.random() < 0.7:
            data = self.chance.choice((*BROKEN, self.chance.randbytes(50)))
        return Request(route, path, "path and query", data)

    def value_at(self, place: Place) -> Any:
        """What is put at a place; a key of an object is a text."""
        return self.chance.choice(TEXTS) if place.path[-1] == "{}" else self.value(place.kind)

    def value(self, kind: inspect.Type) -> Any:
        """What should not be there, or just so."""
        pick = self.chance.choice
        if self.chance.random() < 0.15:
            return pick(OTHERS)
        match kind:
            case inspect.IntType():
                return pick(INTEGERS)
            case inspect.FloatType():
                return pick((*FLOATS, *INTEGERS))
            case inspect.StrType():
                return pick(TEXTS)
            case inspect.BoolType():
                return pick((True, False))
            case inspect.LiteralType(values=values):
                return pick((*values, "x"))
            case inspect.ListType() | inspect.TupleType() | inspect.VarTupleType():
                return pick((*LISTS, [SAMPLES.of(kind)] * 2, SAMPLES.of(kind)))
            case inspect.DictType() | inspect.StructType():
                return pick((*OBJECTS, SAMPLES.of(kind)))
            case _:
                return pick((*INTEGERS, *TEXTS, *LISTS, *OBJECTS))


def written(value: Any) -> bytes:
    """JSON, with what is no JSON for Python's own writer as it is."""
    raw = dict[str, str]()

    def walk(value: Any) -> Any:
        match value:
            case Written():
                mark = f"\x01{len(raw)}\x01"
                raw[json.dumps(mark)] = str(value)
                return mark
            case dict():
                return {key: walk(inner) for key, inner in value.items()}
            case list() if len(value) < 100:
                return [walk(inner) for inner in value]
            case _:
                return value

    text = json.dumps(walk(value))
    for mark, own in raw.items():
        text = text.replace(mark, own)
    return text.encode()
