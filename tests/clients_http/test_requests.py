"""What known programs send, body by body, against a real server.

Their own code does not run here. The bodies are written after what they are publicly known to
send: with fields of their own, empty ones, and ones that other servers have.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door

GREEDY = {"temperature": 0}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        """The JSON of a whole answer, which was a success."""
        assert self.status == 200, self.text
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The data of each event of a stream but ``[DONE]``."""
        assert self.status == 200, self.text
        assert self.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


@dataclass(frozen=True, slots=True)
class Program:
    """Sends requests with headers of its own."""

    url: str
    headers: Mapping[str, str]

    def __call__(self, path: str, body: object = None) -> Answer:
        """POST a body, or GET without one."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=300)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request("GET" if data is None else "POST", path, data, dict(self.headers))
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read().decode())
        finally:
            connection.close()


def text_of(events: list[Any]) -> str:
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])


# --- Open WebUI -------------------------------------------------------------------------------


@pytest.fixture
def open_webui(door: Door, key: str) -> Program:
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "*/*",
        "X-OpenWebUI-User-Name": "Ada%20L",
        "X-OpenWebUI-User-Id": "1",
        "X-OpenWebUI-User-Email": "ada@example.org",
        "X-OpenWebUI-User-Role": "admin",
        "X-OpenWebUI-Chat-Id": "c",
    }
    return Program(door.url, headers)


def test_open_webui_finds_the_model_and_chats_with_it(open_webui: Program) -> None:
    (model,) = open_webui("/v1/models").body["data"]
    body = GREEDY | {
        "model": model["id"],
        "stream": True,
        "messages": [
            {"role": "system", "content": "You are kind."},
            {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        ],
        # What is set in its panel of parameters, and what its own models are asked for besides.
        "max_tokens": 60,
        "top_k": 40,
        "min_p": 0.0,
        "repeat_penalty": 1.1,
        "repeat_last_n": 64,
        "mirostat": 0,
        "tfs_z": 1,
        "num_ctx": 2048,
        "num_keep": 24,
        "keep_alive": "5m",
        "think": False,
        "stop": [],
        "logit_bias": {},
        "seed": None,
        "stream_options": {"include_usage": True},
        "params": {},
        "features": {"web_search": False, "code_interpreter": False},
        "variables": {"{{USER_NAME}}": "Ada"},
        "session_id": "s",
        "chat_id": "c",
        "id": "m",
        "background_tasks": {"title_generation": True},
        "metadata": {"chat_id": "c", "features": {}, "variables": {}, "tool_ids": None},
    }
    *events, last = open_webui("/v1/chat/completions", body).events
    assert text_of(events) == ANSWER
    assert last["usage"]["completion_tokens"] > 0


def test_open_webui_makes_titles_and_tags(open_webui: Program) -> None:
    history = f"<chat_history>\nUSER: {QUESTION}\nASSISTANT: {ANSWER}\n</chat_history>"
    body = GREEDY | {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Generate a title with an emoji.\n{history}"}],
        "stream": False,
        "max_completion_tokens": 12,
        "metadata": {"task": "title_generation", "task_body": {"model": MODEL}, "chat_id": None},
    }
    (choice,) = open_webui("/v1/chat/completions", body).body["choices"]
    assert choice["message"]["content"]


def test_open_webui_offers_its_tools_and_sends_their_results(open_webui: Program) -> None:
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": []}
    call = {"name": "search", "arguments": ""}
    body = GREEDY | {
        "model": MODEL,
        "stream": True,
        "max_tokens": 12,
        "tools": [
            {"type": "function", "function": {"name": "search", "parameters": parameters}},
        ],
        "messages": [
            {"role": "user", "content": QUESTION},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"index": 0, "id": "x", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "x", "content": "A star."},
        ],
    }
    assert text_of(open_webui("/v1/chat/completions", body).events)


# --- editors ----------------------------------------------------------------------------------


@pytest.fixture
def editor(door: Door, key: str) -> Program:
    headers = {"Authorization": f"Bearer {key}", "api-key": key, "x-api-key": key}
    return Program(door.url, headers | {"Content-Type": "application/json"})


def test_continue_completes_code_by_a_prompt_of_its_own_making(editor: Program) -> None:
    body = {
        "model": MODEL,
        "prompt": "<fim_prefix>The dog ran to<fim_suffix> home.<fim_middle>",
        "max_tokens": 12,
        "temperature": 0.01,
        "stop": [
            *("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<|endoftext|>"),
            *("/src/", "#- coding: utf-8", "```", "t.", "\nt", "<|fim_pad|>", "<|repo_name|>"),
            *("\nfunction", "\nclass", "\nmodule", "\nexport", "\nimport"),
        ],
        "stream": True,
    }
    events = editor("/v1/completions", body).events
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_continue_is_told_by_the_field_that_a_model_cannot_fill_a_gap(editor: Program) -> None:
    body = {"model": MODEL, "prompt": "The dog", "suffix": " home.", "stream": True}
    answer = editor("/v1/completions", body)
    assert answer.status == 400
    assert json.loads(answer.text)["error"]["param"] == "suffix"


def test_continue_chats_in_parts_and_with_empty_messages(editor: Program) -> None:
    body = GREEDY | {
        "model": MODEL,
        "max_tokens": 60,
        "stream": True,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": QUESTION},
        ],
        "tools": [],
    }
    assert text_of(editor("/v1/chat/completions", body).events)


def test_aider_chats_with_a_history_that_it_made_up(editor: Program) -> None:
    body = GREEDY | {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Act as an expert."},
            {"role": "user", "content": "Use these files."},
            {"role": "assistant", "content": "Ok."},
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "The sun", "prefix": True},
        ],
        "max_tokens": 12,
        "stream": True,
        "num_ctx": 4096,
    }
    assert text_of(editor("/v1/chat/completions", body).events)


def test_fields_that_are_null_count_as_absent(editor: Program) -> None:
    names = "max_tokens max_completion_tokens n tools tool_choice response_format stop logit_bias"
    names += " functions function_call user seed top_p presence_penalty frequency_penalty logprobs"
    names += " top_logprobs stream_options modalities audio prediction service_tier store metadata"
    nulls = dict.fromkeys(names.split())
    body = GREEDY | {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
    (choice,) = editor("/v1/chat/completions", body | nulls).body["choices"]
    assert choice["message"]["content"] == ANSWER


# --- agents on Anthropic's interface ----------------------------------------------------------


@pytest.fixture
def agent(door: Door, key: str) -> Program:
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
        "X-Stainless-Lang": "js",
        "X-Stainless-Retry-Count": "0",
        "X-Stainless-Timeout": "600",
    }
    return Program(door.url, headers)


CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOLS = [
    {
        "name": name,
        "description": "What this does. " * 20,
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What to run."},
                "timeout": {"type": "number", "description": "In milliseconds."},
                "edits": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"old": {"type": "string"}}},
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    }
    for name in ("Bash", "Read", "Edit", "Grep", "Task", "mcp__files__list_directory")
]
AGENT: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 32,
    "temperature": 1,
    "system": [
        {"type": "text", "text": "You are an agent for the command line."} | CACHED,
        {"type": "text", "text": "Do what you are asked to do. " * 200} | CACHED,
    ],
    "tools": TOOLS,
    "metadata": {"user_id": '{"device_id": "d", "session_id": "s"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
ASKED = {
    "role": "user",
    "content": [
        {"type": "text", "text": "<system-reminder>\nThe date is known.\n</system-reminder>"},
        {"type": "text", "text": QUESTION} | CACHED,
    ],
}


def test_an_agent_asks_with_large_systems_tools_and_fields_of_beta_versions(
    agent: Program,
) -> None:
    events = agent("/v1/messages?beta=true", AGENT | {"messages": [ASKED]}).events
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"


def test_an_agent_sends_back_what_it_thought_called_and_was_told(agent: Program) -> None:
    history = [
        ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Let me see.", "signature": "abc"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {"command": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such file"}],
                    **CACHED,
                },
            ],
        },
    ]
    events = agent("/v1/messages?beta=true", AGENT | {"messages": history}).events
    assert events[-1]["type"] == "message_stop"


def test_an_agent_counts_its_tokens_before_it_asks(agent: Program) -> None:
    names = ("model", "system", "tools", "thinking")
    body = {name: AGENT[name] for name in names} | {"messages": [ASKED]}
    counted = agent("/v1/messages/count_tokens?beta=true", body).body["input_tokens"]
    whole = agent("/v1/messages?beta=true", AGENT | {"messages": [ASKED], "stream": False}).body
    usage = whole["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == read + usage["cache_creation_input_tokens"]


def test_an_agent_probes_with_one_token(agent: Program) -> None:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    answer = agent("/v1/messages?beta=true", body).body
    assert answer["stop_reason"] in ("max_tokens", "end_turn")


# --- Codex ------------------------------------------------------------------------------------


@pytest.fixture
def codex(door: Door, key: str) -> Program:
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "OpenAI-Beta": "responses=experimental",
        "originator": "codex_cli_rs",
        "session_id": "0199",
        "conversation_id": "0199",
    }
    return Program(door.url, headers)


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


COMMAND = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "To run."},
        "workdir": {"type": "string"},
        "timeout_ms": {"type": "number"},
    },
    "required": ["command"],
    "additionalProperties": False,
}
STEPS = {
    "type": "object",
    "properties": {"plan": {"type": "array", "items": {"type": "object", "properties": {}}}},
    "required": ["plan"],
    "additionalProperties": False,
}
PLAN = {
    "type": "function",
    "name": "update_plan",
    "description": "Notes steps.",
    "strict": False,
    "parameters": STEPS,
}
CODEX: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are an agent that writes code. " * 40,
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a command.",
            "strict": False,
            "parameters": COMMAND,
        },
        PLAN,
        {"type": "local_shell"},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "***" /.+/'},
        },
        {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [PLAN]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "i"},
    "max_output_tokens": 24,
}
OPENED = [
    said("developer", "<permissions>Ask before you write.</permissions>"),
    said("user", "<environment_context><cwd>/src</cwd></environment_context>"),
    said("user", QUESTION),
]


def finished(answer: Answer) -> Any:
    """The response at the end of a stream, which has to say what Codex reads of it."""
    events = answer.events
    assert events[0]["type"] == "response.created"
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    usage = last["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert usage["output_tokens_details"]["reasoning_tokens"] >= 0
    return last["response"]


def test_codex_begins_with_all_of_its_tools(codex: Program) -> None:
    response = finished(codex("/v1/responses", CODEX | {"input": OPENED}))
    assert response["store"] is False
    assert response["prompt_cache_key"] == "0199"


def test_codex_sends_back_everything_that_was_thought_called_and_given(codex: Program) -> None:
    history = [
        *OPENED,
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAA"},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "a"},
        {"type": "function_call_output", "call_id": "a", "output": '{"output": "b.txt"}'},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "***", "call_id": "b"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "Done."},
        {
            "type": "local_shell_call",
            "status": "completed",
            "call_id": "c",
            "action": {"type": "exec", "command": ["ls"], "timeout_ms": None, "env": None},
        },
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "b"}],
        },
        {
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "b"},
        },
        said("assistant", "It is there."),
        said("user", "Go on."),
    ]
    finished(codex("/v1/responses", CODEX | {"input": history}))


def test_codex_asks_for_an_answer_by_a_schema(codex: Program) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["star", "moon"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "strict": True, "name": "codex_output_schema", "schema": schema}
    body = CODEX | {"input": OPENED, "tools": [], "text": {"format": form}}
    (item,) = finished(codex("/v1/responses", body))["output"]
    assert json.loads(item["content"][0]["text"])["kind"] in ("star", "moon")


async def test_codex_warms_up_over_a_websocket_and_sends_what_is_new_alone(codex: Program) -> None:
    headers = dict(codex.headers) | {"OpenAI-Beta": "responses_websockets=2026-02-06"}
    body = CODEX | GREEDY | {"type": "response.create"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(f"{codex.url}/v1/responses") as socket,
    ):

        async def asked(**fields: Any) -> Any:
            await socket.send_json(body | fields)
            while True:
                event = await socket.receive_json(timeout=300)
                assert event["type"] not in ("error", "response.failed"), event
                if event["type"] in ("response.completed", "response.incomplete"):
                    return event["response"]

        warm = await asked(input=OPENED[:2], generate=False)
        first = await asked(input=OPENED[2:], previous_response_id=warm["id"])
        more = {"previous_response_id": first["id"], "input": [said("user", "Go on.")]}
        second = await asked(**more)
    assert warm["output"] == []
    for before, after in ((warm, first), (first, second)):
        details = after["usage"]["input_tokens_details"]
        assert details["cached_tokens"] >= before["usage"]["input_tokens"]
