"""What a tenant does in one session, drawn at random, and what has to come of each of its steps.

Over the hash model what comes of a step is known without a server (``HashOracle``). Over another
model nothing is known beforehand: a session notes what came, and the same session, run alone on a
server of its own, is what it is held to. All that is random in a session follows from its seed and
from nothing that it is told.
"""

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pytest
from wkvm_client import aio

from tests.fakes import hidden_of, state_of
from tests.hash_model import HashLog
from tests.isolation.world import N_BYTES, World
from tests.states.binary_door import BinaryDoor
from tests.states.doors import Door, Refused
from wkvm.state.image import pack_ids

KINDS = ("binary", "binary", "http", "websocket")


class Oracle(Protocol):
    """Tells what has to come."""

    def continuation(self, ids: Sequence[int], n: int) -> list[int]:
        """The greedy ids after ``ids``."""
        ...

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Of each id but the first, after those before it."""
        ...

    def hidden(self, ids: Sequence[int]) -> float:
        """The hidden state after all of them."""
        ...


class HashOracle:
    """Of the hash model over bytes."""

    def continuation(self, ids: Sequence[int], n: int) -> list[int]:
        return HashLog(ids, N_BYTES).generate(n)

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        log, found = HashLog(ids[:1], N_BYTES), list[float]()
        for token_id in ids[1:]:
            logits = log.logits()
            found.append(logits[token_id] - math.log(sum(map(math.exp, logits))))
            log.feed([token_id])
        return found

    def hidden(self, ids: Sequence[int]) -> float:
        return hidden_of(state_of(ids))


def canary_of(tenant: str, vocabulary: Sequence[int]) -> tuple[int, ...]:
    """Twelve ids that a tenant's prompts have, and nobody else's."""
    return tuple(random.Random(f"canary of {tenant}").choices(vocabulary, k=12))


@dataclass
class Session:
    """One of them.

    Args:
        world: where.
        tenant: whose.
        seed: that says what is done.
        vocabulary: ids of prompts.
        oracle: of a model that is known; None notes what came in ``seen`` alone.
        known: requests of which it was seen what comes of them on an idle server.

    Attributes:
        own: by name and version, all ids of a state that has to be there.
        seen: what came, step by step.
    """

    world: World
    tenant: str
    seed: str
    vocabulary: Sequence[int]
    oracle: Oracle | None = None
    known: Sequence["Known"] = ()
    own: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict[str, Any])
    seen: list[Any] = field(default_factory=list[Any])
    n_steps: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.chance = random.Random(f"chance {self.seed}")  # where it matters who else is there
        self.name = f"s-{self.seed}"
        self.canary = canary_of(self.tenant, self.vocabulary)

    # --- its steps ------------------------------------------------------------------------

    async def run(self, n_steps: int, *, stays: bool = False) -> None:
        """Begin, take so many steps, and delete all that it has made unless it ``stays``."""
        await self.begin()
        for _ in range(n_steps):
            step = self.rng.choice(STEPS if self.oracle is not None else STEPS_OF_ALL)
            if self.known and self.rng.random() < 0.2:
                await self.rng.choice(self.known).again(self.tenant)
            else:
                await step(self)
            self.n_steps += 1
        if not stays:
            await self.end()

    async def begin(self) -> None:
        """Make a state: by absorbing, or by a request that is kept."""
        prompt = self.prompt()
        if self.rng.random() < 0.5:
            made = await self.door().create(self.name, prompt)
            assert made.n_tokens == len(prompt)
            self.own[self.name] = {made.version: prompt}
        else:
            await self.turn(prompt, save_as=self.name)

    async def end(self) -> None:
        """Look at one of its states once more, now and then, and delete them all."""
        if not self.own:
            return
        name = self.rng.choice(list(self.own))
        if self.rng.random() < 0.5:
            await self.look(name)
        for one in self.own:
            await self.door().delete(one)
        self.own.clear()
        with pytest.raises(Refused, match="STATE_NOT_FOUND"):
            await self.turn_of_nothing(name)

    async def turn_of_nothing(self, name: str) -> None:
        """Ask for a state that is not there, one way or another."""
        door = self.door()
        if self.rng.random() < 0.5:
            await door.get(name)
        else:
            await door.generate([], 1, state=name)

    async def look(self, name: str) -> None:
        """The head is what it has to be, by what comes after it."""
        version = max(self.own[name])
        known = await self.door().get(name)
        assert (known.version, known.n_tokens) == (version, len(self.own[name][version]))
        await self.turn((), state=name)

    async def turn(
        self, prompt: Sequence[int], *, state: str = "", save_as: str = "", n: int | None = None
    ) -> list[int]:
        """Generate, and check what came; the ids."""
        n = self.rng.randint(1, 6) if n is None else n
        name, _, digits = state.partition("@")
        before = self.own[name][int(digits or max(self.own[name]))] if state else ()
        durability = self.rng.choice([None, "memory", "memory", "memory"])
        done = await self.door().generate(
            prompt, n, state=state, save_as=save_as, durability=durability, ignore_eos=True
        )
        self.came(done.ids, (*before, *prompt), n)
        if state:
            assert done.cached_tokens == len(before) - 1
        if save_as:
            versions = self.own.setdefault(save_as, {})
            assert done.version > max(versions, default=0)
            versions[done.version] = (*before, *prompt, *done.ids)
        return done.ids

    def came(self, ids: Sequence[int], after: Sequence[int], n: int) -> None:
        """Check ids that came of ``n`` that were asked for."""
        self.seen.append(list(ids))
        assert len(ids) == n
        if self.oracle is not None:
            assert list(ids) == self.oracle.continuation(after, n)

    # --- what it draws --------------------------------------------------------------------

    def door(self) -> Door:
        """Any of the tenant's."""
        return self.world.door(self.tenant, self.rng.choice(KINDS))

    def client(self) -> aio.Client:
        """Of the binary protocol, over one of its doors."""
        door = self.world.door(self.tenant, self.rng.choice(("binary", "websocket")))
        assert isinstance(door, BinaryDoor)
        return door.client

    def prompt(self) -> tuple[int, ...]:
        """The canary among other ids; every other one begins as those of all tenants do."""
        ids = self.rng.choices(self.vocabulary, k=self.rng.choice((1, 2, 5, 20, 63, 64, 65)))
        at = self.rng.randint(0, len(ids))
        common = self.vocabulary[:80] if self.rng.random() < 0.3 else ()
        return (*common, *ids[:at], *self.canary, *ids[at:])

    def any_ref(self) -> str:
        """One of the versions that are there."""
        name = self.rng.choice(list(self.own))
        version = self.rng.choice(list(self.own[name]))
        return f"{name}@{version}"

    def new_name(self) -> str:
        return f"{self.name}-{len(self.own)}.{self.rng.randrange(10**6)}"

    def ids_of(self, ref: str) -> tuple[int, ...]:
        name, _, version = ref.partition("@")
        return self.own[name][int(version)]


# --- steps --------------------------------------------------------------------------------


async def _go_on(one: Session) -> None:
    name = one.rng.choice(list(one.own))
    await one.turn(one.prompt(), state=name, save_as=name)


async def _glance(one: Session) -> None:
    await one.turn(one.prompt(), state=one.any_ref())


async def _afresh(one: Session) -> None:
    await one.turn(one.prompt())


async def _fork(one: Session) -> None:
    ref = one.any_ref()
    names = [one.new_name() for _ in range(one.rng.randint(1, 2))]
    made = await one.door().fork(ref, names)
    for known in made:
        one.own[known.name] = {known.version: one.ids_of(ref)}
    n_seen = len(one.seen)
    await asyncio.gather(*(one.turn([], state=name, save_as=name, n=3) for name in names))
    one.seen[n_seen:] = sorted(one.seen[n_seen:])  # whichever ended first


async def _hibernate(one: Session) -> None:
    name = one.rng.choice(list(one.own))
    await one.door().hibernate(name)
    if one.rng.random() < 0.5:
        await one.door().resume(name)
    await one.look(name)


async def _roll_back(one: Session) -> None:
    name = one.rng.choice(list(one.own))
    version = one.rng.choice(list(one.own[name]))
    known = await one.door().rollback(name, version=version)
    one.own[name][known.version] = one.own[name][version]
    await one.look(name)


async def _mutate(one: Session) -> None:
    ref, name = one.any_ref(), one.new_name()
    known = await one.door().mutate([ref], "decay", name, factor=1.0)
    one.own[name] = {known.version: one.ids_of(ref)}
    await one.look(name)


async def _move_bytes(one: Session) -> None:
    ref, name = one.any_ref(), one.new_name()
    data = await one.door().export(ref)
    assert pack_ids(one.ids_of(ref)[:-1]) in data
    for other in one.world.tenants:
        if other != one.tenant:
            assert pack_ids(canary_of(other, one.vocabulary)) not in data, other
    known = await one.door().importing(name, data)
    one.own[name] = {known.version: one.ids_of(ref)}
    await one.look(name)
    assert but_history(await one.door().export(name)) == but_history(data)


async def _cancel(one: Session) -> None:
    prompt, ref = one.prompt(), one.any_ref()
    whole = await one.turn(prompt, state=ref, n=24)
    stream = await one.client().generate(
        prompt, state=ref, max_tokens=24, temperature=0.0, ignore_eos=True
    )
    ids = await stream.read()
    stream.cancel()
    done = await stream.completion()
    assert whole[: len(done.ids)] == list(done.ids)
    assert whole[: len(ids)] == ids


async def _probe(one: Session) -> None:
    """Another tenant's states, by the names that its sessions have."""
    others = [tenant for tenant in one.world.tenants if tenant != one.tenant]
    handles = await one.world.door(one.chance.choice(others), "binary").handles("s-")
    door = one.world.door(one.tenant, one.chance.choice(KINDS))
    assert {known.name for known in await door.handles(one.name)} == set(one.own)
    if not handles:
        return
    name = one.chance.choice(handles).name
    for ask in (door.get, door.export, door.delete, partial(door.generate, [], 1, state=name)):
        with pytest.raises(Refused, match="STATE_NOT_FOUND"):
            await (ask() if isinstance(ask, partial) else ask(name))


async def _choices(one: Session) -> None:
    prompt, n = one.prompt(), one.rng.randint(2, 4)
    stream = await one.client().generate(
        prompt, n=n, max_tokens=4, temperature=0.0, ignore_eos=True
    )
    for done in await stream.completions():
        one.came(done.ids, prompt, 4)


async def _score(one: Session) -> None:
    prompt = one.prompt()
    if one.rng.random() < 0.5:
        scores = [each.logprob for each in await one.client().score(prompt)]
    else:
        body = {"ids": list(prompt)}
        status, told = await one.world.post(one.tenant, "/v1/score", body)
        assert status == 200, told
        scores = [each["logprob"] for each in told["logprobs"]]
    one.seen.append([round(score, 2) for score in scores])
    if one.oracle is not None:
        assert scores == pytest.approx(one.oracle.logprobs(prompt), abs=1e-3)


async def _embed(one: Session) -> None:
    prompt = one.prompt()
    vector = await one.client().embed(prompt)
    one.seen.append([round(number, 2) for number in vector])
    if one.oracle is not None:
        assert vector == pytest.approx([one.oracle.hidden(prompt)])


Step = Callable[[Session], Awaitable[None]]
STEPS_OF_ALL: tuple[Step, ...] = (
    _go_on,
    _go_on,
    _glance,
    _afresh,
    _fork,
    _hibernate,
    _roll_back,
    _move_bytes,
    _cancel,
    _probe,
    _choices,
    _score,
    _embed,
)
STEPS: tuple[Step, ...] = (*STEPS_OF_ALL, _mutate)


def but_history(data: bytes) -> tuple[Any, bytes]:
    """A file of a state without what it says of how the state came to be: its header, its data."""
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n_header])
    for name in ("wkvm.history", "wkvm.digest"):  # the digest is of the header, too
        del header["__metadata__"][name]
    return header, data[8 + n_header :]


# --- what is known from an idle server ------------------------------------------------------


@dataclass
class Known:
    """A request, and what came of it when nothing else ran.

    Args:
        ask: asks it for a tenant; what comes is compared.
    """

    ask: Callable[[str], Awaitable[Any]]
    answer: Any = None

    async def alone(self, tenant: str) -> "Known":
        """Ask it for the first time."""
        self.answer = await self.ask(tenant)
        return self

    async def again(self, tenant: str) -> None:
        """Whoever asks, beside whatever else, gets the same."""
        assert await self.ask(tenant) == self.answer


async def known_requests(world: World, tenant: str, seed: int) -> list[Known]:
    """Requests with random numbers, penalties, grammars, several choices; chats, responses."""
    rng = random.Random(f"known {seed}")
    return [await Known(ask).alone(tenant) for ask in _asks(world, rng)]


def _asks(world: World, rng: random.Random) -> list[Callable[[str], Awaitable[Any]]]:
    def text() -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 30)))

    def asking(path: str, body: dict[str, Any]) -> Callable[[str], Awaitable[Any]]:
        async def ask(tenant: str) -> Any:
            status, answer = await world.post(tenant, path, {"model": "tales"} | body)
            assert status == 200, answer
            return [_essence(one) for one in answer["choices"]]

        return ask

    def responding(first: str, second: str) -> Callable[[str], Awaitable[Any]]:
        async def ask(tenant: str) -> Any:
            body: dict[str, Any] = {"model": "tales", "max_output_tokens": 8, "temperature": 0}
            found, previous = list[Any](), None
            for said in (first, second):
                more = body | {"input": said, "previous_response_id": previous}
                status, answer = await world.post(tenant, "/v1/responses", more)
                assert status == 200, answer
                previous = answer["id"]
                found.append([item["content"][0]["text"] for item in answer["output"]])
                found.append(answer["usage"]["total_tokens"])
            return found

        return ask

    sampled: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5}
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
    return [
        *(
            asking(
                "/v1/completions",
                sampled | {"prompt": text(), "max_tokens": 8, "seed": number, "n": 1 + number % 3},
            )
            for number in range(6)
        ),
        *(
            asking(
                "/v1/completions",
                {
                    "prompt": text(),
                    "max_tokens": 40,
                    "temperature": 0,
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "a", "schema": schema},
                    },
                },
            )
            for _ in range(3)
        ),
        *(
            asking(
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": text()}], "max_tokens": 6}
                | {"temperature": 0, "logprobs": True, "top_logprobs": 2},
            )
            for _ in range(3)
        ),
        *(responding(text(), text()) for _ in range(4)),
    ]


WORDS = ("sun", "fox", "tale", "of", "a", "the", "river", "42", "Why?", "once", "and", "more")


def _essence(choice: Any) -> Any:
    """A choice without what a clock or a name has in it."""
    return {name: value for name, value in choice.items() if name != "id"}
