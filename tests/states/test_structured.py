"""An answer that a grammar constrains goes on from its state as if nothing had come between."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import Grammar, aio

from tests.states.nursery import Nursery
from tests.states.rig import rig_running
from tests.states.test_continuations import ask_for
from tests.states.tokens import text_of

PROMPT = [3, 1, 4, 1, 5]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 16},
        "marks": {
            "type": "array",
            "items": {"type": "integer", "minimum": -500, "maximum": 500},
            "minItems": 6,
            "maxItems": 9,
        },
        "more": {"anyOf": [{"type": "null"}, {"enum": ["yes", "no"]}]},
    },
    "required": ["name", "marks", "more"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))
ASKED: dict[str, Any] = {
    "grammar": GRAMMAR,
    "temperature": 1.0,
    "presence_penalty": 0.3,
    "max_tokens": 500,
}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


async def whole_of(client: aio.Client, seed: int = 7) -> list[int]:
    """The answer that nothing interrupted."""
    done = await (await client.generate(PROMPT, seed=seed, **ASKED)).completion()
    assert done.reason.name == "STOP"
    value = json.loads(text_of(done.ids))
    assert set(value) == {"name", "marks", "more"}
    return done.ids


async def go_on(client: aio.Client, state: str, n: int, **how: Any) -> tuple[list[int], str]:
    """The next ids of an answer; the state is then after them."""
    asked = {**ASKED, "max_tokens": n}
    stream = await client.generate([], state=state, save_as=state, **asked, **how)
    done = await stream.completion()
    return done.ids, done.reason.name


async def test_through_kills_of_the_server(nursery: Nursery, tmp_path: Path) -> None:
    ask, rng = ask_for(tmp_path), random.Random(3)
    server = nursery.start(ask)
    async with aio.connect(server.address) as client:
        whole = await whole_of(client)
        first = {**ASKED, "max_tokens": 9}
        stream = await client.generate(PROMPT, seed=7, save_as="s", **first)
        ids = (await stream.completion()).ids
    reason = "LENGTH"
    while reason == "LENGTH":
        server.kill()
        server = nursery.start(ask)
        async with aio.connect(server.address) as client:
            more, reason = await go_on(client, "s", rng.randint(12, 30))
        ids += more
    assert (ids, reason) == (whole, "STOP")
    server.kill()


@pytest.mark.parametrize("has_guest", [False, True])
async def test_forked_hibernated_and_rolled_back(tmp_path: Path, has_guest: bool) -> None:
    async with rig_running("binary", tmp_path / "store", has_guest=has_guest) as rig:
        client = rig.clients["anna"]
        whole = await whole_of(client)
        for k in range(1, len(whole), 17):
            asked = {**ASKED, "max_tokens": k}
            done = await (await client.generate(PROMPT, seed=7, save_as="s", **asked)).completion()
            assert done.ids == whole[:k]
            await client.states.fork("s", ["a", "b"], keep_randomness=True)
            await client.states.hibernate("a")
            others = [await go_on(client, "a", 500), await go_on(client, "b", 500)]
            assert others == [(whole[k:], "STOP")] * 2
            # What was said since is taken back, within the text.
            before = await client.states.get("s")
            more, _ = await go_on(client, "s", 5)
            await client.states.rollback("s", version=before.version)
            assert await go_on(client, "s", 500) == (whole[k:], "STOP")
            assert more == whole[k : k + 5]
            await client.states.delete("s")
            await client.states.delete("a")
            await client.states.delete("b")


@pytest.mark.parametrize("is_complete", [False, True])
async def test_rolled_back_to_a_position_within_the_answer(
    tmp_path: Path, is_complete: bool
) -> None:
    # Penalties are counted anew after such a rollback.
    plain = {**ASKED, "presence_penalty": 0.0}
    async with rig_running("binary", tmp_path / "store") as rig:
        client = rig.clients["anna"]
        whole = (await (await client.generate(PROMPT, seed=7, **plain)).completion()).ids
        asked = {**plain, "max_tokens": 500 if is_complete else 30}
        await (await client.generate(PROMPT, seed=7, save_as="s", **asked)).completion()
        for k in (21, 8, 1):
            await client.states.rollback("s", position=len(PROMPT) + k)
            await client.states.fork("s", ["t"], keep_randomness=True)
            done = await (await client.generate([], state="t", save_as="t", **plain)).completion()
            assert done.ids == whole[k:]
            await client.states.delete("t")


async def test_moved_while_it_streams(nursery: Nursery, tmp_path: Path) -> None:
    servers = [nursery.start(ask_for(tmp_path, name)) for name in ("one", "two")]
    async with (
        aio.connect(servers[0].address) as one,
        aio.connect(servers[1].address) as two,
    ):
        asked = {**ASKED, "grammar": Grammar("regex", "([ab]{3}c[de]?){150}"), "max_tokens": 9999}
        whole = (await (await one.generate(PROMPT, seed=7, **asked)).completion()).ids
        clients, ids = [one, two], list[int]()
        stream = await one.generate(PROMPT, seed=7, save_as="m0", credit=16, **asked)
        reading = asyncio.create_task(_collect(stream, ids, whole))
        for at in range(3):
            n = len(ids)
            while len(ids) < n + 5:
                assert not reading.done()
                await asyncio.sleep(0.0005)
            source, target = clients[at % 2], clients[(at + 1) % 2]
            there = servers[(at + 1) % 2].address
            await aio.migrate(source.states, f"m{at}", target.states, there, name=f"m{at + 1}")
        await reading
        assert ids == whole
    for server in servers:
        server.kill()


async def _collect(stream: aio.Stream, ids: list[int], whole: list[int]) -> None:
    while some := await stream.read():
        ids += some
        assert ids == whole[: len(ids)]


async def test_side_by_side_with_more_answers_than_slots(tmp_path: Path) -> None:
    async with rig_running("binary", tmp_path / "store", n_slots=2, max_hibernated=64) as rig:
        client = rig.clients["anna"]
        wholes = [await whole_of(client, seed) for seed in range(4)]
        # Those that do not read make room for those that do, in the middle of their texts.
        streams = [
            await client.generate(PROMPT, seed=seed, priority=4 - seed, credit=8, **ASKED)
            for seed in range(4)
        ]
        found = [list[int]() for _ in streams]
        pending = set(range(4))
        while pending:
            for at in sorted(pending):
                some = await streams[at].read()
                found[at] += some
                if not some:
                    pending.discard(at)
                await asyncio.sleep(0)
        assert found == wholes
        assert (await client.stats())["hibernated_total"] > 0


async def test_another_grammar_begins_at_its_own_beginning(tmp_path: Path) -> None:
    async with rig_running("binary", tmp_path / "store") as rig:
        client = rig.clients["anna"]
        asked = {**ASKED, "max_tokens": 12}
        await (await client.generate(PROMPT, seed=7, save_as="s", **asked)).completion()
        asked["grammar"] = Grammar("regex", "[ab]{12}")
        done = await (await client.generate([], state="s", **asked)).completion()
        assert set(text_of(done.ids)) <= set("ab")
