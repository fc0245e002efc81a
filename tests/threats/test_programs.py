"""Programs in every place that takes a text or bytes: none of them is run.

Each would make a folder, the canary. What an interpreter begins is listened to in
``tests/supply/test_audit.py``; here it is every place that the types of either door have.
"""

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import Message

from tests.soak import amount, seed, tell
from tests.supply.programs import blobs, texts
from tests.threats.frames import OF_CLIENTS, Line, payload_of, places_of
from tests.threats.walk import Place, places
from tests.threats.world import FULL, SAMPLES, World, body_of, with_bodies
from wkvm.gateway.calls import Route
from wkvm.gateway.described import JSON
from wkvm.gateway.routes import ROUTES

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORMS = ("state", "blinkdl", "fla")


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """The folder that no program may have made by the end of the test."""
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()


def text_places() -> Iterator[tuple[Route, Any, Place]]:
    for route, kind in with_bodies():
        for place in places(kind, SAMPLES):
            if isinstance(place.kind, inspect.StrType):
                yield route, kind, place


async def test_no_text_in_any_place_of_a_body_is_run(world: World, canary: Path) -> None:
    chance, n_asked = random.Random(seed()), 0
    found = list(text_places())
    for route, kind, place in chance.sample(found, amount(280, len(found))):
        for text in chance.sample(texts(canary), amount(1, 5)):
            body = body_of(route, kind, **{place.field: place.wrap(text)})
            answer = await world.send(route, body)
            asked = f"{route.path} {place} = {text!r:.60}: {answer}"
            assert answer.status < 500 or answer.status in FULL, asked
            n_asked += 1
    await world.check()
    tell(7, "programs in every text of a body", n_asked, "requests")


async def test_no_blob_is_run_as_the_body_of_any_route(world: World, canary: Path) -> None:
    chance = random.Random(seed())
    for route in ROUTES:
        if route.method not in ("POST", "PUT", "PATCH"):
            continue
        for blob in chance.sample(blobs(canary), amount(2, 20)):
            await world.fill()
            answer = await world.ask(route.method, world.url(route), data=blob)
            # To those that take a body a blob is none; the others read none.
            takes_one = route.doc is not None and (route.doc.bodies or route.doc.body_media != JSON)
            lowest = 400 if takes_one else 200
            assert lowest <= answer.status < 500, f"{route.path} {blob[:20]!r}: {answer}"
            await world.check()


async def test_no_blob_is_run_or_kept_as_a_state(world: World, canary: Path) -> None:
    for blob in blobs(canary):
        for form in FORMS:
            answer = await world.ask("PUT", f"/v1/states/evil/import?format={form}", data=blob)
            assert answer.status == 422, f"{form} {blob[:20]!r}: {answer}"
        inline = base64.b64encode(blob).decode()
        body = {"ids": [1], "max_tokens": 1, "state_bytes": inline}
        answer = await world.ask("POST", "/v1/generate", json=body)
        assert answer.status in (400, 422), f"{blob[:20]!r}: {answer}"
        await world.check()
    assert (await world.ask("GET", "/v1/states/evil")).status == 404


def program_places(kind: type[Message]) -> Iterator[Place]:
    for place in places_of(kind):
        if isinstance(place.kind, inspect.StrType | inspect.BytesType):
            yield place


async def test_nothing_in_any_place_of_a_message_is_run(world: World, canary: Path) -> None:
    line, chance, n_sent = Line(world), random.Random(seed()), 0
    for kind in OF_CLIENTS:
        await world.fill()
        for place in program_places(kind):
            is_text = isinstance(place.kind, inspect.StrType)
            programs: list[Any] = texts(canary) if is_text else blobs(canary)
            for program in chance.sample(programs, amount(2, 10)):
                payload = payload_of(kind, **{place.field: place.wrap(program)})
                outcome = await line.outcome(kind, payload)
                code = getattr(outcome.closing, "code", None)
                assert code != ErrorCode.INTERNAL, f"{kind.__name__} {place}: {outcome}"
                n_sent += 1
        await world.check()
    tell(6, "programs in every place of a message", n_sent, "frames")


async def test_no_blob_is_run_or_kept_as_the_bytes_of_an_import(world: World, canary: Path) -> None:
    for form in FORMS:
        for blob in blobs(canary):
            client = await world.client()
            lane = client.wire.new_request_id()
            client.send(wire.StateImport(lane, "evil", len(blob), form))
            message: Any = None
            while lane in client.wire.lanes:
                message = await client.next()
                if isinstance(message, wire.StateCredit):
                    room = client.wire.room(lane)
                    client.send(wire.StateChunk(lane, blob[:room]), wire.StateBytesEnd(lane))
            assert isinstance(message, wire.Failed)
            assert message.code == ErrorCode.BAD_STATE_FILE, (form, blob[:20], message)
            client.abort()
        await world.check()
    assert (await world.ask("GET", "/v1/states/evil")).status == 404


async def test_no_blob_is_run_in_the_place_of_a_frame_or_of_a_request(
    world: World, canary: Path
) -> None:
    for blob in blobs(canary):
        line = Line(world)
        await line.open()
        line.write(blob)
        answer = await line.next()
        assert isinstance(answer, wire.Error), blob[:20]
        line.close()
        await world.check()
