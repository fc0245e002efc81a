"""Whether the gateway lives, whether it and its engine take requests, and what version runs."""

from typing import Literal, TypeAlias

import msgspec
from aiohttp import web

from wkvm import __version__
from wkvm.gateway.calls import Call, Gateway

MAX_STEP_AGE_S = 5.0
"""An engine whose step takes longer is taken for stuck, and an event loop for late."""

Reason: TypeAlias = Literal[
    "starting",
    "draining",
    "engine_unavailable",
    "engine_stuck",
    "loop_late",
    "out_of_memory",
    "disk_full",
    "store_failed",
]
_REFUSALS: dict[int, Reason] = {1: "disk_full", 2: "store_failed"}
"""By the counter ``store_refuses``."""
_MEMORY_IS_OUT = 2
"""In the counter ``memory_refuses``: 1 is a server that takes less, and still something."""


class Status(msgspec.Struct, omit_defaults=True):
    """Whether it is well; if not, why."""

    status: Literal["ok", "ready", "not ready"]
    reason: Reason | None = None


class Version(msgspec.Struct):
    """What runs."""

    version: str
    engine: str


async def health(call: Call) -> web.Response:
    """GET /health, /ping, /v2/health/live: this process answers."""
    del call
    return _json(Status("ok"))


async def ready(call: Call) -> web.Response:
    """GET /ready, /v2/health/ready: 200 if a request would be taken now, else 503 and why not.

    Within two seconds, whatever the engine does; and at no cost to it that a flood could raise.
    """
    reason = await _why_not_ready(call.gateway)
    if reason is None:
        return _json(Status("ready"))
    return _json(Status("not ready", reason), status=503)


async def version(call: Call) -> web.Response:
    """GET /version."""
    return _json(Version(__version__, call.gateway.engines.info.server))


async def _why_not_ready(gateway: Gateway) -> Reason | None:
    if gateway.is_draining:
        return "draining"
    reading = await gateway.watch.read()
    if not reading.is_up:
        return "engine_unavailable"
    if reading.is_draining:
        return "draining"
    if reading.counters.get("step_age_us", 0) > MAX_STEP_AGE_S * 1e6:
        return "engine_stuck"
    late_us = max(reading.counters.get("loop_lag_us", 0), gateway.lag_s() * 1e6)
    if late_us > MAX_STEP_AGE_S * 1e6:
        return "loop_late"
    if reading.counters.get("memory_refuses", 0) >= _MEMORY_IS_OUT:
        return "out_of_memory"
    return _REFUSALS.get(reading.counters.get("store_refuses", 0))


def _json(body: msgspec.Struct, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        # What was so a moment ago need not be so now.
        headers={"Cache-Control": "no-store"},
    )
