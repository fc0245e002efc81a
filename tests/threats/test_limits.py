"""At its limit every field is taken, and beyond it refused by its name; others notice nothing.

``edges`` says where the limits are. A field of a body that is not in its table fails here.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode

from tests.soak import amount, seed, tell
from tests.threats.edges import AT, EDGES, STOPS, UNLIMITED, Edge
from tests.threats.frames import OF_CLIENTS, Line, payload_of, places_of
from tests.threats.walk import Place, places
from tests.threats.world import (
    NEVER_SAMPLE,
    NUMBERS,
    SAMPLES,
    World,
    body_of,
    with_bodies,
)
from wkvm.gateway.calls import Route

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARKS = frozenset({"[]", "{}", "{:}", "0", "1"})
COUNTED = inspect.IntType | inspect.FloatType
SIZED = inspect.StrType | inspect.ListType | inspect.DictType
NAMING = {"filename", "name", "save_as"}
"""Of what is made: each time another one."""


@dataclass(frozen=True)
class Try:
    """A value for a place, and whether it is to be taken."""

    route: Route
    kind: Any
    place: Place
    value: Any
    edge: Edge
    is_taken: bool

    @property
    def body(self) -> dict[str, Any]:
        info = inspect.type_info(self.kind)
        assert isinstance(info, inspect.StructType)
        names = {one.encode_name for one in info.fields}
        beside = {name: one for name, one in self.edge.beside.items() if name in names}
        value = self.value
        if self.is_taken and key_of(self.place) in NAMING:
            number = str(next(NUMBERS))
            value = value[: max(len(value) - len(number), 1)] + number
        put = self.place.wrap(value)
        if self.place.field == "sampling_params":
            put = {"max_new_tokens": 1, **put}
        return body_of(self.route, self.kind, **{**beside, self.place.field: put})

    def __str__(self) -> str:
        return f"{self.route.method} {self.route.path} {self.place} = {self.value!r:.80}"


def key_of(place: Place) -> str:
    """The name of the innermost field, and what leads from it to the place."""
    at = len(place.path) - 1
    while place.path[at] in MARKS:
        at -= 1
    return "".join(place.path[at:])


def limited() -> Iterator[tuple[Route, Any, Place]]:
    """Every number of every body, and every text, list and object that is no part of another."""
    for route, kind in with_bodies():
        if route.path in NEVER_SAMPLE:
            continue
        for place in places(kind, SAMPLES):
            n_fields = sum(step not in MARKS for step in place.path)
            is_outer = n_fields == 1 or place.field == "sampling_params"
            if isinstance(place.kind, COUNTED) or (is_outer and isinstance(place.kind, SIZED)):
                yield route, kind, place


def edge_at(route: Route, place: Place) -> Edge | None:
    return AT.get((route.path, key_of(place)), EDGES.get(key_of(place)))


def tries() -> Iterator[Try]:
    for route, kind, place in limited():
        edge = edge_at(route, place)
        if edge is None:
            continue
        for value in edge.taken:
            if fits(place, value):
                yield Try(route, kind, place, value, edge, True)
        for value in edge.refused:
            if fits(place, value):
                yield Try(route, kind, place, value, edge, False)


def fits(place: Place, value: Any) -> bool:
    """Whether a value is of the place's kind: fields may be of several."""
    match place.kind:
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.ListType():
            return isinstance(value, list)
        case inspect.DictType():
            return isinstance(value, dict)
        case _:
            return True


async def fault(world: World, one: Try) -> list[str]:
    """What is wrong with the answer to a try."""
    answer = await world.send(one.route, one.body)
    if one.is_taken:
        is_right = answer.status < 300 and answer.error is None
        if one.route.method == "PATCH":
            await world.fill()
    else:
        is_right = answer.status == 400 and answer.field in one.place.path
    return [] if is_right else [f"{one}: {answer.status} {answer.body!r:.300}"]


async def test_every_field_says_where_its_limits_are() -> None:
    said = {*EDGES, *(key for _, key in AT)}.union(*UNLIMITED.values())
    missing = {key_of(place) for route, _, place in limited()} - said
    assert missing == set()


def some_tries() -> list[Try]:
    """In the suite each value at each field once, on one of the routes that have it."""
    chance, of_value = random.Random(seed()), dict[str, list[Try]]()
    for one in tries():
        where = one.route.path if (one.route.path, key_of(one.place)) in AT else ""
        of_value.setdefault(f"{where} {key_of(one.place)} {one.value!r}", []).append(one)
    return [one for same in of_value.values() for one in chance.sample(same, amount(1, len(same)))]


async def test_at_its_limit_a_field_is_taken_and_beyond_it_refused_by_name(world: World) -> None:
    tried = some_tries()
    faults = list[str]()
    for one in tried:
        faults += await fault(world, one)
        await world.check()
    assert faults == []
    tell(7, "values at limits of bodies", len(tried), "requests")


async def test_no_value_at_a_limit_changes_what_others_get_over_http(world: World) -> None:
    tried = random.Random(seed()).sample(list(tries()), amount(60, 1000))
    await world.fill()
    async with world.beside_others():
        for one in tried:
            assert await fault(world, one) == []


# --- the binary protocol ------------------------------------------------------------------

SAMPLING_FIELDS = msgspec.structs.fields(wire.Sampling)
OF_SAMPLING = {
    one.name: AT.get(("/v1/generate", one.name), EDGES.get(one.name)) for one in SAMPLING_FIELDS
}
"""The edges of what ids are chosen by: both doors have the same."""


def at_limits(place: Place) -> Iterator[tuple[Any, bool]]:
    """Values at the limits that a type says, and whether they are of the type."""
    match place.kind:
        case inspect.IntType(ge=int(low), le=int(high)):
            yield from ((low, True), (low - 1, False), (high, True), (high + 1, False))
        case inspect.StrType(max_length=int(most)):
            yield from (("x" * most, True), ("\U0001f600" * most, True), ("x" * (most + 1), False))
        case inspect.VarTupleType(max_length=int(most)):
            yield from ((["x"] * most, True), (["x"] * (most + 1), False))
        case inspect.DictType(max_length=int(most)):
            for n in (most, most + 1):
                yield {f"k{at}": "v" for at in range(n)}, n == most
        case inspect.BytesType(max_length=int(most)):
            yield from ((b"x" * most, True), (b"x" * (most + 1), False), (b"", False))
        case _:
            pass


async def test_every_limit_that_a_message_has_is_held_to_the_value(world: World) -> None:
    line, n_tried = Line(world), 0
    for kind in OF_CLIENTS:
        await world.fill()
        for place in places_of(kind):
            for value, is_of_it in at_limits(place):
                payload = payload_of(kind, **{place.field: place.wrap(value)})
                outcome = await line.outcome(kind, payload)
                asked = f"{kind.__name__} {place} = {value!r:.60}: {outcome}"
                error = None if outcome.error is None else outcome.error.code
                if is_of_it:
                    # What Hello asks for may not be had, and bytes may not have been granted.
                    assert error is None or kind in (wire.Hello, wire.StateChunk), asked
                else:
                    assert error == ErrorCode.PROTOCOL_VIOLATION, asked
                await world.check()
                n_tried += 1
    line.close()
    assert n_tried > 300


async def test_every_number_of_sampling_has_an_edge() -> None:
    for place in places_of(wire.Generate):
        if place.field == "sampling" and isinstance(place.kind, COUNTED):
            assert OF_SAMPLING[place.path[-1]] is not None, place


async def test_at_its_limit_a_number_of_sampling_is_taken_and_beyond_it_refused(
    world: World,
) -> None:
    line = Line(world)
    for kind in (wire.Generate, wire.GenerateConstrained, wire.GenerateOn):
        for place in places_of(kind):
            name, edge = place.path[-1], OF_SAMPLING.get(place.path[-1])
            if edge is None or not isinstance(place.kind, COUNTED):
                continue
            refused = [x for x in edge.refused if not isinstance(x, int) or x < 2**64]
            if isinstance(place.kind, inspect.FloatType):
                refused += [math.nan, math.inf, -math.inf]
            for value, is_taken in [(x, True) for x in edge.taken] + [(x, False) for x in refused]:
                others = {"max_tokens": 4 if name == "min_tokens" else 1, "temperature": 0.0}
                stops = wire.pack_ids(STOPS) if name == "max_tokens" else b""
                given = {**others, "stop_ids": stops, name: value}
                whole = [given.get(one.name, one.default) for one in SAMPLING_FIELDS]
                n_choices = value if is_taken and name == "n" else 1
                outcome = await line.outcome(kind, payload_of(kind, sampling=whole), n_choices)
                asked = f"{kind.__name__} {place} = {value!r}: {outcome}"
                assert isinstance(outcome.closing, wire.Failed) != is_taken, asked
                if not is_taken:
                    assert outcome.closing.code == ErrorCode.INVALID_PARAMETER, asked
                    assert outcome.field == name, asked
                await world.check()
    line.close()
