"""SIGTERM: what runs ends or is told so, and everything that was kept is there afterwards."""

import asyncio
from pathlib import Path
from typing import Any

from tests.cli.test_engine_fails import MODEL, TIMEOUT_S, Failing, call, client

ENDLESS = {"max_tokens": 10**5, "ignore_eos": True, "temperature": 0}
TALE = {"model": MODEL, "prompt": "Once", **ENDLESS}


async def test_states_sessions_and_responses_outlive_a_drain_as_they_were_told(
    tmp_path: Path,
) -> None:
    failing = Failing(tmp_path)
    with failing.served("--drain-timeout-s", "2") as server:
        async with client(server.url()) as http:

            async def ask(path: str, **body: Any) -> tuple[int, Any]:
                async with http.post(path, json=body) as response:
                    return response.status, await response.json()

            memory = {**TALE, "max_tokens": 1, "save_as": "memory", "durability": "memory"}
            assert (await ask("/v1/completions", **memory))[1]["state"]["ack"] == "visible"
            await call(http, "POST", "/v1/sessions", {"name": "talk", "text": "Once"})
            response = {"model": MODEL, "input": "Tell a long story.", "temperature": 0}
            behind = await call(http, "POST", "/v1/responses", {**response, "background": True})
            short = asyncio.create_task(
                ask("/v1/completions", **{**TALE, "max_tokens": 12}, save_as="short")
            )
            cut = {
                "cancelled": ask("/v1/completions", **TALE, save_as="cancelled"),
                "kept": ask("/v1/completions", **TALE, save_as="kept", on_disconnect="hibernate"),
                "talk": ask("/v1/sessions/talk/generate", **ENDLESS),
                "whole": ask("/v1/responses", **response),
            }
            waiting = {name: asyncio.create_task(one) for name, one in cut.items()}
            async with asyncio.timeout(TIMEOUT_S):
                while (await running(http)) < 6:  # noqa: ASYNC110  (nothing announces it)
                    await asyncio.sleep(0.01)
            server.process.terminate()
            assert (await short)[1]["state"]["ack"] == "durable"
            for name, one in waiting.items():
                status, told = await one
                if name == "talk":  # a turn is kept as far as it came, and told
                    assert (status, told["state"]["ack"]) == (200, "durable"), told
                else:
                    assert (status, told["error"]["code"]) == (503, "draining"), name
            assert await asyncio.to_thread(server.process.wait, TIMEOUT_S) == 0
    with failing.served() as server:
        async with client(server.url()) as http:
            for name in ("memory", "short", "kept", "talk"):
                state = await call(http, "GET", f"/v1/states/{name}")
                assert state["ack"] == "durable", name
            async with http.get("/v1/states/cancelled") as response_:
                assert response_.status == 404
            kept = await call(http, "GET", f"/v1/responses/{behind['id']}")
            assert (kept["status"], kept["error"]["code"]) == ("failed", "draining")
            assert (await call(http, "GET", "/v1/sessions/talk"))["object"] == "session"
        assert server.end() == 0


async def running(http: Any) -> int:
    """How many requests hold a slot."""
    async with http.get("/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("wkvm_requests_running "):
                return int(float(line.split()[1]))
    return 0
