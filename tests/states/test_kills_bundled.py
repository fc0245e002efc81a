"""The bundled model through kills: every version has the bits of the one that nothing disturbed."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import aio

from tests.states.binary_door import BinaryDoor
from tests.states.doors import Door, Gone, Refused
from tests.states.nursery import Ask, Nursery

N_SESSIONS = 32
N_TURNS = 3
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.4, "frequency_penalty": 0.2}


def turns_of(at: int) -> list[tuple[list[int], int, dict[str, Any]]]:
    """What a session asks for: prompts, counts and sampling. Every other one is greedy."""
    rng = random.Random(at)
    turns = list[tuple[list[int], int, dict[str, Any]]]()
    for turn in range(N_TURNS):
        # With an empty prompt a turn goes on with the answer of the one before.
        length = rng.choice([1, 3, 9]) if turn == 0 else rng.choice([0, 0, 5, 17])
        how = dict(SAMPLED) if at % 2 else {"temperature": 0.0}
        if turn == 0:
            how["seed"] = at
        turns.append((rng.choices(range(100, 4000), k=length), rng.randint(2, 5), how))
    return turns


async def go_on(door: Door, at: int, n_done: list[int]) -> None:
    """Play a session from where it is to its end, and count the turns in ``n_done``."""
    name = f"session-{at}"
    try:
        head = (await door.get(name)).version
    except Refused:
        head = 0
    for turn, (prompt, n, how) in enumerate(turns_of(at)):
        if turn < head:
            continue
        state = name if turn else ""
        told = await door.generate(
            prompt, n, state=state, save_as=name, expected_version=turn, ignore_eos=True, **how
        )
        assert (told.version, told.ack) == (turn + 1, "durable")
        n_done[0] += 1


async def play(address: str, sessions: Sequence[int], n_done: list[int]) -> bool:
    """Play sessions side by side; whether they came to their ends."""
    async with aio.connect(address, reconnect=False) as client:
        door = BinaryDoor(client)
        with suppress(Gone):
            await asyncio.gather(*(go_on(door, at, n_done) for at in sessions))
            return True
    return False


async def contents(address: str) -> dict[str, tuple[str, int]]:
    """By version, the hash of its bytes and how many tokens it has."""
    async with aio.connect(address, reconnect=False) as client:
        door = BinaryDoor(client)
        refs = [f"session-{at}@{v + 1}" for at in range(N_SESSIONS) for v in range(N_TURNS)]
        known = [await door.get(ref) for ref in refs]
    return {ref: (one.content_id, one.n_tokens) for ref, one in zip(refs, known, strict=True)}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


def ask_for(folder: Path, name: str, device: str = "cpu") -> Ask:
    return Ask(
        uds=str(folder / f"{name}.sock"),
        folder=str(folder / name),
        model="bundled",
        engine={"n_slots": 32, "deterministic": True, "device": device},
    )


async def play_through_kills(
    nursery: Nursery, folder: Path, *, n_most: int, seed: int, device: str = "cpu"
) -> int:
    """Play all sessions through ``n_most`` kills, hold what is there to an undisturbed run.

    Returns:
        How often the server was killed.
    """
    rng, n_kills, is_over = random.Random(seed), 0, False
    ask = ask_for(folder, "killed", device)
    while not is_over:
        server = nursery.start(ask)
        n_done = [0]
        playing = asyncio.create_task(play(server.address, range(N_SESSIONS), n_done))
        if n_kills < n_most:
            n_wanted = rng.randint(2, 12)
            while n_done[0] < n_wanted and not playing.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if not playing.done():
                server.kill()
                n_kills += 1
        is_over = await playing
    assert n_kills, "all was over before the first kill"
    killed = await contents(server.address)
    server.kill()
    server = nursery.start(ask)
    assert await contents(server.address) == killed
    server.kill()
    undisturbed = nursery.start(ask_for(folder, "undisturbed", device))
    assert await play(undisturbed.address, range(N_SESSIONS), [0])
    assert await contents(undisturbed.address) == killed
    undisturbed.kill()
    return n_kills + 2


@pytest.mark.long
async def test_32_sessions_through_kills_end_with_the_bits_of_undisturbed_ones(
    nursery: Nursery, tmp_path: Path
) -> None:
    await play_through_kills(nursery, tmp_path, n_most=4, seed=5)
