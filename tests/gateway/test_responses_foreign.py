"""Tools of responses that are no functions: how they are offered, called, told and sent back."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.gateway.harness import Running
from tests.gateway.responding import MODEL, refused, respond, stream, tales_running
from tests.gateway.stateful import ask
from wkvm.gateway.responses import foreign
from wkvm.gateway.responses.items import Item, chat_messages, kept_items

ASKED = "Do something."
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
}
SHELL = {"type": "local_shell"}
LOOK = {
    "type": "function",
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"at": {"enum": ["sun", "moon"]}},
        "required": ["at"],
    },
    "strict": True,
}
FILES = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [LOOK]}
MUST: dict[str, Any] = {"tool_choice": "required", "max_output_tokens": 400}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with tales_running(tmp_path_factory.mktemp("tales")) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_custom_tool_is_called_with_a_text(running: Running) -> None:
    made = await respond(running, ASKED, tools=[PATCH], **MUST)
    (item,) = made["output"]
    assert (item["type"], item["name"]) == ("custom_tool_call", "patch")
    assert item["id"].startswith("ctc_")
    assert isinstance(item["input"], str)
    assert made["tools"] == [PATCH]


async def test_the_events_of_a_custom_tool_have_its_text(running: Running) -> None:
    events = await stream(running, ASKED, tools=[PATCH], **MUST)
    kinds = [event["type"] for event in events]
    assert not [kind for kind in kinds if "function_call" in kind]
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    (item,) = events[-1]["response"]["output"]
    assert "".join(deltas) == done["input"] == item["input"]


async def test_a_shell_is_called_with_a_command(running: Running) -> None:
    made = await respond(running, ASKED, tools=[SHELL], **MUST | {"max_output_tokens": 1000})
    (item,) = made["output"]
    assert item["type"] == "local_shell_call"
    assert item["action"]["type"] == "exec"
    assert all(isinstance(word, str) for word in item["action"]["command"])
    assert made["tools"] == [SHELL]


async def test_a_function_of_a_namespace_is_called_by_both_names(running: Running) -> None:
    made = await respond(running, ASKED, tools=[FILES], **MUST)
    (item,) = made["output"]
    assert (item["namespace"], item["name"]) == ("mcp__files", "look")
    assert msgspec.json.decode(item["arguments"])["at"] in ("sun", "moon")


@pytest.mark.parametrize("kind", sorted(foreign.LEFT_OUT))
async def test_a_tool_that_others_run_is_left_out(running: Running, kind: str) -> None:
    plain = await respond(running, ASKED, tools=[LOOK])
    with_it = await respond(running, ASKED, tools=[{"type": kind, "x": 1}, LOOK])
    assert with_it["output"][0]["content"] == plain["output"][0]["content"]
    assert with_it["usage"]["input_tokens"] == plain["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"tools": [LOOK, {"type": "custom"}]}, "tools[1].name"),
        ({"tools": [{**FILES, "tools": [PATCH]}]}, "tools[0].tools[0].type"),
        ({"tools": [LOOK], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": SHELL}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "p"}]}, "input[0].input"),
        ({"input": [{"type": "local_shell_call", "call_id": "c"}]}, "input[0].action"),
        (
            {"input": [{"type": "local_shell_call", "call_id": "c", "action": {"command": "ls"}}]},
            "input[0].action.command",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_its_place(
    running: Running, body: dict[str, Any], param: str
) -> None:
    given = {"input": ASKED, **body}
    assert (await refused(running, given.pop("input"), **given))["param"] == param


async def test_a_named_tool_is_called_whatever_its_type(running: Running) -> None:
    tools = [LOOK, PATCH, SHELL]
    custom = {"type": "custom", "name": "patch"}
    for choice, kind in ((custom, "custom_tool_call"), (SHELL, "local_shell_call")):
        made = await respond(running, ASKED, tools=tools, **MUST | {"tool_choice": choice})
        assert made["output"][0]["type"] == kind
        assert made["tool_choice"]["type"] == choice["type"]


async def test_a_conversation_goes_on_with_what_a_tool_gave(running: Running) -> None:
    made = await respond(running, ASKED, tools=[PATCH], **MUST)
    result = {
        "type": "custom_tool_call_output",
        "call_id": made["output"][0]["call_id"],
        "output": "Done.",
    }
    given = {"tools": [PATCH], "previous_response_id": made["id"]}
    after = await respond(running, [result], **given)
    assert after["status"] in ("completed", "incomplete")
    status, listed = await ask(running, "GET", f"/v1/responses/{after['id']}/input_items")
    assert status == 200
    assert [item["type"] for item in listed["data"]] == ["custom_tool_call_output"]
    assert after["model"] == MODEL


ACTION = {"type": "exec", "command": ["ls", "-l"], "env": None, "timeout_ms": 5}
HISTORY: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": ASKED},
    {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": 'say "x"\n'},
    {"type": "custom_tool_call_output", "call_id": "a", "output": "Done."},
    {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
    {"type": "local_shell_call", "call_id": "b", "action": ACTION},
    {"type": "local_shell_call_output", "id": "b", "output": "none"},
    {
        "type": "function_call",
        "call_id": "c",
        "namespace": "mcp__files",
        "name": "look",
        "arguments": "{}",
    },
    {"type": "function_call_output", "call_id": "c", "output": "none"},
]


async def test_calls_and_results_are_a_chat_as_the_model_writes_it() -> None:
    items = kept_items(msgspec.convert(HISTORY, list[Item]), "input", omit_media=False)
    messages = chat_messages(items)
    roles = ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool"]
    assert [message.role for message in messages] == roles
    calls = [call.function for message in messages for call in message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [
        ("patch", '{"input":"say \\"x\\"\\n"}'),
        ("local_shell", '{"command":["ls","-l"],"timeout_ms":5}'),
        ("mcp__files__look", "{}"),
    ]
    assert [m.tool_call_id for m in messages if m.role == "tool"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ('{"command":["ls"]}', ["ls"]),
        ('{"command":"ls -l"}', ["ls -l"]),
        ('{"command":7}', []),
        ('{"command":["l', []),
        ("[]", []),
    ],
)
async def test_a_command_is_a_list_of_texts_whatever_the_model_wrote(
    arguments: str, command: list[str]
) -> None:
    assert foreign.shell_action(arguments)["command"] == command


@pytest.mark.parametrize(
    ("arguments", "text"), [('{"input":"a"}', "a"), ('{"input":1}', ""), ('{"input":"a', "")]
)
async def test_a_text_that_was_cut_off_is_empty(arguments: str, text: str) -> None:
    assert foreign.text_input(arguments) == text
