"""The routes of llama.cpp's server: completions, slots that are states, what is served."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes import fake_continuation
from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import complete
from tests.gateway.stateful import TallModel, states_running
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.llama_cpp.bodies import COMPLETION, POLICIES, CompletionBody
from wkvm.gateway.llama_cpp.slots import TAG

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [72, 101, 108, 108, 111]
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 6, "ignore_eos": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with states_running(tmp_path_factory.mktemp("llama")) as running:
        yield running


async def call(running: Running, path: str, body: Any = None, *, status: int = 200) -> Any:
    method = running.http.get if body is None else running.http.post
    keywords = {} if body is None else {"json": body}
    async with method(path, **keywords) as response:
        answer = await response.json()
        assert response.status == status, answer
        return answer


async def completion(running: Running, *, status: int = 200, **body: Any) -> Any:
    return await call(running, "/completion", {"prompt": PROMPT, **GREEDY, **body}, status=status)


async def events(running: Running, **body: Any) -> list[Any]:
    body = {"prompt": PROMPT, **GREEDY, "stream": True, **body}
    async with running.http.post("/completion", json=body) as response:
        assert response.status == 200
        text = await response.text()
    return [json.loads(one.removeprefix("data: ")) for one in text.split("\n\n") if one]


def ids_after(prompt: list[int], n: int) -> list[int]:
    return fake_continuation(prompt, n, 256)


async def test_a_completion_is_the_one_of_the_other_interface(running: Running) -> None:
    answer = await completion(running, return_tokens=True)
    other = await complete(running, prompt=PROMPT, temperature=0, max_tokens=6, ignore_eos=True)
    assert answer["content"] == other["choices"][0]["text"]
    assert answer["tokens"] == ids_after(PROMPT, 6)
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (6, 5)
    assert (answer["prompt"], answer["index"], answer["truncated"]) == ("Hello", 0, False)
    assert answer["timings"]["predicted_n"] == 6
    assert answer["generation_settings"]["temperature"] == 0


async def test_a_stream_adds_up_to_what_is_not_streamed(running: Running) -> None:
    *pieces, last = await events(running, return_tokens=True, n_probs=2)
    whole = await completion(running, return_tokens=True, n_probs=2)
    assert not any(piece["stop"] for piece in pieces)
    told = [*pieces, last]
    assert "".join(piece["content"] for piece in told) == whole["content"]
    for name in ("tokens", "completion_probabilities"):
        assert [one for piece in told for one in piece[name]] == whole[name]
    for name in ("stop", "stop_type", "tokens_predicted", "tokens_evaluated", "prompt"):
        assert last[name] == whole[name]


async def test_probabilities_name_the_id_and_the_most_likely_ones(running: Running) -> None:
    answer = await completion(running, n_probs=3, n_predict=2)
    for entry, token_id in zip(
        answer["completion_probabilities"], ids_after(PROMPT, 2), strict=True
    ):
        assert (entry["id"], entry["bytes"]) == (token_id, [token_id])
        best = entry["top_logprobs"]
        assert len(best) == 3
        assert (best[0]["id"], best[0]["logprob"]) == (token_id, entry["logprob"])


async def test_a_stop_string_ends_it_before_itself(running: Running) -> None:
    text = (await completion(running, n_predict=12))["content"]
    word = text[3:5]
    answer = await completion(running, n_predict=12, stop=[word])
    assert answer["content"] == text[: text.index(word)]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)


async def test_several_prompts_have_several_answers_and_a_mixed_list_is_one(
    running: Running,
) -> None:
    several = await completion(running, prompt=["Hello", PROMPT[:2], ["He", 108]])
    assert [one["index"] for one in several] == [0, 1, 2]
    assert [one["tokens_evaluated"] for one in several] == [5, 2, 3]
    mixed = await completion(running, prompt=[72, "ello"])
    assert mixed["content"] == several[0]["content"]


async def test_biases_may_be_pairs_of_ids_or_texts(running: Running) -> None:
    for bias in ([[65, 100]], [["A", 100.0]], {"65": 100}):
        answer = await completion(running, logit_bias=bias, n_predict=3)
        assert answer["content"] == "AAA"


@pytest.mark.parametrize("seed", [-1, 7])
async def test_a_seed_of_minus_one_is_none(running: Running, seed: int) -> None:
    body: dict[str, Any] = {"temperature": 5.0, "n_predict": 24, "seed": seed}
    first, second = [(await completion(running, **body))["content"] for _ in range(2)]
    assert (first == second) == (seed == 7)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": [[1], 2]}),
        ("grammar", {"grammar": 'root ::= "a"'}),
        ("mirostat", {"mirostat": 2}),
        ("n_predict", {"n_predict": -3}),
        ("n_probs", {"n_probs": 21}),
        ("repeat_penalty", {"repeat_penalty": -1}),
        ("logit_bias", {"logit_bias": [[65, False]]}),
        ("id_slot", {"id_slot": 10**6}),
        ("id_slot", {"id_slot": 0, "prompt": ["a", "b"]}),
    ],
)
async def test_what_is_wrong_is_refused_in_the_form_of_its_errors(
    running: Running, name: str, body: dict[str, Any]
) -> None:
    error = (await completion(running, status=400, **body))["error"]
    assert error.keys() == {"code", "message", "type"}
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(name)


async def test_what_asks_for_nothing_is_taken(running: Running) -> None:
    neutral: dict[str, Any] = {
        name: field.neutral[0] for name, field in COMPLETION.unsupported.items() if field.neutral
    }
    unused: dict[str, Any] = dict.fromkeys(COMPLETION.unused, True)
    await completion(running, **neutral, **unused)


async def test_the_tables_and_the_bodies_are_apart_and_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "llama-cpp.md").read_text(encoding="utf-8")
    used = set(CompletionBody.__struct_fields__)
    assert not used & (COMPLETION.unused | COMPLETION.unsupported.keys())
    for policy in POLICIES:
        for name in used | policy.unused | policy.unsupported.keys():
            assert f"`{name}`" in text, name


# --- slots


async def test_a_slot_goes_on_where_the_prompt_begins_with_what_it_has(running: Running) -> None:
    first = await completion(running, id_slot=1, return_tokens=True)
    assert first["id_slot"] == 1
    longer = [*PROMPT, *first["tokens"], 33, 34]
    second = await completion(running, id_slot=1, prompt=longer, return_tokens=True)
    assert second["tokens"] == ids_after(longer, 6)
    # the last id was not fed
    assert second["tokens_cached"] == len(PROMPT) + 6 - 1
    third = await completion(running, id_slot=1, prompt=[*longer, *second["tokens"]])
    assert third["tokens_cached"] == len(longer) + 6 - 1


async def test_a_text_that_begins_otherwise_begins_anew(running: Running) -> None:
    await completion(running, id_slot=1)
    other = [73, *PROMPT[1:], *ids_after(PROMPT, 6), 33]
    answer = await completion(running, id_slot=1, prompt=other, return_tokens=True)
    assert answer["tokens"] == ids_after(other, 6)
    assert answer["tokens_cached"] == 0


async def test_a_slot_has_the_text_up_to_a_stop_string(running: Running) -> None:
    await call(running, "/slots/1?action=erase", {})
    text = (await completion(running, n_predict=12, return_tokens=True))["tokens"]
    stop = bytes(text[3:5]).decode("latin-1") if max(text[3:5]) < 128 else None
    if stop is None:
        pytest.skip("the fake model says no plain characters there")
    answer = await completion(running, id_slot=1, n_predict=12, stop=[stop], return_tokens=True)
    assert answer["stop_type"] == "word"
    longer = [*PROMPT, *text[:3], 33]
    again = await completion(running, id_slot=1, prompt=longer)
    assert again["tokens_cached"] == len(PROMPT) + 3 - 1


async def test_a_slot_has_the_id_that_ended_a_turn(tmp_path: Path) -> None:
    *said, end = ids_after(PROMPT, 3)
    model = TallModel()
    model._info = replace(model.info, eos_ids=(end,))
    async with states_running(tmp_path, Engine(model, EngineConfig(n_slots=8))) as running:
        body = {"id_slot": 1, "ignore_eos": False, "return_tokens": True}
        answer = await completion(running, **body)
        assert (answer["tokens"], answer["stop_type"]) == (said, "eos")
        longer = [*PROMPT, *said, end, 33]
        assert (await completion(running, prompt=longer, **body))["tokens_cached"] == 5 + 2


async def test_a_stream_leaves_its_slot_as_an_answer_does(running: Running) -> None:
    *_, last = await events(running, id_slot=2)
    assert last["id_slot"] == 2
    longer = [*PROMPT, *ids_after(PROMPT, 6), 33]
    assert (await completion(running, id_slot=2, prompt=longer))["tokens_cached"] == 5 + 6 - 1


async def test_a_slot_is_saved_under_a_name_and_restored_into_another(running: Running) -> None:
    await completion(running, id_slot=1)
    saved = await call(running, "/slots/1?action=save", {"filename": "kept.bin"})
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "kept.bin", 11)
    assert saved["n_written"] > 0
    await completion(running, id_slot=1, prompt=[1, 2, 3])
    restored = await call(running, "/slots/3?action=restore", {"filename": "kept.bin"})
    assert (restored["id_slot"], restored["n_restored"]) == (3, 11)
    longer = [*PROMPT, *ids_after(PROMPT, 6), 33]
    answer = await completion(running, id_slot=3, prompt=longer, return_tokens=True)
    assert (answer["tokens_cached"], answer["tokens"]) == (10, ids_after(longer, 6))
    again = await call(running, "/slots/3?action=save", {"filename": "kept.bin"})
    assert again["n_saved"] == len(longer) + 6


async def test_a_slot_that_is_erased_begins_anew(running: Running) -> None:
    await completion(running, id_slot=1)
    assert (await call(running, "/slots/1?action=erase", {}))["n_erased"] == 11
    assert (await call(running, "/slots/1?action=erase", {}))["n_erased"] == 0
    longer = [*PROMPT, *ids_after(PROMPT, 6), 33]
    assert (await completion(running, id_slot=1, prompt=longer))["tokens_cached"] == 0


async def test_a_state_of_other_making_is_never_overwritten(running: Running) -> None:
    body = {"name": "precious", "ids": [1, 2, 3]}
    async with running.http.post("/v1/states", json=body) as response:
        assert response.status == 201
    await completion(running, id_slot=1)
    answer = await call(running, "/slots/1?action=save", {"filename": "precious"}, status=409)
    assert "precious" in answer["error"]["message"]
    async with running.http.get("/v1/states/precious") as response:
        assert (await response.json())["n_computed"] in (2, 3)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/slots/1?action=save", {"filename": "a/b"}, 400),
        ("/slots/1?action=save", {}, 400),
        ("/slots/1?action=save", {"filename": ""}, 400),
        ("/slots/1?action=restore", {"filename": "nowhere"}, 404),
        ("/slots/1?action=copy", {"filename": "x"}, 400),
        ("/slots/1", {}, 400),
        ("/slots/x?action=erase", {}, 400),
        ("/slots/1000000?action=erase", {}, 400),
    ],
)
async def test_what_cannot_be_done_with_a_slot_is_said(
    running: Running, path: str, body: Any, status: int
) -> None:
    error = (await call(running, path, body, status=status))["error"]
    assert error["code"] == status


async def test_the_slots_are_those_of_the_engine(running: Running) -> None:
    told = await call(running, "/slots")
    client = await running.gateway.engines.client("")
    assert [one["id"] for one in told] == list(range(client.server.n_slots))
    assert not any(one["is_processing"] for one in told)
    stream = await client.generate([5], max_tokens=10**6, ignore_eos=True)
    assert await stream.read()
    assert sum(one["is_processing"] for one in await call(running, "/slots")) == 1
    stream.cancel()


async def test_no_free_slot_is_503_for_who_asks_so() -> None:
    async with gateway_running() as running:
        client = await running.gateway.engines.client("")
        n_slots = client.server.n_slots
        streams = [
            await client.generate([5], max_tokens=10**6, ignore_eos=True) for _ in range(n_slots)
        ]
        for stream in streams:
            assert await stream.read()
        error = await call(running, "/slots?fail_on_no_slot=1", status=503)
        assert error["error"]["type"] == "unavailable_error"
        for stream in streams:
            stream.cancel()


# --- the rest


async def test_props_say_what_is_served(running: Running) -> None:
    told = await call(running, "/props")
    client = await running.gateway.engines.client("")
    assert told["total_slots"] == client.server.n_slots
    assert told["model_alias"] == running.gateway.model
    assert "messages" in told["chat_template"]
    assert told["default_generation_settings"]["params"]["n_predict"] > 0


async def test_a_template_is_applied_and_nothing_generated(running: Running) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    told = await call(running, "/apply-template", {"messages": messages})
    assert told == {"prompt": "User: Hello\n\nAssistant:"}
    error = (await call(running, "/apply-template", {"messages": []}, status=400))["error"]
    assert error["type"] == "invalid_request_error"


async def test_a_gap_cannot_be_filled(running: Running) -> None:
    error = (await call(running, "/infill", {"input_prefix": "a"}, status=400))["error"]
    assert error["type"] == "not_supported_error"


async def test_the_tag_says_of_which_version_it_is(running: Running) -> None:
    await completion(running, id_slot=1)
    client = await running.gateway.engines.client("")
    info = await client.states.get("llama-slot-1")
    assert info.tags[TAG].startswith(f"{info.version}:")
    await client.states.tag("llama-slot-1", {TAG: f"{info.version + 1}:{'0' * 64}"})
    longer = [*PROMPT, *ids_after(PROMPT, 6), 33]
    answer = await completion(running, id_slot=1, prompt=longer, return_tokens=True)
    assert (answer["tokens_cached"], answer["tokens"]) == (0, ids_after(longer, 6))


async def test_texts_are_tokenized_and_back_by_their_other_name(running: Running) -> None:
    told = await call(running, "/tokenize", {"content": "Hello", "add_special": False})
    assert told["tokens"] == PROMPT
    assert (await call(running, "/detokenize", {"tokens": PROMPT}))["content"] == "Hello"
    await call(running, "/tokenize", {"content": "Hello", "with_pieces": True}, status=400)
