"""POST /v1/completions: prompts, choices, text, stop strings, usage."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import FakeModel, fake_continuation
from tests.gateway.harness import Running, byte_texts, gateway_running
from tests.gateway.openai_http import MODEL, added_up, complete, post, refused, stream_events
from tests.gateway.scripted import script_engine
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.fields import MAX_N, MAX_REQUEST_ID_LENGTH, MAX_STOP_LENGTH, MAX_STOPS
from wkvm.gateway.streams.choices import MAX_CHOICES
from wkvm.gateway.text import Tokenizer
from wkvm.gateway.texts import Texts

STORY = b"Once upon a mouse: \xf0\x9f\x90\xad\xf0\x9f\x90\xad \xec\x95\x88\xeb\x85\x95!\n\nUser: hi"
"""What the scripted model says after a prompt of one id; each byte is a token."""


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


@pytest.fixture
async def story() -> AsyncIterator[Running]:
    async with gateway_running(script_engine(STORY)) as running:
        yield running


def greedy(prompt: bytes | list[int], n: int) -> str:
    """What the fake model says, as text."""
    return bytes(fake_continuation(list(prompt), n, 256)).decode(errors="replace")


GREEDY = {"temperature": 0, "max_tokens": 6}


async def test_an_answer_has_the_fields_that_openai_has(running: Running) -> None:
    answer = await complete(running, prompt="hello", **GREEDY)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert isinstance(answer["created"], int)
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": greedy(b"hello", 6),
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", [b"ab"]),
        (["ab", "c"], [b"ab", b"c"]),
        ([1, 2], [b"\1\2"]),
        ([[1, 2], [3]], [b"\1\2", b"\3"]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
async def test_every_kind_of_prompt_is_answered_and_n_choices_have_the_right_index(
    running: Running, prompt: Any, prompts: list[bytes]
) -> None:
    answer = await complete(running, prompt=prompt, n=2, **GREEDY)
    expected = [greedy(one, 6) for one in prompts for _ in range(2)]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    choices = added_up(await stream_events(running, prompt=prompt, n=2, **GREEDY))
    assert [choices[index]["text"] for index in range(len(expected))] == expected


async def test_choices_of_a_seeded_request_differ_and_come_again(running: Running) -> None:
    body = {"prompt": "x", "n": 4, "seed": -5, "max_tokens": 8, "temperature": 2}
    first, again = [await complete(running, **body) for _ in range(2)]
    texts = [choice["text"] for choice in first["choices"]]
    assert len(set(texts)) == 4
    assert first["choices"] == again["choices"]
    alone = await complete(running, **{**body, "n": 1})
    assert alone["choices"][0]["text"] == texts[0]


@pytest.mark.parametrize("text", ["🐭한é€"])
async def test_utf8_over_token_borders_comes_whole(text: str) -> None:
    """Each token is one byte; each event has whole characters and there is none without text."""
    data = text.encode()
    async with gateway_running(script_engine(data)) as running:
        events = await stream_events(running, prompt=[0], temperature=0, max_tokens=len(data))
        assert [event["choices"][0]["text"] for event in events] == list(text)


async def test_utf8_forced_byte_tokens_stream_to_the_text_that_is_not_streamed(
    running: Running,
) -> None:
    body = {"prompt": "x", "allowed_token_ids": list("🐭한".encode()), "max_tokens": 64, "seed": 1}
    (choice,) = (await complete(running, **body))["choices"]
    assert added_up(await stream_events(running, **body))[0]["text"] == choice["text"]


@pytest.mark.parametrize(
    ("stop", "end"),
    [
        ("on", "on"),
        (" mouse", " mouse"),
        ("\n\nUser:", "\n\nUser:"),
        (["🐭 ", "🐭🐭"], "🐭🐭"),
        (["upon x", "upon a"], "upon a"),
        (["녕!\n\nU", "녕!\n\nA"], "녕!\n\nU"),
        ("안녕", "안녕"),
    ],
)
async def test_stop_strings_over_token_borders_do_not_leak(
    story: Running, stop: Any, end: str
) -> None:
    """Stops of 2 to 9 characters, some sharing a beginning, streamed and not."""
    body = {"prompt": [0], "temperature": 0, "max_tokens": 200, "stop": stop}
    text, _, _ = STORY.decode().partition(end)
    (choice,) = (answer := await complete(story, **body))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", end)
    assert answer["usage"]["completion_tokens"] == len((text + end).encode())
    events = await stream_events(story, **body, stream_options={"include_usage": True})
    assert added_up(events)[0] == choice
    assert events[-1]["usage"] == answer["usage"]
    (choice,) = (await complete(story, **body, include_stop_str_in_output=True))["choices"]
    assert choice["text"] == text + end


async def test_a_stop_string_cancels_the_choice_and_frees_its_slot_within_a_step() -> None:
    engine = script_engine(b"ab", n_slots=1)
    async with gateway_running(engine) as running:
        body = {"prompt": [0], "temperature": 0, "max_tokens": 10**6, "stop": "bab"}
        for _ in range(3):
            (choice,) = (await complete(running, **body))["choices"]
            assert choice["text"] == "a"


async def test_a_stop_string_of_one_choice_leaves_the_others_and_frees_its_slot() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2))
    letters = {"allowed_token_ids": list(b"ab"), "temperature": 9, "max_tokens": 64}
    async with gateway_running(engine) as running:
        answer = await complete(running, prompt="x", n=8, seed=3, stop="aaaaa", **letters)
        reasons = [choice["finish_reason"] for choice in answer["choices"]]
        assert set(reasons) == {"stop", "length"}
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop" or len(choice["text"]) == 64


async def test_stop_ids_end_a_choice_and_are_named(story: Running) -> None:
    body = {"prompt": [0], "temperature": 0, "max_tokens": 200, "stop_token_ids": [ord(":")]}
    (choice,) = (answer := await complete(story, **body))["choices"]
    assert choice["text"] == "Once upon a mouse"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord(":"))
    assert answer["usage"]["completion_tokens"] == 17


async def test_the_models_own_end_has_no_stop_reason_and_can_be_ignored() -> None:
    async with gateway_running(script_engine(b"abc.", eos_ids=(ord("."),))) as running:
        (choice,) = (await complete(running, prompt=[0], temperature=0))["choices"]
        assert (choice["text"], choice["stop_reason"]) == ("abc", None)
        body = {"prompt": [0], "temperature": 0, "max_tokens": 5, "ignore_eos": True}
        assert (await complete(running, **body))["choices"][0]["text"] == "abc.a"
        body = {"prompt": [0], "temperature": 0, "max_tokens": 5, "min_tokens": 5}
        assert len((await complete(running, **body))["choices"][0]["text"]) == 5


async def test_before_min_tokens_no_stop_string_counts(story: Running) -> None:
    body = {"prompt": [0], "temperature": 0, "stop": "o", "min_tokens": 9}
    assert (await complete(story, **body))["choices"][0]["text"] == "Once upon a m"


async def test_usage_counts_the_prompt_once_and_sums_the_choices_streamed_as_not(
    running: Running,
) -> None:
    body = {"prompt": ["hello", "yo"], "n": 4, **GREEDY}
    usage = (await complete(running, **body))["usage"]
    assert usage == {
        "prompt_tokens": 7,
        "completion_tokens": 48,
        "total_tokens": 55,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    *events, last = await stream_events(running, **body, stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], usage)
    assert all(event["usage"] is None for event in events)


async def test_usage_is_not_in_a_stream_that_does_not_ask_for_it(running: Running) -> None:
    events = await stream_events(running, prompt="x", **GREEDY)
    assert all("usage" not in event and event["choices"] for event in events)


async def test_continuous_usage_counts_up_to_each_event(story: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [0], "temperature": 0, "max_tokens": 3, "stream_options": options}
    events = await stream_events(story, **body)
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]
    assert {event["usage"]["prompt_tokens"] for event in events} == {1}


async def test_ids_are_returned_if_that_is_asked_for(running: Running) -> None:
    body = {"prompt": "hello", "return_token_ids": True, **GREEDY}
    (choice,) = (await complete(running, **body))["choices"]
    assert choice["prompt_token_ids"] == list(b"hello")
    assert choice["token_ids"] == fake_continuation(b"hello", 6, 256)
    events = await stream_events(running, **body)
    assert "prompt_token_ids" in events[0]["choices"][0]
    assert added_up(events)[0] == choice


async def test_echo_puts_the_prompt_first(running: Running) -> None:
    for prompt in ("héllo", list("héllo".encode())):
        body = {"prompt": prompt, "echo": True, **GREEDY}
        (choice,) = (await complete(running, **body))["choices"]
        assert choice["text"] == "héllo" + greedy("héllo".encode(), 6)
        assert added_up(await stream_events(running, **body))[0] == choice


async def test_without_max_tokens_the_default_counts(running: Running) -> None:
    usage = (await complete(running, prompt="x"))["usage"]
    assert usage["completion_tokens"] == byte_texts().default_max_tokens


async def test_what_the_model_suggests_counts_unless_the_request_says_otherwise() -> None:
    texts = Texts(byte_texts().tokenizer, byte_texts().template, {"temperature": 0, "seed": 1})
    async with gateway_running(texts=texts) as running:
        answer = await complete(running, prompt="x", max_tokens=6)
        assert answer["choices"][0]["text"] == greedy(b"x", 6)
        answer = await complete(running, prompt="x", max_tokens=6, temperature=90)
        assert answer["choices"][0]["text"] != greedy(b"x", 6)


async def test_truncate_prompt_tokens_keeps_the_last_ids(running: Running) -> None:
    body = {"prompt": "hello", "truncate_prompt_tokens": 2, "echo": True, **GREEDY}
    answer = await complete(running, **body)
    assert answer["choices"][0]["text"] == "lo" + greedy(b"lo", 6)
    assert answer["usage"]["prompt_tokens"] == 2
    for n in (0, -2):
        body = {"prompt": "x", "truncate_prompt_tokens": n}
        assert (await refused(running, **body))[0] == "truncate_prompt_tokens"


async def test_special_tokens_of_a_prompt_count_as_such(bundled: Tokenizer) -> None:
    engine = Engine(FakeModel(vocab_size=bundled.vocab_size), EngineConfig(n_slots=2))
    texts = Texts(bundled, byte_texts().template)
    async with gateway_running(engine, texts=texts) as running:
        body = {"prompt": "hi<|end|>", "return_token_ids": True, "echo": True, "max_tokens": 0}
        (choice,) = (await complete(running, **body))["choices"]
        assert choice["prompt_token_ids"][-1] == 1
        assert choice["text"] == "hi<|end|>"


async def test_the_requests_own_name_is_in_the_response_id(running: Running) -> None:
    answer = await complete(running, prompt="x", request_id="mine", max_tokens=1)
    assert answer["id"] == "cmpl-mine"
    assert (await refused(running, prompt="x", request_id="m" * 129))[0] == "request_id"


async def test_another_model_is_not_found_and_no_model_is_an_error(running: Running) -> None:
    status, answer = await post(running, "/v1/completions", {"model": "gpt", "prompt": "x"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert (await refused(running, model=None, prompt="x"))[0] == "model"


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("suffix", {"suffix": "end"}),
        ("best_of", {"best_of": 2, "stream": True}),
        ("best_of", {"best_of": 129}),
        ("best_of", {"best_of": 1, "n": 2}),
        ("bad_words", {"bad_words": ["x"] * 513}),
        ("use_beam_search", {"use_beam_search": True}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ],
)
async def test_what_is_known_but_not_supported_is_refused_by_name(
    running: Running, param: str, body: dict[str, Any]
) -> None:
    assert (await refused(running, prompt="x", **body))[0] == param


async def test_what_asks_for_nothing_and_what_is_unknown_is_taken(running: Running) -> None:
    nothing = {"suffix": "", "best_of": 1, "bad_words": [], "use_beam_search": False}
    others = {"cache_salt": "s", "user": "u", "add_special_tokens": True, "never_heard_of": [1]}
    others |= {"priority": 1, "logit_bias": {"97": 5}, "top_k": -1, "stream_options": None}
    await complete(running, prompt="x", **nothing, **others, **GREEDY)


def test_every_field_is_in_the_documents() -> None:
    documents = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    for field in msgspec.structs.fields(CompletionRequest):
        assert f"`{field.name}`" in documents, field.name
    for limit in (MAX_N, MAX_STOPS, MAX_STOP_LENGTH, MAX_CHOICES, MAX_REQUEST_ID_LENGTH):
        assert re.search(rf"\b{limit}\b", documents), limit


async def test_limits_on_what_one_request_may_ask_for(running: Running) -> None:
    await complete(running, prompt="x", stop=["y" * MAX_STOP_LENGTH] * MAX_STOPS, **GREEDY)
    prompt = ["x"] * (MAX_CHOICES // 2 + 1)
    assert (await refused(running, prompt=prompt, n=2))[0] == "prompt"
