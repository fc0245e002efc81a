"""Requests of any kind to all routes: none is answered by a failure, and errors are typed."""

import asyncio
import logging
import random
import time
from itertools import islice
from typing import Any

import aiohttp

from tests.hostile.requests import Maker, Request
from tests.hostile.watch import Errors
from tests.soak import amount, seed, tell
from tests.threats.world import FULL, Answer, world_running

AT_ONCE = 4
MAX_MODEL_LEN = 256
"""So that no answer is long."""
N_KEPT = 500
CHECK_EVERY = 50


def fault_of(request: Request, answer: Answer) -> str | None:
    """What is wrong with an answer, whatever was asked."""
    asked = f"{request.route.method} {request.path[:100]} ({request.what}): {answer}"
    if answer.status >= 500 and answer.status not in FULL:
        return f"a failure of the server: {asked}"
    if isinstance(answer.body, str) and "internal error" in answer.body:
        return f"a failure of the server, within a stream: {asked}"
    if answer.status >= 400 and request.route.method != "HEAD" and not is_typed(answer.body):
        return f"an error without a type: {asked}"
    return None


def is_typed(body: Any) -> bool:
    """Whether an error says what it is, in any of the dialects."""
    error = body.get("error") if isinstance(body, dict) else None
    # Health says in one word what is wrong.
    if isinstance(body, dict) and isinstance(body.get("status"), str):
        return True
    return isinstance(error, dict) and bool(error.get("type")) and bool(error.get("message"))


async def test_no_request_is_answered_by_a_failure_or_an_error_without_a_type() -> None:
    n, handler = amount(600, 10_000), Errors()
    faults, statuses = list[str](), dict[int, int]()
    n_done, longest_s, slowest = 0, 0.0, ""
    logging.getLogger().addHandler(handler)
    try:
        async with world_running(max_model_len=MAX_MODEL_LEN, n_kept=N_KEPT) as world:
            made = islice(Maker(world, random.Random(seed())).requests(), n)

            async def go_on() -> None:
                nonlocal n_done, longest_s, slowest
                for request in made:
                    began = time.perf_counter()
                    try:
                        answer = await world.ask(
                            request.route.method,
                            request.path,
                            data=request.data,
                            headers=request.headers,
                        )
                    except (TimeoutError, aiohttp.ClientError) as error:
                        faults.append(f"{request}: {error!r}")
                        continue
                    took_s = time.perf_counter() - began
                    if took_s > longest_s:
                        longest_s, slowest = took_s, f"{request.path}: {request.what}"[:200]
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1
                    n_done += 1
                    if (fault := fault_of(request, answer)) is not None:
                        faults.append(fault)
                    if n_done % CHECK_EVERY == 0:
                        await world.fill()

            async def control() -> None:
                while True:
                    await world.check()
                    await asyncio.sleep(0.02)

            controlling = asyncio.create_task(control())
            try:
                await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
            finally:
                controlling.cancel()
                await asyncio.wait([controlling])
            assert controlling.cancelled(), controlling.exception()
            n_checked = world.n_checked
    finally:
        logging.getLogger().removeHandler(handler)
    assert faults == []
    assert handler.lines == []
    assert statuses.get(400, 0) > n // 10
    assert statuses.get(200, 0) > n // 20
    tell(
        7,
        "requests of any kind to all routes",
        n_done,
        "requests",
        controls=n_checked,
        longest_ms=round(1000 * longest_s),
        slowest=slowest,
        statuses=" ".join(f"{status}:{count}" for status, count in sorted(statuses.items())),
    )
