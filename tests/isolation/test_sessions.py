"""Sessions of many tenants at once, in any order and company: each gets what it gets alone."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.conftest import BUNDLED
from tests.engine.families import CONFIGS, VOCAB, decoder_of
from tests.isolation.sessions import HashOracle, Session, known_requests
from tests.isolation.world import BytesModel, world_running
from tests.soak import amount, seed, tell
from wkvm.core.layout import PAGE_TOKENS
from wkvm.models.base import Model
from wkvm.models.registry import load_model

TENANTS = ("anna", "bert", "carl", "dora")
VOCABULARY = tuple(range(1, 250))
SIZES = (5, 33, 1, 64, 2, 16)
"""How many rows a step may have."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that can be: what a disk promises is shown elsewhere."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """What torch hands out unwritten is NaN, or the largest integer: host memory too."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("has_guest", [False, True], ids=["records", "pages"])
async def test_every_session_gets_what_it_gets_alone(folder: Path, has_guest: bool) -> None:
    rng, n_left, n_steps = random.Random(seed()), amount(30, 2400 if not has_guest else 800), 0
    n_all = n_left
    while n_left > 0:
        n_slots = SIZES[((n_all - n_left) // amount(15, 400) + 2 * seed()) % len(SIZES)]
        n_here = min(n_left, amount(15, 400))
        n_steps += await _many(folder / str(n_left), rng, n_slots, n_here, has_guest)
        n_left -= n_here
    tell(11, "sessions of tenants side by side", n_all, "sessions", n_steps=n_steps)


@pytest.mark.parametrize("model_type", ["rwkv7", *CONFIGS])
async def test_every_session_over_a_real_family_gets_what_it_gets_alone(
    folder: Path, model_type: str
) -> None:
    """What comes alone is asked of a server that does nothing else, one session after another.

    Deterministic, so that what another row does to it shows, and is no tie that rounding broke.
    """
    rng, n_sessions = random.Random(f"{model_type} {seed()}"), amount(2, 6)
    model, n_slots = model_of(model_type), rng.choice(SIZES[1:])
    names = [
        f"{rng.choice(TENANTS)}.{number}.{rng.randrange(10**9)}" for number in range(n_sessions)
    ]
    lengths = [rng.randint(1, 4) for _ in names]
    seen = list[list[Session]]()
    for n_at_once in (1, n_sessions):
        place = folder / str(n_at_once)
        async with world_running(
            place,
            model,
            tenants=TENANTS,
            n_slots=n_slots,
            guest_tokens=guest_tokens(model),
            deterministic=True,
        ) as world:
            sessions = [Session(world, one.partition(".")[0], one, VOCAB) for one in names]
            if n_at_once == 1:
                for one, n_steps in zip(sessions, lengths, strict=True):
                    await one.run(n_steps)
            else:
                await asyncio.gather(*map(Session.run, sessions, lengths))
            await world.at_rest()
        seen.append(sessions)
    alone, together = seen
    for one, other in zip(alone, together, strict=True):
        assert one.seen == other.seen
    tell(11, "sessions of tenants over real families", n_sessions, "sessions", family=model_type)


def model_of(model_type: str) -> Model:
    """RWKV-7 is the bundled one; the others are small and random."""
    if model_type == "rwkv7":
        return load_model(BUNDLED, device="cpu", dtype="float32")
    return decoder_of(model_type)


def guest_tokens(model: Model) -> int | None:
    """Pages for all sessions at once, where the model has any."""
    return None if model.layout.guest is None else 400 * PAGE_TOKENS


async def _many(
    folder: Path, rng: random.Random, n_slots: int, n_sessions: int, has_guest: bool
) -> int:
    """Run sessions side by side on one server; how many steps they took."""
    settings: dict[str, Any] = (
        {"guest_tokens": (2 * n_slots + 24) * PAGE_TOKENS} if has_guest else {}
    )
    async with world_running(
        folder,
        BytesModel(has_guest=has_guest),
        tenants=TENANTS,
        states={"host_bytes": 64 * 1024},
        n_slots=n_slots,
        max_num_batched_tokens=rng.choice([16, 64, 256, 2048]),
        **settings,
    ) as world:
        known = await known_requests(world, TENANTS[0], rng.randrange(10**6))
        sessions = [
            Session(
                world,
                tenant := rng.choice(TENANTS),
                f"{tenant}.{number}.{rng.randrange(10**9)}",
                VOCABULARY,
                HashOracle(),
                known,
            )
            for number in range(n_sessions)
        ]
        await side_by_side(sessions, rng, n_at_once=rng.choice([2, 8, 16, 40]))
        for one in sessions:  # those that stayed, after all that came and went beside them
            await one.end()
        await world.at_rest()
    return sum(one.n_steps for one in sessions)


async def side_by_side(sessions: list[Session], rng: random.Random, n_at_once: int) -> None:
    """Run sessions, so many at once. What goes wrong in one ends all."""
    waiting = iter([(one, rng.choice((1, 1, 1, 2, 4)), rng.random() < 0.2) for one in sessions])

    async def work() -> None:
        for one, n_steps, stays in waiting:
            await one.run(n_steps, stays=stays)

    async with asyncio.TaskGroup() as group:
        for _ in range(n_at_once):
            group.create_task(work())
