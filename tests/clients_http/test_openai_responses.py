"""OpenAI's client on responses and conversations, against a real server."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door

if TYPE_CHECKING:
    import openai

MOON = "And the moon?"
LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Look at something.",
    "parameters": {
        "type": "object",
        "properties": {"at": {"enum": ["sun", "moon"]}},
        "required": ["at"],
    },
}


@pytest.fixture(scope="module")
def client(door: Door, key: str) -> Iterator["openai.OpenAI"]:
    import openai

    with openai.OpenAI(base_url=door.base_url, api_key=key, max_retries=0) as client:
        yield client


def test_a_response_and_what_goes_on_from_it(client: "openai.OpenAI") -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    assert first.output_text == ANSWER
    assert first.usage is not None
    second = client.responses.create(
        model=MODEL, input=MOON, previous_response_id=first.id, temperature=0
    )
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens
    found = client.responses.retrieve(second.id)
    assert found.model_dump() == second.model_dump()
    items = list(client.responses.input_items.list(second.id))
    assert [one.to_dict()["content"] for one in items] == [[{"type": "input_text", "text": MOON}]]


def test_a_stream_is_the_response_that_is_not_streamed(client: "openai.OpenAI") -> None:
    whole = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text == ANSWER
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER
    assert deltas
    assert [event.sequence_number for event in events if event.type != "response.output_text.done"]
    assert final.usage == whole.usage


class Thing(pydantic.BaseModel):
    colour: str
    size: int


def test_a_parsed_response_is_what_its_type_says(client: "openai.OpenAI") -> None:
    parsed = client.responses.parse(
        model=MODEL,
        input="Tell me of the sun.",
        text_format=Thing,
        temperature=0,
        max_output_tokens=400,
    )
    if parsed.status == "completed":
        assert isinstance(parsed.output_parsed, Thing)
    else:  # a number, or a text, may be long
        assert parsed.incomplete_details is not None


def test_a_loop_of_tools_goes_on_by_ids_alone(client: "openai.OpenAI") -> None:
    asked = client.responses.create(
        model=MODEL, input="Look!", tools=[LOOK], tool_choice="required", temperature=0
    )
    (call,) = asked.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["at"] in ("sun", "moon")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It is hot."}
    answered = client.responses.create(
        model=MODEL,
        input=[result],
        previous_response_id=asked.id,
        tools=[LOOK],
        tool_choice="none",
        temperature=0,
    )
    assert answered.status == "completed"
    assert answered.output[0].type == "message"


def test_a_call_is_streamed(client: "openai.OpenAI") -> None:
    with client.responses.stream(
        model=MODEL, input="Look!", tools=[LOOK], tool_choice="required", temperature=0
    ) as stream:
        events = list(stream)
    deltas = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
    (done,) = (one for one in events if one.type == "response.function_call_arguments.done")
    assert "".join(deltas) == done.arguments
    assert done.to_dict()["name"] == "look"


def test_a_conversation_gets_what_its_responses_take_and_give(client: "openai.OpenAI") -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "system", "content": "Be kind."}],
        metadata={"of": "tests"},
    )
    first = client.responses.create(
        model=MODEL, input=QUESTION, conversation=conversation.id, temperature=0
    )
    second = client.responses.create(
        model=MODEL, input=MOON, conversation=conversation.id, temperature=0
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    roles = [one.to_dict()["role"] for one in items]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    item = client.conversations.items.retrieve(items[1].id or "", conversation_id=conversation.id)
    assert item.to_dict() == items[1].to_dict()
    client.conversations.items.delete(items[1].id or "", conversation_id=conversation.id)
    assert len(list(client.conversations.items.list(conversation.id))) == 4
    client.conversations.update(conversation.id, metadata={"of": "nothing"})
    assert client.conversations.retrieve(conversation.id).metadata == {"of": "nothing"}
    assert client.conversations.delete(conversation.id).deleted


def test_a_background_response_is_streamed_again(client: "openai.OpenAI") -> None:
    first = client.responses.create(
        model=MODEL, input=QUESTION, background=True, stream=True, temperature=0
    )
    events = list(first)
    created = events[0]
    assert created.type == "response.created"
    again = client.responses.retrieve(created.response.id, stream=True, starting_after=3)
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events[4:]]
    assert client.responses.retrieve(created.response.id).output_text == ANSWER


def test_a_background_response_is_polled(client: "openai.OpenAI") -> None:
    asked = client.responses.create(model=MODEL, input=QUESTION, background=True, temperature=0)
    assert asked.status == "queued"
    last = None
    for event in client.responses.retrieve(asked.id, stream=True):
        last = event
    assert last is not None
    assert last.type == "response.completed"
    assert client.responses.retrieve(asked.id).status == "completed"


def test_a_background_response_is_cancelled(client: "openai.OpenAI") -> None:
    asked = client.responses.create(
        model=MODEL,
        input=QUESTION,
        background=True,
        max_output_tokens=1000,
        extra_body={"ignore_eos": True},
    )
    assert client.responses.cancel(asked.id).status == "cancelled"
    assert client.responses.retrieve(asked.id).status == "cancelled"


def test_what_was_deleted_is_not_there(client: "openai.OpenAI") -> None:
    import openai

    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=MOON, previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


def test_tokens_of_an_input_are_counted(client: "openai.OpenAI") -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4)
    assert first.usage is not None
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION)
    assert counted.input_tokens == first.usage.input_tokens


def test_log_probabilities_are_told(client: "openai.OpenAI") -> None:
    told = client.responses.create(
        model=MODEL,
        input=QUESTION,
        max_output_tokens=4,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
        temperature=0,
    )
    (message,) = told.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [len(one.top_logprobs) for one in part.logprobs] == [2] * 4
