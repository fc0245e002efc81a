"""Responses of a real server: over its death, and by several processes of one port."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.conftest import KEY, RunningServer, running_server

MODEL = "rwkv7-tinystories"
SUN = "What is the sun?"
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 16}


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[RunningServer, httpx2.Client]]:
    settings = ("--slots", "4", "--seed", "1", *arguments)
    with running_server(folder, *settings, http="0") as server:
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx2.Client(base_url=f"{server.url()}/v1", headers=headers, timeout=60) as client:
            yield server, client


@pytest.mark.slow
def test_responses_survive_a_server_that_is_killed(tmp_path: Path) -> None:
    state_dir = tmp_path / "states"
    with serving(tmp_path, "--state-dir", str(state_dir)) as (server, client):
        first = client.post("/responses", json={**ASKED, "input": SUN}).json()
        talk = client.post("/conversations", json={}).json()
        body = {**ASKED, "input": SUN, "conversation": talk["id"], "background": True}
        endless = {**body, "ignore_eos": True, "max_output_tokens": 1_000_000}
        running = client.post("/responses", json=endless).json()
        assert running["status"] == "queued"
        assert (state_dir / "responses" / "responses.db").is_file()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    (tmp_path / "wkvm.sock").unlink(missing_ok=True)
    with serving(tmp_path, "--state-dir", str(state_dir)) as (server, client):
        assert client.get(f"/responses/{first['id']}").json() == first
        found = client.get(f"/responses/{running['id']}").json()
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        more = client.post(
            "/responses", json={**ASKED, "input": "Why?", "previous_response_id": first["id"]}
        ).json()
        cached = more["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached > first["usage"]["input_tokens"]
        free = client.post("/responses", json={**ASKED, "input": SUN, "conversation": talk["id"]})
        assert free.status_code == 200
        assert server.end() == 0


@pytest.mark.slow
def test_several_processes_of_a_port_are_one_server(tmp_path: Path) -> None:
    with serving(tmp_path, "--gateway-workers", "2") as (server, client):
        headers, url = dict(client.headers), str(client.base_url)
        made = client.post("/responses", json={**ASKED, "input": SUN}).json()
        asked = {**ASKED, "input": SUN, "background": True, "ignore_eos": True}
        running = client.post("/responses", json={**asked, "max_output_tokens": 100_000}).json()
        for _ in range(8):  # the kernel spreads connections
            with httpx2.Client(base_url=url, headers=headers, timeout=60) as other:
                assert other.get(f"/responses/{made['id']}").json() == made
                body = {**ASKED, "input": "Why?", "previous_response_id": made["id"]}
                more = other.post("/responses", json=body).json()
                assert more["usage"]["input_tokens_details"]["cached_tokens"] > 0
                found = other.get(f"/responses/{running['id']}").json()
                assert found["status"] == "in_progress"
        with httpx2.Client(base_url=url, headers=headers, timeout=60) as other:
            done = other.post(f"/responses/{running['id']}/cancel").json()
            assert done["status"] == "cancelled"
        assert server.end() == 0
