"""Any messages about states in any order: each lane has one answer, and nothing is left of them."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode, LocalProtocolError
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    FEATURES,
    Cancel,
    ClientMessage,
    EndOn,
    Error,
    Failed,
    GenerateOn,
    Interrupt,
    Sampling,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateMoved,
    pack_ids,
)

from tests.protocol.vectors import examples
from tests.server.harness import TIMEOUT_S, RawClient
from tests.server.state_rig import ask
from tests.server.test_state_service import service, until_idle

NAMES = ("a", "b", "c", "a@1", "b@2", "c@9", "", "../x", "nowhere")
CLOSING = (EndOn, Failed, StateMoved, wire.StateVersions, wire.StatePage, wire.StateText)
KINDS: list[Any] = [
    type(one)
    for one in examples(ClientMessage)
    if FEATURES.get(type(one)) == "states" and type(one) in wire.REPLIES
]


def any_message(draw: random.Random, lane: int) -> Any:
    """A message that has the shape of one, and values that may mean something."""
    kind: Any = draw.choice([*KINDS, GenerateOn, GenerateOn, GenerateOn, wire.StateCreate])
    values = dict[str, Any]()
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT and draw.random() < 0.6:
            continue
        values[field.name] = any_value(draw, field.name)
    values["request_id"] = lane
    if kind is GenerateOn:
        values["sampling"] = Sampling(temperature=0.0, max_tokens=draw.choice([0, 1, 5, 60]))
    return kind(**values)


def any_value(draw: random.Random, name: str) -> Any:
    match name:
        case "prompt":
            return pack_ids(draw.choices(range(64), k=draw.choice([0, 1, 3, 9])))
        case "state" | "other" | "name" | "save_as" | "rename" | "target_name" | "versions_of":
            return draw.choice(NAMES)
        case "names" | "states":
            return tuple(draw.choices(NAMES, k=draw.choice([0, 1, 2, 5])))
        case "tags":
            return draw.choice([None, {}, {"k": "v"}, {"": "v"}, {"k": "\n"}])
        case "operation":
            return draw.choice(["decay", "blend", "reset", "nothing"])
        case "parameters":
            return draw.choice(["{}", '{"factor":0.5}', '{"factor":2}', "[]", "{"])
        case "idempotency_key":
            return draw.choice(["", "k1", "k2"])
        case "durability":
            return draw.choice(["", "disk", "memory", "tape"])
        case "on_disconnect":
            return draw.choice(["cancel", "finish", "hibernate"])
        case "format":
            return draw.choice(["state", "blinkdl", "fla", "zip"])
        case "tier":
            return draw.choice(["host", "disk", "cold", "device"])
        case "committed" | "want_inline" | "replay" | "keep_randomness":
            return draw.random() < 0.5
        case "inline_bytes" | "n_bytes":
            return draw.choice([0, 1, 100, 3000, 2**40])
        case "checkpoint_every":
            return draw.choice([0, 1, 64])
        case "grammar_kind" | "grammar" | "cursor" | "prefix":
            return draw.choice(["", "", "a", "regex"])
        case "target":
            return draw.choice(["", "tcp://h:1"])
        case "timeout_ms":
            return draw.choice([0, 1, 50])
        case "lane":
            return draw.choice([None, 1, 5])
        case _:
            return draw.choice([0, 1, 2, 5, 100])


def any_within(draw: random.Random, lane: int) -> Any:
    """Something that may be said within a lane, whether it is open or not."""
    return draw.choice(
        [
            Cancel(lane),
            Interrupt(lane, draw.choice([None, 0, 2])),
            StateChunk(lane, b"x" * draw.choice([1, 50])),
            StateBytesEnd(lane, draw.choice(["", "ab"])),
            StateCredit(lane, draw.choice([1, 1000])),
        ]
    )


async def converse(client: RawClient, draw: random.Random, n_messages: int) -> dict[int, Any]:
    """Send messages, and say things within their lanes as they allow; what closed each lane."""
    closed = dict[int, Any]()
    is_all_sent = asyncio.Event()

    async def read() -> None:
        while client.wire.lanes or client._received or not is_all_sent.is_set():
            message = await client.next()
            assert message is not None
            assert not isinstance(message, Error), message
            if isinstance(message, (*CLOSING, StateBytesEnd)):
                closed[message.request_id] = message

    reading = asyncio.create_task(read())
    for lane in range(1, n_messages + 1):
        client.send(any_message(draw, lane))
        await asyncio.sleep(draw.choice([0, 0, 0.001, 0.003]))
        for one in draw.choices(range(1, lane + 1), k=draw.choice([0, 1, 2])):
            try:
                client.send(any_within(draw, one))
            except LocalProtocolError:
                continue  # the client's side of the connection knows that it would be wrong
    await asyncio.sleep(0.05)
    for lane in list(client.wire.lanes):
        client.send(Cancel(lane))
    is_all_sent.set()
    client.send(wire.StateGet(n_messages + 1, "a"))
    async with asyncio.timeout(TIMEOUT_S):
        await reading
    return closed


@pytest.mark.parametrize("seed", range(12))
async def test_any_conversation_ends_with_one_answer_for_each_lane(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    async with service(tmp_path) as (rig, loop):
        client = await rig.client("blue-key")
        n_messages = 50  # no more than may be under way
        closed = await converse(client, draw, n_messages)
        assert closed.keys() == set(range(1, n_messages + 2))
        bad = [
            one
            for one in closed.values()
            if isinstance(one, Failed) and one.code == ErrorCode.INTERNAL
        ]
        assert bad == []
        assert isinstance(await ask(client, wire.StateList(0)), wire.StatePage)
        client.abort()
        await until_idle(rig, loop)


@pytest.mark.parametrize("seed", range(6))
async def test_a_client_that_vanishes_anywhere_leaves_nothing(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    async with service(tmp_path) as (rig, loop):
        for _ in range(8):
            client = await rig.client("blue-key")
            for lane in range(1, draw.randrange(2, 20)):
                client.send(any_message(draw, lane))
            for _ in range(draw.randrange(6)):
                await asyncio.sleep(0)
            client.abort()
        await until_idle(rig, loop)
        again = await rig.client("blue-key")
        assert isinstance(await ask(again, wire.StateList(0)), wire.StatePage)


@pytest.mark.parametrize("seed", range(4))
async def test_changed_bytes_end_a_connection_and_no_more(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    async with service(tmp_path) as (rig, loop):
        control = await rig.client("red-key")
        for _ in range(25):
            client = await rig.client("blue-key")
            payload = bytearray(msgspec.msgpack.encode(any_message(draw, 1)))
            for _ in range(draw.randrange(1, 4)):
                payload[draw.randrange(len(payload))] = draw.randrange(256)
            client.write(encode_frame(bytes(payload), 2**20))
            await asyncio.sleep(0)
            client.abort()
        assert isinstance(await ask(control, wire.StateList(0)), wire.StatePage)
        await until_idle(rig, loop)
