"""Anthropic's messages over HTTP, with models whose output a test knows."""

import asyncio
import json
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes import FakeModel
from tests.gateway.harness import (
    ANNA,
    KEYS,
    TIMEOUT_S,
    Running,
    gateway_running,
    lose_engine,
    until_stats,
)
from tests.gateway.test_chat import saying
from tests.gateway.test_chat_tools import CALL, PARAMETERS, WRITTEN, constrained
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.anthropic import messages as handlers
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts

PATH = "/v1/messages"
USER = {"role": "user", "content": "Hello"}
HELLO: dict[str, Any] = {"model": "fake", "messages": [USER], "temperature": 0, "max_tokens": 100}
PROMPT = "User: Hello\n\nAssistant:"
GO = {"name": "go", "input_schema": PARAMETERS}
WAIT = {"name": "wait", "input_schema": {"type": "object", "properties": {}}}
TOOLS = [GO, WAIT]
TOLD = WRITTEN.replace(
    '{"name":"wait"}',
    json.dumps({"name": "wait", "parameters": WAIT["input_schema"]}, separators=(",", ":")),
)
"""What a template that knows no tools makes of a request with these."""
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


async def post(running: Running, path: str = PATH, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {name: value for name, value in (HELLO | fields).items() if value is not ...}
    async with running.http.post(path, json=body) as response:
        return response.status, await response.json()


async def ask(running: Running, **fields: Any) -> dict[str, Any]:
    status, answer = await post(running, **fields)
    assert status == 200, answer
    return answer


async def refusal(running: Running, **fields: Any) -> str:
    """The message of a request that has to be refused with 400."""
    status, answer = await post(running, **fields)
    assert (status, answer["type"], answer["error"]["type"]) == (
        400,
        "error",
        "invalid_request_error",
    )
    message: str = answer["error"]["message"]
    return message


async def stream(running: Running, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, without pings; the name of each is its type."""
    async with running.http.post(PATH, json=HELLO | fields | {"stream": True}) as response:
        text = await response.text()
        assert response.status == 200, text
        assert response.content_type == "text/event-stream"
    return parsed(text)


def parsed(text: str) -> list[dict[str, Any]]:
    *frames, rest = text.split("\n\n")
    assert rest == ""
    events = list[dict[str, Any]]()
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return [event for event in events if event["type"] != "ping"]


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream is, put together as Anthropic's clients do it."""
    first, *rest, last = events
    assert (first["type"], last["type"]) == ("message_start", "message_stop")
    message: dict[str, Any] = first["message"]
    assert message["content"] == []
    written, is_open = "", False
    for event in rest:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                written, is_open = "", True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                elif delta["type"] == "thinking_delta":
                    block["thinking"] += delta["thinking"]
                else:
                    assert delta["type"] == "input_json_delta"
                    written += delta["partial_json"]
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(message["content"]) - 1
                if written:
                    message["content"][-1]["input"] = json.loads(written)
                is_open = False
            case "message_delta":
                assert not is_open
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case kind:
                pytest.fail(f"an event of type {kind}")
    return message


def nameless(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is another each time, and what of its prompt was read before."""
    usage = answer["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    usage = {**usage, "input_tokens": read, "cache_read_input_tokens": 0}
    content = [{**block, "id": ""} if "id" in block else block for block in answer["content"]]
    return {**answer, "id": "", "content": content, "usage": usage}


# --- answers ----------------------------------------------------------------------------------


async def test_an_answer_has_the_form_of_anthropic() -> None:
    async with gateway_running(saying(" Hi!")) as running:
        answer = await ask(running)
    assert answer.pop("id").startswith("msg_")
    usage = answer.pop("usage")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hi!", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }
    assert usage["input_tokens"] == len(PROMPT)
    assert usage["output_tokens"] == 4
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (0, 0)


async def test_a_stream_is_the_answer_that_is_not_streamed() -> None:
    async with gateway_running(saying(" Hi, you!")) as running:
        events = await stream(running)
        assert nameless(joined(events)) == nameless(await ask(running))
    assert [event["type"] for event in events[:2]] == ["message_start", "content_block_start"]
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert texts == list("Hi, you!")


async def test_tokens_that_were_not_computed_are_told_as_read_from_a_cache() -> None:
    long = [{"role": "user", "content": "Hello, " * 200}]
    async with gateway_running() as running:
        cold = (await ask(running, messages=long, max_tokens=1))["usage"]
        for warm in (
            (await ask(running, messages=long, max_tokens=1))["usage"],
            joined(await stream(running, messages=long, max_tokens=1))["usage"],
        ):
            assert warm["cache_read_input_tokens"] > 0
            n_tokens = warm["input_tokens"] + warm["cache_read_input_tokens"]
            assert n_tokens == cold["input_tokens"] > warm["input_tokens"] > 0
        assert cold["cache_read_input_tokens"] == 0


async def test_a_stream_has_a_ping_at_its_beginning() -> None:
    async with (
        gateway_running(saying("Hi")) as running,
        running.http.post(PATH, json=HELLO | {"stream": True}) as response,
    ):
        frames = (await response.text()).split("\n\n")
    assert frames[1] == 'event: ping\ndata: {"type":"ping"}'


async def test_a_stream_pings_while_the_answer_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "PING_INTERVAL_S", 0.01)
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=1))
    async with gateway_running(engine) as running:
        long = {"model": "fake", "prompt": "x", "max_tokens": 10**6, "ignore_eos": True}
        async with running.http.post("/v1/completions", json=long | {"stream": True}) as first:
            assert await first.content.readline()
            async with running.http.post(PATH, json=HELLO | {"stream": True}) as response:
                for name in ("message_start", "ping", "ping"):
                    async with asyncio.timeout(TIMEOUT_S):
                        line = await response.content.readuntil(b"\n\n")
                    assert line.startswith(f"event: {name}\n".encode())
                first.close()
                text = (await response.content.read()).decode()
    # what came before the answer was its beginning
    types = [event["type"] for event in parsed(text)]
    assert types[0] == "content_block_start"
    assert types[-1] == "message_stop"


@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({"max_tokens": 2}, "max_tokens", None, "ab"),
        ({"stop_sequences": ["x", "cd"]}, "stop_sequence", "cd", "ab"),
        ({"stop_sequences": ["x"]}, "end_turn", None, "abcdef"),
        ({}, "end_turn", None, "abcdef"),
    ],
)
async def test_the_end_has_its_reason(
    fields: dict[str, Any], reason: str, sequence: str | None, text: str
) -> None:
    async with gateway_running(saying("abcdef")) as running:
        for answer in (await ask(running, **fields), joined(await stream(running, **fields))):
            assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
            assert answer["content"][0]["text"] == text


async def test_an_end_of_the_template_is_the_end_of_the_turn() -> None:
    async with gateway_running(saying("Hi\n\nUser: and", end=False)) as running:
        answer = await ask(running)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["content"][0]["text"] == "Hi"


async def test_an_answer_is_as_long_as_there_is_room_for() -> None:
    engine = saying("abcdef", end=False)
    limited = Engine(engine.model, EngineConfig(n_slots=8, max_model_len=len(PROMPT) + 3))
    async with gateway_running(limited) as running:
        for n_tokens, reason in ((4, "model_context_window_exceeded"), (3, "max_tokens")):
            answer = await ask(running, max_tokens=n_tokens)
            assert answer["content"][0]["text"] == "abc"
            assert answer["stop_reason"] == reason
        stopped = await ask(running, max_tokens=4, stop_sequences=["c"])
        assert stopped["stop_reason"] == "stop_sequence"


async def test_a_prompt_without_room_for_an_answer_is_refused() -> None:
    limited = Engine(FakeModel(vocab_size=256), EngineConfig(max_model_len=len(PROMPT)))
    async with gateway_running(limited) as running:
        assert str(len(PROMPT)) in await refusal(running)


async def test_an_empty_answer_has_no_block() -> None:
    async with gateway_running(saying("")) as running:
        assert (await ask(running))["content"] == []
        assert joined(await stream(running))["content"] == []


async def test_a_request_is_cancelled_by_its_name() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=1))
    body = HELLO | {"max_tokens": 10**6, "stream": True}
    async with (
        gateway_running(engine) as running,
        running.http.post(PATH, json=body, headers={"X-Request-Id": "mine"}) as response,
    ):
        await response.content.readline()
        async with running.http.post("/v1/cancel", json={"id": "mine"}) as answer:
            assert (await answer.json())["cancelled"]
        events = parsed("event: " + (await response.text()).partition("event: ")[2])
    assert events[-1]["type"] == "error"
    assert events[-1]["request_id"] == "mine"


async def test_a_client_that_leaves_frees_its_slot() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=1))
    async with gateway_running(engine) as running:
        body = HELLO | {"max_tokens": 10**6, "stream": True}
        async with running.http.post(PATH, json=body) as response:
            await response.content.readline()
            response.close()
        await until_stats(running, n_running=0)


# --- what is asked ----------------------------------------------------------------------------

WRITES = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.id }}:{{ c.function.name }}:"
    "{{ c.function.arguments | tojson }}>{% endfor %}"
    "{% if m.tool_call_id %}={{ m.tool_call_id }}{% endif %}]{% endfor %}"
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% if add_generation_prompt %}!{% endif %}"
)
"""A template that shows what it is given, for whose ids are bytes."""


async def written(*, omit_media: bool = False, template: str = WRITES, **fields: Any) -> str:
    """The prompt that a request makes, with ``WRITES``."""
    seen = list[bytes]()
    model = FakeModel(vocab_size=256)
    texts = Texts(ByteTokenizer(), ChatTemplate(template))
    model.before_forward = lambda batch: seen.append(bytes(batch.token_ids.tolist()))
    config = GatewayConfig(omit_media=omit_media)
    engine = Engine(model, EngineConfig(n_slots=8))
    async with gateway_running(engine, texts=texts, config=config) as running:
        answer = await ask(running, max_tokens=1, **fields)
        status, counted = await post(
            running, f"{PATH}/count_tokens", **fields, max_tokens=..., temperature=...
        )
    prompt = b"".join(seen)
    assert (status, counted) == (200, {"input_tokens": answer["usage"]["input_tokens"]})
    assert len(prompt) == answer["usage"]["input_tokens"]
    return prompt.decode()


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": one, "cache_control": {"type": "ephemeral"}} for one in texts]


USE = {"type": "tool_use", "id": "toolu_1", "name": "go", "input": {"steps": 1.0}}
USED = [USER, {"role": "assistant", "content": [*text("So:"), USE]}]


def result(content: Any = ..., **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **fields}
    return block if content is ... else block | {"content": content}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "[user:Hello]!"),
        ({"system": "Be kind."}, "[system:Be kind.][user:Hello]!"),
        ({"system": text("a", "b")}, "[system:a\nb][user:Hello]!"),
        ({"system": ""}, "[user:Hello]!"),
        ({"messages": [{"role": "user", "content": text("a", "b")}]}, "[user:a\nb]!"),
        ({"messages": [USER, USER]}, "[user:Hello\nHello]!"),
        ({"messages": [USER, {"role": "system", "content": "a"}]}, "[user:Hello][system:a]!"),
        (
            {"messages": [USER, {"role": "assistant", "content": "It is"}]},
            "[user:Hello][assistant:It is",
        ),
    ],
)
async def test_a_prompt_has_what_is_sent(fields: dict[str, Any], prompt: str) -> None:
    assert await written(**fields) == prompt


async def test_calls_and_results_of_before_are_told() -> None:
    for content, told in [
        ("done", "done"),
        (text("a", "b"), "a\nb"),
        ([], ""),
        (..., ""),
    ]:
        messages = [*USED, {"role": "user", "content": [result(content), *text("And?")]}]
        assert await written(messages=messages, tools=TOOLS) == (
            f'[user:Hello][assistant:So:<toolu_1:go:{{"steps": 1.0}}>]'
            f"[tool:{told}=toolu_1][user:And?](go)(wait)!"
        )


async def test_a_result_that_is_an_error_says_so() -> None:
    messages = [*USED, {"role": "user", "content": [result("too far", is_error=True)]}]
    assert "[tool:Error:\ntoo far=toolu_1]" in await written(messages=messages, tools=TOOLS)


async def test_a_template_that_shows_no_thoughts_leaves_those_of_before_out() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    messages = [USER, {"role": "assistant", "content": [*thoughts, *text("So:")]}, USER]
    assert await written(messages=messages) == "[user:Hello][assistant:So:][user:Hello]!"


async def test_a_template_may_show_thoughts_of_before() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    messages = [USER, {"role": "assistant", "content": [thought, *text("So:")]}, USER]
    template = "{% for m in messages %}{{ m.reasoning_content or '' }}|{% endfor %}"
    assert await written(messages=messages, template=template) == "|hm||"


async def test_a_turn_of_the_system_may_be_a_block() -> None:
    block = {"type": "mid_conv_system", "content": text("a", "b")}
    messages = [{"role": "user", "content": [*text("x"), block]}]
    assert await written(messages=messages) == "[user:x][system:a\nb]!"


async def test_images_are_replaced_by_a_note_where_the_server_says_so() -> None:
    document = {"type": "document", "source": IMAGE["source"]}
    messages = [{"role": "user", "content": [IMAGE, document, *text("?")]}]
    prompt = await written(messages=messages, omit_media=True)
    assert prompt.startswith("[user:(An image was left out here")
    assert "(A file was left out here" in prompt


async def test_what_concerns_other_servers_is_taken_and_not_used() -> None:
    plain = await written()
    assert plain == await written(
        metadata={"user_id": "me"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        thinking={"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
        output_config={"effort": "low"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        container=None,
        mcp_servers=[],
        inference_geo="eu",
        top_p=0.9,
        top_k=5,
    )


# --- tools ------------------------------------------------------------------------------------


async def test_an_answer_that_is_a_call_becomes_one() -> None:
    async with gateway_running(saying(f" {CALL}", n_prompt=len(TOLD))) as running:
        answer = await ask(running, tools=TOOLS)
        events = await stream(running, tools=TOOLS)
    assert nameless(joined(events)) == nameless(answer)
    assert answer["stop_reason"] == "tool_use"
    [block] = answer["content"]
    assert block.pop("id").startswith("toolu_")
    assert block == {
        "type": "tool_use",
        "name": "go",
        "input": {"direction": "north", "steps": 2},
        "caller": {"type": "direct"},
    }


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "go"}])
async def test_a_required_call_comes_whatever_the_model_would_say(choice: dict[str, Any]) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 500, "temperature": 1}
    async with gateway_running(constrained()) as running:
        for answer in (await ask(running, **fields), joined(await stream(running, **fields))):
            assert answer["stop_reason"] == "tool_use"
            [block] = answer["content"]
            assert block["name"] == "go" or choice["type"] == "any"
            assert block["name"] == "wait" or block["input"]["steps"] >= 1


async def test_the_model_is_not_told_of_tools_that_it_may_not_call() -> None:
    assert await written(tools=TOOLS, tool_choice={"type": "none"}) == "[user:Hello]!"


async def test_names_of_tools_may_have_128_characters() -> None:
    long = "n" * 128
    fields = {"tools": [GO | {"name": long}], "tool_choice": {"type": "any"}, "max_tokens": 900}
    async with gateway_running(constrained()) as running:
        answer = await ask(running, **fields)
        assert answer["content"][0]["name"] == long
        assert "tools" in await refusal(running, tools=[GO | {"name": long + "n"}])


async def test_a_call_that_is_cut_off_has_no_input() -> None:
    fields = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "go"}, "max_tokens": 37}
    async with gateway_running(constrained()) as running:
        answer = await ask(running, **fields)
        events = await stream(running, **fields)
    assert (answer["stop_reason"], answer["content"][0]["input"]) == ("max_tokens", {})
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == '{"direction"'


async def test_an_answer_is_json_of_a_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    form = {"format": {"type": "json_schema", "schema": schema}}
    async with gateway_running(constrained()) as running:
        answer = await ask(running, output_config=form)
        assert json.loads(answer["content"][0]["text"])["n"] in (1, 2)
        form["format"]["schema"] = {"type": "object", "not": {}}
        assert (await refusal(running, output_config=form)).startswith("output_config.format: ")


# --- thoughts, and several calls --------------------------------------------------------------

QWEN = Texts(
    ByteTokenizer(),
    ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ enable_thinking }}"
        "{% if tools %}{% endif %}"
    ),
    tool_parser="hermes",
    reasoning_parser="think",
)
"""Of a model that thinks, and calls several tools at once."""
THOUGHT = "<think>\nWell.\n</think>\n\nLet us go."
SAID = [{"type": "text", "text": "Let us go.", "citations": None}]
WELL = {"type": "thinking", "thinking": "Well.", "signature": ""}


@pytest.mark.parametrize(
    ("thinking", "word", "content"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, "True", [WELL, *SAID]),
        ({"type": "adaptive", "display": "summarized"}, "True", [WELL, *SAID]),
        ({"type": "enabled", "display": "omitted"}, "True", SAID),
        ({"type": "disabled"}, "False", SAID),
        (None, "", SAID),
    ],
)
async def test_thoughts_are_told_if_they_are_asked_for(
    thinking: dict[str, Any] | None, word: str, content: list[dict[str, Any]]
) -> None:
    if thinking is not None:
        thinking.pop("budget_tokens", None)  # to ids that are bytes, the closing word is many
    engine = saying(THOUGHT, n_prompt=len(f"Hello{word}"))
    async with gateway_running(engine, texts=QWEN) as running:
        answer = await ask(running, thinking=thinking)
        events = await stream(running, thinking=thinking)
    assert answer["content"] == content
    assert joined(events) | {"id": ""} == answer | {"id": ""}


async def test_a_budget_that_cannot_be_kept_is_refused_by_its_name() -> None:
    async with gateway_running(constrained(), texts=QWEN) as running:
        why = await refusal(running, thinking={"type": "enabled", "budget_tokens": 1024})
    assert why.startswith("thinking.budget_tokens: ")


async def test_an_answer_may_have_text_and_several_calls() -> None:
    calls = "".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in TWO_CALLS)
    engine = saying(f"{THOUGHT}\n{calls}", n_prompt=len("Hello"))
    async with gateway_running(engine, texts=QWEN) as running:
        answer = await ask(running, tools=TOOLS, max_tokens=300)
        events = await stream(running, tools=TOOLS, max_tokens=300)
        single = {"type": "auto", "disable_parallel_tool_use": True}
        one = await ask(running, tools=TOOLS, max_tokens=300, tool_choice=single)
    assert nameless(joined(events)) == nameless(answer)
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in answer["content"][1:]] == [
        call["arguments"] for call in TWO_CALLS
    ]
    assert len({block["id"] for block in answer["content"][1:]}) == 2
    assert answer["stop_reason"] == "tool_use"
    assert [block["type"] for block in one["content"]] == ["text", "tool_use"]


TWO_CALLS: list[dict[str, Any]] = [
    {"name": "go", "arguments": {"direction": "north", "steps": 2}},
    {"name": "wait", "arguments": {}},
]


# --- refusals ---------------------------------------------------------------------------------


def said(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_tokens": ...}, "max_tokens: is required"),
        ({"max_tokens": 0}, "max_tokens: 0 is not positive"),
        ({"messages": ...}, "messages: is required"),
        ({"messages": []}, "messages: at least one"),
        ({"model": ...}, "model: is required"),
        ({"temperature": -1}, "temperature: "),
        ({"top_p": 2}, "top_p: "),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences: 65 strings"),
        ({"stop_sequences": [""]}, "stop_sequences: "),
        ({"mcp_servers": [{}]}, "mcp_servers: not supported"),
        ({"container": "x"}, "container: not supported"),
        ({"output_format": {}}, "output_format: not supported: use output_config.format"),
        (said(*text("x"), IMAGE), "messages[1].content[1]: a block of type 'image'"),
        (said({"type": "document"}), "messages[1].content[0]: a block of type 'document'"),
        (said({"type": "server_tool_use"}), "messages[1].content[0]: a block of type 'server_tool"),
        (said({"type": "text"}), "messages[1].content[0]: "),
        (said({"type": "tool_use", "id": "a", "name": "go"}, role="assistant"), "messages[1].cont"),
        (said(USE | {"input": [1]}, role="assistant"), "messages[1].content[0].input: "),
        (said(USE, role="assistant"), "messages: the last one calls a tool"),
        (said(result("x")), "messages[1].content[0].tool_use_id: no block"),
        (said({"type": "tool_result"}), "messages[1].content[0]: "),
        ({"messages": [*USED, {"role": "user", "content": [result([IMAGE])]}]},
         "messages[2].content[0].content[0]: a block of type 'image'"),
        ({"system": [IMAGE]}, "system[0]: a block of type 'image'"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema: is required"),
        ({"tools": [GO | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema: "),
        ({"tools": [GO, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type: "),
        ({"tools": [GO, GO]}, "tools: two of them"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: a call is required"),
        ({"tools": [GO], "tool_choice": {"type": "tool"}}, "tool_choice.name: is required"),
        ({"tools": [GO], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice: 'x'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: "),
    ],
)  # fmt: skip
async def test_a_bad_value_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], why: str
) -> None:
    async with gateway_running(saying("Hi")) as running:
        assert (await refusal(running, **fields)).startswith(why)


async def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    deep = "x"
    for _ in range(200):
        deep = [{"type": "tool_result", "tool_use_id": "a", "content": deep}]  # type: ignore[assignment]
    async with gateway_running(saying("Hi")) as running:
        await refusal(running, messages=[{"role": "user", "content": deep}])


async def error_of(
    running: Running,
    path: str = PATH,
    *headers: Mapping[str, str],
    method: str = "POST",
    data: bytes = b"",
) -> tuple[int, str]:
    """The status and the type of an error, which has to be in Anthropic's format."""
    head = ChainMap(*map(dict, headers))
    async with running.http.request(method, path, data=data, headers=head) as response:
        answer = await response.json()
        assert set(answer) == {"type", "error", "request_id"}
        assert answer["type"] == "error"
        assert set(answer["error"]) == {"type", "message"}
        assert response.headers["request-id"] == answer["request_id"]
        assert response.headers["X-Request-Id"] == answer["request_id"]
        return response.status, answer["error"]["type"]


async def test_errors_are_anthropics() -> None:
    hello = json.dumps(HELLO).encode()
    other = hello.replace(b'"fake"', b'"other"')
    config = GatewayConfig(max_body_bytes=1000)
    async with gateway_running(keys=KEYS, config=config) as running:
        assert await error_of(running, data=hello) == (401, "authentication_error")
        assert await error_of(running, PATH, ANNA, data=other) == (404, "not_found_error")
        assert await error_of(running, f"{PATH}/x", ANNA) == (404, "not_found_error")
        assert await error_of(running, PATH, ANNA, method="GET") == (405, "invalid_request_error")
        assert await error_of(running, PATH, ANNA, data=b"{") == (400, "invalid_request_error")
        big = b" " * 1001
        assert await error_of(running, PATH, ANNA, data=big) == (413, "request_too_large")
        encoded = ANNA | {"Content-Encoding": "br"}
        assert await error_of(running, PATH, encoded, data=hello) == (415, "invalid_request_error")
        running.door.begin_drain()
        assert await error_of(running, PATH, ANNA, data=hello) == (529, "overloaded_error")


async def test_a_full_queue_is_a_limit_of_the_rate() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=1, max_queue=0))
    long = {"model": "fake", "prompt": "x", "max_tokens": 10**6, "ignore_eos": True}
    async with (
        gateway_running(engine) as running,
        running.http.post("/v1/completions", json=long | {"stream": True}) as first,
    ):
        await first.content.readline()
        body = json.dumps(HELLO).encode()
        assert await error_of(running, data=body) == (429, "rate_limit_error")


async def test_an_engine_that_is_gone_is_an_overload() -> None:
    async with gateway_running() as running:
        await lose_engine(running)
        found = await error_of(running, data=json.dumps(HELLO).encode())
        assert found == (529, "overloaded_error")


async def test_an_answer_has_the_name_of_its_request() -> None:
    async with gateway_running(saying("Hi")) as running:
        for stream_it in (False, True):
            body = HELLO | {"stream": stream_it}
            headers = {"X-Request-Id": "mine"}
            async with running.http.post(PATH, json=body, headers=headers) as response:
                assert response.headers["request-id"] == "mine"
                assert '"msg_mine"' in await response.text()


# --- keys -------------------------------------------------------------------------------------


async def test_a_key_may_come_in_the_header_of_anthropic() -> None:
    hello = json.dumps(HELLO).encode()
    anna, bert = "a" * 20, "b" * 20
    async with gateway_running(saying("Hi"), keys=KEYS) as running:
        for headers in ({"x-api-key": anna}, {"x-api-key": anna} | ANNA):
            async with running.http.post(PATH, data=hello, headers=headers) as response:
                assert response.status == 200
        refused = (401, "authentication_error")
        assert await error_of(running, PATH, {"x-api-key": "c" * 20}, data=hello) == refused
        assert await error_of(running, PATH, {"x-api-key": bert}, ANNA, data=hello) == refused
