"""No id that is none gets by the door, in any field of any message or body that holds ids.

Which fields these are is found by walking the types; one that is added later is tried as well.
"""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Message, pack_floats

from tests import soak
from tests.threats.frames import NOT_IDS, OF_CLIENTS, Line, payload_of, places_of
from tests.threats.walk import Place, places
from tests.threats.world import (
    NEVER_SAMPLE,
    SAMPLES,
    VOCAB_SIZE,
    World,
    body_of,
    with_bodies,
)
from wkvm.gateway.calls import Route

pytestmark = pytest.mark.asyncio(loop_scope="module")

V = VOCAB_SIZE
NO_NUMBERS = [-1, V, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64, 2**70]
NO_IDS: list[Any] = [*NO_NUMBERS, -(2**63), True, False, 1.0, 1.5, "1", None, {}]
NO_KEYS = [*map(str, NO_NUMBERS), "true", "1.0", "", " 1", "+1", "1e0", "٣", "x", "null"]
PACKED = [V, V + 1, 2**31 - 1, 2**31, 2**32 - 1]
NO_PACKED: list[Any] = [[1], [V], [True], [1.0], "1", 1, True, 1.0, b"\1", b"\0" * 7, {}]

NOT_OF_IDS = {"borders"}
"""Lists of integers that are none of ids, but numbers of tokens."""
TEXTS_BESIDE_IDS = {"/completion"}
"""Routes on which a prompt may be of both: there a text is no wrong id."""


# --- HTTP ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """A body with a wrong id at a place."""

    route: Route
    place: Place
    wrong: Any
    body: dict[str, Any]


def id_places(kind: Any) -> Iterator[tuple[Place, Place]]:
    """Where a body has ids: the place of one, and the place of all that are together."""
    around = dict[tuple[str, ...], Place]()
    for place in places(kind, SAMPLES):
        if isinstance(place.kind, inspect.ListType | inspect.TupleType):
            around[place.path] = place
        is_number = isinstance(place.kind, inspect.IntType)
        if is_number and place.is_in_list and place.field not in NOT_OF_IDS:
            yield place, around[place.path[:-1]]


def bias_places(body: Any) -> Iterator[Place]:
    """Where ids are keys of an object: those whose values are numbers."""
    for place in places(body, SAMPLES):
        kind = place.kind
        if isinstance(kind, inspect.DictType) and isinstance(kind.value_type, inspect.FloatType):
            yield place


def asks() -> Iterator[Ask]:
    for route, kind in with_bodies():
        if route.path in NEVER_SAMPLE:
            continue
        for place, together in id_places(kind):
            for wrong in NO_IDS:
                if wrong == "1" and route.path in TEXTS_BESIDE_IDS:
                    continue
                is_pair = place.path[-1] == "0"
                value = place.wrap(wrong) if is_pair else together.wrap([1, wrong])
                yield Ask(route, place, wrong, body_of(route, kind, **{place.field: value}))
        for place in bias_places(kind):
            for wrong in NO_KEYS:
                value = place.wrap({"1": 0.5, wrong: 0.5})
                yield Ask(route, place, wrong, body_of(route, kind, **{place.field: value}))


async def is_refused(world: World, ask: Ask) -> None:
    answer = await world.send(ask.route, ask.body)
    asked = f"{ask.route.path} {ask.place} {ask.wrong!r}: {answer}"
    assert answer.status == 400, asked
    assert answer.field in ask.place.path, asked


async def test_the_walk_finds_the_fields_that_are_known_to_hold_ids() -> None:
    found = {place.path[-2] for _, kind in with_bodies() for place, _ in id_places(kind)}
    found |= {place.path[-1] for _, kind in with_bodies() for place in bias_places(kind)}
    known = "allowed_ids allowed_token_ids ids input input_ids logit_bias prompt stop_ids tokens"
    assert found >= {*known.split(), "stop_token_ids"}
    packed = {place.path[-1] for kind in OF_CLIENTS for place in packed_places(kind)}
    assert packed >= {"prompt", "bias_ids", "allowed_ids", "stop_ids"}


@pytest.mark.timed(60)
async def test_an_id_that_is_none_is_refused_in_every_field_of_every_body(world: World) -> None:
    for ask in asks():
        await is_refused(world, ask)
        await world.check()


async def test_ids_that_are_none_change_nothing_for_others_over_http(world: World) -> None:
    async with world.beside_others():
        for ask in some_of(asks(), 100):
            await is_refused(world, ask)


# --- the binary protocol ------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A message with a wrong id at a place."""

    kind: type[Message]
    place: Place
    wrong: Any

    @property
    def payload(self) -> bytes:
        whole = self.place.wrap(self.wrong)
        if self.place.path[-1] == "bias_ids":
            n = len(self.wrong) // 4 if isinstance(self.wrong, bytes) else 1
            names = [one.name for one in msgspec.structs.fields(wire.Sampling)]
            whole[names.index("bias_values")] = pack_floats([0.5] * n)
        return payload_of(self.kind, **{self.place.field: whole})


def packed_places(kind: type[Message]) -> Iterator[Place]:
    for place in places_of(kind):
        if isinstance(place.kind, inspect.BytesType) and place.path[-1] not in NOT_IDS:
            yield place


def frames() -> Iterator[Sent]:
    for kind in OF_CLIENTS:
        for place in packed_places(kind):
            for token_id in PACKED:
                packed = b"".join(one.to_bytes(4, "little") for one in (1, token_id))
                yield Sent(kind, place, packed)


async def fails(line: Line, sent: Sent) -> None:
    outcome = await line.outcome(sent.kind, sent.payload)
    asked = f"{sent.kind.__name__} {sent.place} {sent.wrong!r}: {outcome}"
    assert isinstance(outcome.closing, wire.Failed), asked
    assert outcome.closing.code == ErrorCode.TOKEN_OUT_OF_RANGE, asked
    assert outcome.closing.field in (sent.place.path[-1], "logit_bias"), asked


async def test_an_id_that_is_none_is_refused_in_every_field_of_every_message(world: World) -> None:
    line = Line(world)
    for sent in frames():
        await fails(line, sent)
        await world.check()
    line.close()


async def test_ids_that_are_none_change_nothing_for_others(world: World) -> None:
    line = Line(world)
    async with world.beside_others():
        for sent in some_of(frames(), 40):
            await fails(line, sent)
    line.close()


async def test_what_are_no_packed_ids_is_a_violation_in_every_field(world: World) -> None:
    line = Line(world)
    for kind in OF_CLIENTS:
        for place in packed_places(kind):
            for wrong in NO_PACKED:
                outcome = await line.outcome(kind, Sent(kind, place, wrong).payload)
                asked = f"{kind.__name__} {place} {wrong!r}: {outcome}"
                assert outcome.error is not None, asked
                assert outcome.error.code == ErrorCode.PROTOCOL_VIOLATION, asked
                await world.check()
    line.close()


# --- ids in a text ------------------------------------------------------------------------

NO_SOURCES = [[-1], [V], [2**31], [2**63 - 1], [2**64], [True], [1.0], ["1"], [None], 1, "1", []]


@pytest.mark.parametrize("ids", NO_SOURCES, ids=repr)
async def test_an_id_that_is_none_is_refused_in_a_grammar_of_ids(world: World, ids: Any) -> None:
    source = json.dumps({"ids": [[1, 2], ids]})
    line = Line(world)
    for kind in (wire.GenerateConstrained, wire.GenerateOn):
        payload = payload_of(kind, grammar_kind="without", grammar=source)
        outcome = await line.outcome(kind, payload)
        assert outcome.field == "grammar", outcome
        await world.check()
    line.close()
    body = {"ids": [1], "max_tokens": 1, "grammar": {"kind": "without", "source": source}}
    for path in ("/v1/generate", "/v1/stream", "/v1/submit"):
        answer = await world.ask("POST", path, json=body)
        assert (answer.status, answer.field) == (400, "grammar"), answer
        await world.check()


def some_of(all_of_them: Iterable[Any], n: int) -> list[Any]:
    """So many of them, in a soak others each time."""
    return random.Random(soak.seed()).sample(list(all_of_them), n)
