"""Responses of a model that thinks: what is told of it, and what of it is read again."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Running
from tests.gateway.responding import cached, events_of, text_of
from tests.gateway.scripted import script_engine
from tests.gateway.stateful import ask, states_running
from wkvm.engine.engine import Engine
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import ByteTokenizer
from wkvm.gateway.texts import Texts

MODEL = "fake"
SAID = b"<think>Hm, so.</think>Hi.\n"
ASKED = b"user: Who?\nassistant: "
FORGETS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
RECALLS = FORGETS.replace("{{ m.content }}", THOUGHT + "{{ m.content }}")


def thinking() -> Engine:
    """An engine that thinks and answers after ``ASKED``; a line end ends an answer."""
    turn = (len(ASKED) - 1) % len(SAID)
    return script_engine(SAID[len(SAID) - turn :] + SAID[: len(SAID) - turn], eos_ids=(10,))


def texts(template: str) -> Texts:
    return Texts(ByteTokenizer(), ChatTemplate(template), reasoning_parser="think")


async def respond(running: Running, text: str, **body: Any) -> Any:
    asked = {"model": MODEL, "input": text, "temperature": 0, "max_output_tokens": 64, **body}
    status, answer = await ask(running, "POST", "/v1/responses", asked)
    assert status == 200, answer
    return answer


async def test_what_is_thought_is_an_item_of_its_own(tmp_path: Path) -> None:
    async with states_running(tmp_path, thinking(), texts=texts(FORGETS)) as running:
        made = await respond(running, "Who?")
    thought, said = made["output"]
    assert thought["type"] == "reasoning"
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm, so."}]
    assert thought["summary"] == []
    assert text_of(made) == "Hi."
    assert said["type"] == "message"
    usage = made["usage"]["output_tokens_details"]
    assert usage == {"reasoning_tokens": len("Hm, so.")}


async def test_it_is_streamed_before_what_is_said(tmp_path: Path) -> None:
    body = {"model": MODEL, "input": "Who?", "temperature": 0, "stream": True}
    async with states_running(tmp_path, thinking(), texts=texts(FORGETS)) as running:
        events = await events_of(running, "POST", "/v1/responses", body)
    deltas = [one for one in events if one["type"] == "response.reasoning_text.delta"]
    assert "".join(one["delta"] for one in deltas) == "Hm, so."
    kinds = list(dict.fromkeys(one["type"].removeprefix("response.") for one in events))
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        *("output_item.done", "output_text.delta", "output_text.done", "completed"),
    ]


@pytest.mark.parametrize(("template", "is_read_again"), [(FORGETS, True), (RECALLS, False)])
async def test_where_the_template_forgets_thoughts_all_is_read_anew(
    tmp_path: Path, template: str, is_read_again: bool
) -> None:
    async with states_running(tmp_path, thinking(), texts=texts(template)) as running:
        first = await respond(running, "Who?")
        second = await respond(running, "Why?", previous_response_id=first["id"])
        whole = texts(template).template.render(
            [
                {"role": "user", "content": "Who?"},
                {"role": "assistant", "content": "Hi.", "reasoning_content": "Hm, so."},
                {"role": "user", "content": "Why?"},
            ]
        )
    assert second["usage"]["input_tokens"] == len(whole)
    assert (cached(second) == 0) == is_read_again
    assert ("Hm, so." in whole) != is_read_again
