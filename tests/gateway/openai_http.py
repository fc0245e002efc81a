"""Requests to routes of OpenAI's interface, and what comes back, streamed or not."""

import json
from typing import Any

from tests.gateway.harness import Running

MODEL = "fake"


async def post(running: Running, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and the JSON of an answer that is not streamed."""
    async with running.http.post(path, json={"model": MODEL, **body}) as response:
        return response.status, await response.json()


async def complete(running: Running, **body: Any) -> Any:
    """A completion that has to succeed."""
    status, answer = await post(running, "/v1/completions", body)
    assert status == 200, answer
    return answer


async def refused(running: Running, **body: Any) -> tuple[str | None, str]:
    """The ``param`` and the message of a completion that has to be refused with 400."""
    status, answer = await post(running, "/v1/completions", body)
    assert status == 400, answer
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    return error["param"], error["message"]


async def stream_events(running: Running, **body: Any) -> list[Any]:
    """The events of a streamed completion, which has to end with [DONE]; without that."""
    body = {"model": MODEL, "stream": True, **body}
    async with running.http.post("/v1/completions", json=body) as response:
        data = await response.read()
        assert response.status == 200, data
    assert response.content_type == "text/event-stream"
    *events, done, rest = data.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def added_up(events: list[Any]) -> dict[int, dict[str, Any]]:
    """What the choices of a stream are, put together, in the format of those not streamed."""
    choices = dict[int, dict[str, Any]]()
    for event in events:
        for chunk in event["choices"]:
            choice = choices.setdefault(
                chunk["index"], {"index": chunk["index"], "text": "", "logprobs": None}
            )
            choice["text"] += chunk["text"]
            if chunk["logprobs"] is not None:
                kept = choice["logprobs"] or {name: [] for name in chunk["logprobs"]}
                choice["logprobs"] = {n: kept[n] + new for n, new in chunk["logprobs"].items()}
            for name in ("token_ids", "prompt_token_ids"):
                if name in chunk:
                    choice[name] = choice.get(name, []) + chunk[name]
            assert "finish_reason" not in choice, "nothing comes after the end"
            if chunk["finish_reason"] is not None:
                choice["finish_reason"] = chunk["finish_reason"]
                choice["stop_reason"] = chunk["stop_reason"]
    return choices
