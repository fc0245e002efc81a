"""Any value in any place of any body and any message: one typed answer, and nothing for others.

The places are found by walking the types, so that one that is added later is tried as well. What
is refused by which name, and where the limits are, is in ``test_limits``.
"""

import math
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Message

from tests.soak import amount, seed, tell
from tests.threats.frames import OF_CLIENTS, Line, Outcome, payload_of, places_of
from tests.threats.walk import Place, places
from tests.threats.world import FULL, SAMPLES, Answer, World, body_of, with_bodies
from wkvm.gateway.calls import Route
from wkvm.gateway.routes import ROUTES

pytestmark = pytest.mark.asyncio(loop_scope="module")


INTEGERS = [0, 1, 2, 255, 256, *(2**n + d for n in (31, 32, 53, 63) for d in (-1, 0, 1)), 2**64 - 1]
NUMBERS: list[Any] = [
    *INTEGERS, -1, -2, -(2**31), -(2**63), True, False, 1.0, 0.5, -0.0, 1e308, -1e308, 5e-324
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "1", "\0", "\n", "\u2028", "\U0001f600", "\ufeff", "\u202e", "../x", "%2e", "{",
    "x" * 257, "x" * 4097, "x" * 65_537, "[" * 200, "null", "'; --", "\\", '"', "x@1", "alpha@2",
]  # fmt: skip
OTHERS: list[Any] = [None, [], {}, [None], [[]], [{}], {"": None}, {"x": {}}, [1] * 5000]
JSON_VALUES = [*NUMBERS, *TEXTS, *OTHERS, 2**64, 2**200, -(2**200), -(2**63) - 1]
BYTES = [b"", b"\0", b"\0" * 4, b"\xff" * 4, b"\xff" * 400, b"\0" * 65_536]
PACKED_VALUES = [*NUMBERS, *TEXTS, *OTHERS, *BYTES, math.nan, math.inf, -math.inf]
VIOLATIONS = {
    ErrorCode.PROTOCOL_VIOLATION,
    # What Hello alone is told:
    ErrorCode.FRAME_TOO_LARGE,
    ErrorCode.UNSUPPORTED_VERSION,
}
COSTLY = {"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict"}
"""Fields that make a request as long as they say: it would be, so they are tried in small."""
KEEPS_SHORT = {"sampling_params": {"max_new_tokens": 1}}


def drawn(chance: random.Random, values: list[Any], place: Place, n: int) -> list[Any]:
    """So many values for a place."""
    if place.path[-1] == "{}":
        values = [value for value in values if isinstance(value, str)]
    if place.path[-1] in COSTLY:
        values = [x for x in values if not isinstance(x, int) or x <= 256 or x > 2**31]
    return chance.sample(values, min(n, len(values)))


# --- what is tried ---


async def test_every_body_is_tried_from_one_that_is_taken(world: World) -> None:
    for route, kind in with_bodies():
        await world.fill()
        answer = await world.send(route, body_of(route, kind))
        if route.path == "/v1/cancel":
            assert answer.status == 404
        else:
            assert answer.status < 300, (route, answer)


async def test_every_message_of_a_client_is_tried_from_one_that_is_taken(world: World) -> None:
    line = Line(world)
    for kind in OF_CLIENTS:
        await world.fill()
        outcome = await line.outcome(kind, payload_of(kind))
        assert outcome.error is None, kind
        if isinstance(outcome.closing, wire.Failed):
            # They wait for bytes or a grant, or have no end, and were cancelled.
            assert kind in (wire.StateExport, wire.StateImport, wire.Watch), (kind, outcome)
    line.close()


# --- HTTP ---------------------------------------------------------------------------------


def bodies(chance: random.Random, n: int) -> Iterator[tuple[Route, str, dict[str, Any]]]:
    """Bodies with a drawn value at each place of each, ``n`` times."""
    for route, kind in with_bodies():
        for place in places(kind, SAMPLES):
            for value in drawn(chance, JSON_VALUES, place, n):
                put = place.wrap(value)
                if place.field in KEEPS_SHORT and isinstance(put, dict):
                    put = KEEPS_SHORT[place.field] | put
                said = f"{route.method} {route.path} {place} = {value!r:.60}"
                yield route, said, body_of(route, kind, **{place.field: put})


@cache
def names_in(route: Route) -> frozenset[str]:
    """What a client may have written for a route: fields at any depth, and parameters."""
    doc = route.doc
    assert doc is not None
    found = {step for kind in doc.bodies for place in places(kind, SAMPLES) for step in place.path}
    return frozenset(found | {one.name for one in doc.query})


def is_typed(answer: Answer, route: Route, said: str) -> None:
    asked = f"{said}: {answer.status} {answer.body!r:.300}"
    assert answer.status < 500 or answer.status in FULL, asked
    if answer.status >= 400:
        assert isinstance(answer.error, dict), asked
        assert answer.error["message"], asked
        named = answer.error.get("param")
        assert named is None or answer.field in names_in(route), asked
    elif answer.error is not None:  # in a stream that had begun
        assert answer.error["type"] != "server_error", asked


async def test_any_value_anywhere_in_a_body_has_a_typed_answer(world: World) -> None:
    chance = random.Random(seed())
    asked = list(bodies(chance, amount(1, 6)))
    assert len(asked) > 1000
    asked = chance.sample(asked, amount(350, len(asked)))
    for n, (route, said, body) in enumerate(asked):
        if n % 64 == 0:
            await world.fill()
        is_typed(await world.send(route, body), route, said)
        await world.check()
    tell(7, "any value in any place of a body", len(asked), "requests")


async def test_no_value_in_a_body_changes_what_others_get(world: World) -> None:
    chance = random.Random(seed() + 1)
    asked = list(bodies(chance, 1))
    await world.fill()
    async with world.beside_others():
        for route, said, body in chance.sample(asked, amount(60, len(asked))):
            is_typed(await world.send(route, body), route, said)


def queries() -> Iterator[tuple[Route, str]]:
    for route in ROUTES:
        for one in route.doc.query if route.doc is not None else ():
            yield route, one.name


async def test_any_value_of_any_parameter_of_a_query_has_a_typed_answer(world: World) -> None:
    chance = random.Random(seed())
    texts = [str(one) for one in (*NUMBERS, *TEXTS)] + ["nan", "inf", "1e400", "1_0", "0x1", "٣"]
    for route, name in queries():
        for text in chance.sample(texts, amount(6, len(texts))):
            await world.fill()
            answer = await world.ask(route.method, world.url(route), params={name: text})
            is_typed(answer, route, f"{route.method} {route.path}?{name}={text!r:.60}")
            await world.check()


# --- the binary protocol ------------------------------------------------------------------


def messages(chance: random.Random, n: int) -> Iterator[tuple[type[Message], str, bytes, int]]:
    """Messages with a drawn value at each place of each, ``n`` times, and how many choices."""
    for kind in OF_CLIENTS:
        for place in places_of(kind):
            for value in drawn(chance, PACKED_VALUES, place, n):
                payload = payload_of(kind, **{place.field: place.wrap(value)})
                n_choices = value if place.path[-1] == "n" and type(value) is int else 1
                yield kind, f"{kind.__name__} {place} = {value!r:.60}", payload, n_choices


def is_one(outcome: Outcome, kind: type[Message], said: str) -> None:
    """Whether what was answered is an answer to that. That it is one, ``Line.outcome`` sees."""
    if outcome.error is not None:
        assert outcome.error.code in VIOLATIONS, f"{said}: {outcome}"
    if isinstance(outcome.closing, wire.Failed):
        assert ErrorCode(outcome.closing.code) is not ErrorCode.INTERNAL, f"{said}: {outcome}"
        assert outcome.closing.message, said
        fields = {*kind.__struct_fields__, *wire.Sampling.__struct_fields__, "logit_bias", ""}
        assert outcome.field in fields, f"{said}: {outcome}"


async def test_any_value_anywhere_in_a_message_has_one_answer(world: World) -> None:
    line = Line(world)
    n = 0
    for kind, said, payload, n_choices in messages(random.Random(seed()), amount(2, 12)):
        is_one(await line.outcome(kind, payload, n_choices), kind, said)
        await world.check()
        n += 1
        if n % 64 == 0:
            await world.fill()
    line.close()
    assert n > 300
    tell(6, "any value in any place of a message", n, "frames")


async def test_no_value_in_a_message_changes_what_others_get(world: World) -> None:
    line = Line(world)
    chance = random.Random(seed() + 1)
    sent = list(messages(chance, 1))
    await world.fill()
    async with world.beside_others():
        for kind, said, payload, n_choices in chance.sample(sent, amount(40, len(sent))):
            is_one(await line.outcome(kind, payload, n_choices), kind, said)
    line.close()
