"""``best_of``: more choices are made than told, and the likeliest are told."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import complete, refused

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY: dict[str, Any] = {"prompt": ["ab", "cde"], "max_tokens": 6, "seed": 7, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


def mean(choice: Any) -> float:
    logprobs = choice["logprobs"]["token_logprobs"]
    return float(sum(logprobs) / len(logprobs))


async def test_the_likeliest_by_their_mean_are_told_best_first(running: Running) -> None:
    everything = await complete(running, n=5, logprobs=0, **BODY)
    best = await complete(running, n=2, best_of=5, **BODY)
    expected = list[str]()
    for of_prompt in (everything["choices"][:5], everything["choices"][5:]):
        ranked = sorted(of_prompt, key=mean, reverse=True)
        expected += [choice["text"] for choice in ranked[:2]]
    assert [choice["text"] for choice in best["choices"]] == expected
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]


async def test_what_is_not_told_costs_too(running: Running) -> None:
    answer = await complete(running, best_of=5, **BODY)
    assert answer["usage"]["completion_tokens"] == 2 * 5 * 6
    assert answer["usage"]["prompt_tokens"] == 5


async def test_log_probabilities_are_told_if_they_were_asked_for_and_not_otherwise(
    running: Running,
) -> None:
    plain = await complete(running, best_of=3, **BODY)
    assert [choice["logprobs"] for choice in plain["choices"]] == [None, None]
    told = await complete(running, best_of=3, logprobs=2, echo=True, **BODY)
    for choice, n_prompt in zip(told["choices"], (2, 3), strict=True):
        assert len(choice["logprobs"]["tokens"]) == n_prompt + 6
    assert [one["text"][n:] for one, n in zip(told["choices"], (2, 3), strict=True)] == [
        one["text"] for one in plain["choices"]
    ]


async def test_a_choice_without_ids_is_the_last(running: Running) -> None:
    first = (await complete(running, n=1, **BODY | {"prompt": "ab"}))["choices"][0]
    stop = (await complete(running, n=1, return_token_ids=True, **BODY | {"prompt": "ab"}))[
        "choices"
    ][0]["token_ids"][0]
    # The first of both ends at once, before it has an id.
    answer = await complete(running, best_of=2, stop_token_ids=[stop], **BODY | {"prompt": "ab"})
    assert first["text"]
    assert answer["choices"][0]["text"]


async def test_choices_that_are_not_told_count_against_the_limit(running: Running) -> None:
    assert (await refused(running, **BODY | {"prompt": ["x"] * 3}, best_of=128))[0] == "prompt"
