"""How much may wait for a client that does not read its answer."""

from typing import Any

import pytest

from tests.gateway.harness import gateway_running
from wkvm.gateway.streams.choices import MAX_WAITING, credit_for


@pytest.mark.parametrize(
    ("keywords", "credit"),
    [
        ({}, MAX_WAITING),
        ({"logprobs": None, "n": None}, MAX_WAITING),
        ({"logprobs": 0}, MAX_WAITING),
        ({"logprobs": 20}, MAX_WAITING // 21),
        ({"logprobs": MAX_WAITING - 1}, 2),
        ({"logprobs": 20, "n": 64}, 128),
        ({"logprobs": -1}, 2),
        ({"n": 10**6}, MAX_WAITING),
    ],
)
def test_fewer_ids_wait_the_more_is_told_of_each_and_two_of_each_choice(
    keywords: dict[str, int], credit: int
) -> None:
    assert credit_for(keywords) == credit


LONG = {"max_tokens": 10_000, "ignore_eos": True, "stream": True}
ASKING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "fake", "prompt": "a", "logprobs": 20, **LONG},
    "/v1/stream": {"ids": [97], "logprobs": 20, "max_tokens": 10_000, "ignore_eos": True},
    "/v1/responses": {
        "model": "fake",
        "input": "a",
        "max_output_tokens": 10_000,
        "ignore_eos": True,
        "stream": True,
        "store": False,
        "top_logprobs": 20,
        "include": ["message.output_text.logprobs"],
    },
}


@pytest.mark.parametrize("path", ASKING)
async def test_the_engine_is_asked_for_so_many_ids_at_a_time(path: str) -> None:
    async with (
        gateway_running() as running,
        running.http.post(path, json=ASKING[path]) as answer,
    ):
        assert answer.status == 200, await answer.text()
        await answer.content.readany()
        live = running.engine_loop._engine._scheduler._running  # type: ignore[attr-defined]
        assert [one.spec.credit for one in live.values()] == [MAX_WAITING // 21]
