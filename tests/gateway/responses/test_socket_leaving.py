"""A connection that ends while a response does leaves no state behind, wherever that is."""

import asyncio
from pathlib import Path

from tests.gateway.harness import TIMEOUT_S
from tests.gateway.responses.sockets import joined, n_states, serving


async def test_whoever_leaves_at_any_event_leaves_no_state(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        for n_events in range(1, 17):
            async with joined(running) as peer:
                await peer.say()
                for _ in range(n_events):
                    await peer.hear()
                response = peer.socket._response
                response.close()
            async with asyncio.timeout(TIMEOUT_S):
                while running.door.n_requests:
                    await n_states(running)
                await running.gateway.responses.over()
            assert await n_states(running) == 0, n_events
