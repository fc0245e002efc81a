"""Prompts of one tenant spare another nothing: by the tokens that are computed, and by time."""

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.isolation.world import World, world_running
from tests.soak import amount, seed, tell

TEXT = "Once upon a time there was a fox. " * 12
"""408 ids, which are bytes here."""
IDS = list(TEXT.encode())
CHAT = [{"role": "user", "content": TEXT}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/generate": {"ids": IDS, "max_tokens": 2},
    "/v1/stream": {"ids": IDS, "max_tokens": 2},
    "/v1/submit": {"ids": IDS, "max_tokens": 2},
    "/v1/completions": {"model": "tales", "prompt": TEXT, "max_tokens": 2},
    "/v1/chat/completions": {"model": "tales", "messages": CHAT, "max_tokens": 2},
    "/v1/messages": {"model": "tales", "messages": CHAT, "max_tokens": 2},
    "/v1/responses": {"model": "tales", "input": TEXT, "max_output_tokens": 2, "store": False},
    "/completion": {"prompt": TEXT, "n_predict": 2},
    "/generate": {"text": TEXT, "sampling_params": {"max_new_tokens": 2}},
}


async def computed(world: World) -> int:
    """Tokens of prompts that the engine has computed so far."""
    return int((await world.clients["anna"].stats())["prompt_tokens_total"])


async def asked(world: World, tenant: str, path: str, body: Mapping[str, Any]) -> int:
    """Ask; how many tokens of prompts were computed for it."""
    before = await computed(world)
    async with world.http.post(path, json=body, headers=world.headers(tenant)) as response:
        told = await response.read()
        assert response.status in (200, 202), told
    await world.at_rest()
    return await computed(world) - before


@pytest.mark.parametrize("path", list(REQUESTS))
async def test_what_one_tenant_has_asked_is_computed_in_full_for_another(
    tmp_path: Path, path: str
) -> None:
    async with world_running(tmp_path, has_websockets=False) as world:
        first = await asked(world, "anna", path, REQUESTS[path])
        again = await asked(world, "anna", path, REQUESTS[path])
        foreign = await asked(world, "bert", path, REQUESTS[path])
        assert first >= len(IDS)
        assert again < 70
        assert foreign == first


async def test_nothing_is_spared_while_the_others_prompt_is_being_computed(tmp_path: Path) -> None:
    """One that is under way is waited for by its own tenant alone."""
    async with world_running(tmp_path, has_websockets=False, max_num_batched_tokens=64) as world:
        body = {"ids": IDS, "max_tokens": 2, "ignore_eos": True}
        answers = await asyncio.gather(
            *(world.post(tenant, "/v1/generate", body) for tenant in ("anna", "bert") * 3)
        )
        spared = [told["usage"].get("n_cached", 0) for _, told in answers]
        assert spared.count(0) >= 2
        assert await computed(world) >= 2 * len(IDS)


async def test_what_a_tenant_is_spared_does_not_depend_on_anybody_else(tmp_path: Path) -> None:
    """The same requests, alone and beside those of others who ask for the same: equal counts."""
    rng, n = random.Random(seed()), amount(16, 300)
    script = [_prompt(rng) for _ in range(n)]
    counts = list[list[int]]()
    for others in ((), ("anna", "carl")):
        async with world_running(
            tmp_path / str(len(others)), tenants=("anna", "bert", "carl"), has_websockets=False
        ) as world:
            noise, found = random.Random(7), list[int]()
            for ids in script:
                if others:
                    await _spared(world, noise.choice(others), noise.choice([ids, _prompt(noise)]))
                found.append(await _spared(world, "bert", ids))
            counts.append(found)
    assert counts[0] == counts[1]
    assert any(counts[0])
    tell(11, "prompts of one tenant beside those of others", n, "prompts")


def _prompt(rng: random.Random) -> list[int]:
    """Some that begin alike, cut and continued anywhere."""
    start = random.Random(rng.randrange(3)).choices(range(1, 200), k=320)
    return start[: rng.choice((64, 100, 192, 320))] + rng.choices(
        range(1, 200), k=rng.randint(1, 9)
    )


async def _spared(world: World, tenant: str, ids: list[int]) -> int:
    stream = await world.clients[tenant].generate(ids, max_tokens=1, ignore_eos=True)
    return (await stream.completion()).n_reused


async def test_how_well_time_tells_what_another_has_asked_is_told(tmp_path: Path) -> None:
    """A figure: the probability that a prompt which another tenant had takes less time, 0.5 if
    nothing can be told."""
    rng, n = random.Random(seed()), amount(12, 2000)
    times: dict[bool, list[float]] = {True: [], False: []}
    async with world_running(tmp_path, has_websockets=False) as world:
        for _ in range(n):
            ids, was_asked = rng.choices(range(1, 250), k=200), rng.random() < 0.5
            other = ids if was_asked else rng.choices(range(1, 250), k=200)
            await _spared(world, "anna", other)
            began_at = time.perf_counter()
            assert await _spared(world, "bert", ids) == 0
            times[was_asked].append(time.perf_counter() - began_at)
    hits, misses = np.array(times[True]), np.array(times[False])
    below = (hits[:, None] < misses[None]).mean() if len(hits) and len(misses) else 0.5
    tell(11, "prompts that another tenant may have asked", n, "prompts", auc=round(float(below), 3))
