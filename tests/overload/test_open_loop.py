"""Requests that come whether or not those before them are answered, at twice what a server can do.

How much of it is of use is told. That nobody waits in vain, and nothing is left over, is a fact.
"""

import asyncio

import pytest
from wkvm_bench.figures import Streamed
from wkvm_bench.overload import N_SLOTS, SHARES, capacity, run_phase, server

from tests.soak import amount, seed, tell

KNOWN = ("ended: timed_out", "HTTP 408", "error: server_error, timeout")
"""Ends of requests that were taken and whose time was over; within a stream over HTTP, an event."""
LATE = ("RequestTimeoutError", "timeout")
"""Ends that clients saw by themselves, long after the time: of a machine that is out of its own."""


@pytest.mark.parametrize("door", ["binary", "HTTP"])
async def test_at_twice_the_capacity_everybody_is_told_at_once_and_nothing_is_left(
    door: str,
) -> None:
    seconds, n_out = amount(1, 150), 24
    async with server(flags=("--max-queue", "64")) as doors:
        pace = await capacity(doors, door, n_out, 2)
        phase = await run_phase(doors, door, 2.0, pace, n_out=n_out, seconds=seconds, seed=seed())
        sent = [one for of_one in phase.sent.values() for one in of_one]
        refused = phase.refused
        assert sent
        assert all(one.error is None or is_known(one) for one in sent if one not in refused)
        assert all(one.retry_after_s for one in refused)
        assert phase.most_queued <= 2 * 64 + N_SLOTS
        while (stats := await doors.lanes.stats())["n_running"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert stats["n_queued"] == 0
        assert stats["n_free_slots"] == N_SLOTS
    tell(
        9,
        f"open loop at twice the capacity, {door}",
        seconds,
        "seconds",
        requests=len(sent),
        refused=len(refused),
        told_late=sum(one.error in LATE for one in sent),
        ids_per_s_of_use=phase.goodput(),
        ids_per_s_alone=pace.per_s * n_out,
        share_of_use=phase.share_of_use,
        **{f"served_{who}": phase.share_served(who) for who in SHARES},
    )


def is_known(one: Streamed) -> bool:
    return one.error is not None and one.error.startswith(KNOWN + LATE)
