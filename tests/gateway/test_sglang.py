"""The routes of SGLang's server."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes import fake_continuation
from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import complete
from wkvm.gateway.sglang.bodies import POLICIES, GenerateBody, SamplingBody

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDS = [72, 101, 108]
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


async def generate(running: Running, *, status: int = 200, **body: Any) -> Any:
    given = {"input_ids": IDS, "sampling_params": GREEDY, **body}
    async with running.http.post("/generate", json=given) as response:
        answer = await response.json()
        assert response.status == status, answer
        return answer


async def test_an_answer_has_text_ids_and_what_they_cost(running: Running) -> None:
    answer = await generate(running, rid="mine")
    other = await complete(running, prompt=IDS, temperature=0, max_tokens=6, ignore_eos=True)
    assert answer["text"] == other["choices"][0]["text"]
    assert answer["output_ids"] == fake_continuation(IDS, 6, 256)
    meta = answer["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", 3, 6)
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert meta["e2e_latency"] > 0
    assert await generate(running, input_ids=None, text="Hel") != answer
    assert (await generate(running, input_ids=None, text="Hel"))["text"] == answer["text"]


async def test_lists_are_answered_by_lists(running: Running) -> None:
    one = await generate(running)
    several = await generate(running, input_ids=[IDS, [5]])
    assert [answer["meta_info"]["prompt_tokens"] for answer in several] == [3, 1]
    assert several[0]["text"] == one["text"]
    assert len(await generate(running, input_ids=[IDS])) == 1
    sampling = {**GREEDY, "n": 2}
    assert len(await generate(running, sampling_params=sampling)) == 2


async def test_each_event_has_the_whole_text_so_far(running: Running) -> None:
    whole = await generate(running, return_logprob=True)
    body = {"input_ids": IDS, "sampling_params": GREEDY, "stream": True, "return_logprob": True}
    async with running.http.post("/generate", json=body) as response:
        *told, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = [json.loads(one.removeprefix("data: ")) for one in told]
    for before, after in pairwise(events):
        assert after["text"].startswith(before["text"])
        assert before["meta_info"]["finish_reason"] is None
    last = events[-1]
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    for name in ("finish_reason", "output_token_logprobs", "completion_tokens"):
        assert last["meta_info"][name] == whole["meta_info"][name]


async def test_a_stop_string_is_what_matched_and_is_trimmed_unless_asked(running: Running) -> None:
    text = (await generate(running))["text"]
    sampling = {**GREEDY, "stop": text[2:4]}
    answer = await generate(running, sampling_params=sampling)
    assert answer["text"] == text[: text.index(text[2:4])]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": text[2:4]}
    kept = await generate(running, sampling_params=sampling | {"no_stop_trim": True})
    assert kept["text"] == answer["text"] + text[2:4]


async def test_log_probabilities_are_those_of_completions(running: Running) -> None:
    answer = await generate(running, return_logprob=True, top_logprobs_num=2, logprob_start_len=0)
    body = {"prompt": IDS, "temperature": 0, "max_tokens": 6, "ignore_eos": True}
    other = await complete(running, **body, logprobs=2, echo=True)
    meta = answer["meta_info"]
    told = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert [one[0] for one in told] == other["choices"][0]["logprobs"]["token_logprobs"]
    assert [one[1] for one in told] == [*IDS, *answer["output_ids"]]
    assert meta["input_top_logprobs"][0] is None
    assert {len(one) for one in meta["output_top_logprobs"]} == {2}


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("text", {"text": "x"}),
        ("text", {"input_ids": None}),
        ("input_ids", {"input_ids": [10**6]}),
        ("stream", {"stream": True, "input_ids": [[1], [2]]}),
        ("stream", {"stream": True, "sampling_params": {"max_new_tokens": 8193}}),
        ("top_logprobs_num", {"return_logprob": True, "top_logprobs_num": 21}),
        ("logprob_start_len", {"return_logprob": True, "logprob_start_len": 0, "stream": True}),
        ("max_new_tokens", {"sampling_params": {"max_new_tokens": -1}}),
        ("temperature", {"sampling_params": {"temperature": "hot"}}),
        ("sampling_seed", {"sampling_params": {"sampling_seed": 2**70}}),
        ("json_schema", {"sampling_params": {"json_schema": {"type": "nothing"}}}),
        ("regex", {"sampling_params": {"regex": "("}}),
        ("ebnf", {"sampling_params": {"ebnf": "root ::= 1"}}),
        ("image_data", {"image_data": ["x"]}),
        ("sampling_params", {"sampling_params": []}),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(
    running: Running, param: str | None, body: dict[str, Any]
) -> None:
    assert (await generate(running, status=400, **body))["error"]["param"] == param


async def test_it_says_what_it_is_and_that_it_generates(running: Running) -> None:
    for path in ("/get_model_info", "/model_info"):
        async with running.http.get(path) as response:
            assert (await response.json())["model_path"] == running.gateway.model
    for path in ("/get_server_info", "/server_info"):
        async with running.http.get(path) as response:
            assert (await response.json())["max_running_requests"] == 8
    async with running.http.get("/health_generate") as response:
        assert response.status == 200


async def test_the_fields_are_apart_and_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sglang.md").read_text(encoding="utf-8")
    for policy, kind in zip(POLICIES, (GenerateBody, SamplingBody), strict=True):
        used = set(kind.__struct_fields__)
        assert not used & (policy.unused | policy.unsupported.keys())
        for name in used | policy.unused | policy.unsupported.keys():
            assert f"`{name}`" in text, name
