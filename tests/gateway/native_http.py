"""Requests to the native routes."""

from typing import Any

from tests.gateway.harness import Running

LONG = {"ids": [1, 2], "temperature": 0, "max_tokens": 100_000, "ignore_eos": True}
"""Does not end by itself while a test runs."""


async def post(running: Running, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    async with running.http.post(path, json=body, headers=headers) as response:
        return response.status, await response.json()
