"""OpenAI's client on responses and conversations, against a real server."""

import json
import re
import socket
import socketserver
import threading
import urllib.parse
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


class Losing(socketserver.ThreadingTCPServer):
    """Passes requests on to a server. The first answer to a request for a response is lost."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Lost)
        parts = urllib.parse.urlsplit(url)
        self.behind = (str(parts.hostname), parts.port or 0)
        self.n_lost = 0


class _Lost(socketserver.StreamRequestHandler):
    server: Losing

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return
            head += line
        found = re.search(rb"(?i)content-length: (\d+)", head)
        body = self.rfile.read(int(found[1])) if found else b""
        with socket.create_connection(self.server.behind) as behind:
            behind.sendall(re.sub(rb"(?i)(connection: )[^\r]*", rb"\1close", head) + body)
            answer = b"".join(iter(lambda: behind.recv(65536), b""))
        if head.startswith(b"POST /v1/responses ") and not self.server.n_lost:
            self.server.n_lost += 1
            return
        self.wfile.write(answer)


def test_a_turn_whose_answer_was_lost_is_in_its_conversation_once(
    client: "openai.OpenAI", door: Door
) -> None:
    with Losing(door.url) as losing:
        threading.Thread(target=losing.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{losing.server_address[1]}/v1"
        client = client.with_options(base_url=url, max_retries=2, timeout=60)
        talk = client.conversations.create()
        answer = client.responses.create(
            model=MODEL,
            input=QUESTION,
            temperature=0,
            conversation=talk.id,
            extra_headers={"Idempotency-Key": "a turn"},
        )
        items = client.conversations.items.list(talk.id, order="asc").data
        losing.shutdown()
    assert losing.n_lost == 1
    assert answer.output_text == ANSWER
    assert [item.to_dict()["role"] for item in items] == ["user", "assistant"]
