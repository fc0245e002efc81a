"""The official ``openai`` package over a WebSocket, against a real server."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door

# What openai says to a newer websockets than it was made for.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

ASKED: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "store": False}
AGAIN = "What is the moon?"
FINAL = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def client(door: Door, key: str) -> Iterator[Any]:
    openai = importlib.import_module("openai")
    with openai.OpenAI(base_url=door.base_url, api_key=key, max_retries=0) as client:
        yield client


def ended(connection: Any) -> Any:
    """The last event of the response that is being made."""
    while (event := connection.recv()).type not in FINAL:
        pass
    return event


def test_a_response_is_streamed_and_gone_on_with_in_another_lane(client: Any) -> None:
    with client.responses.connect() as connection:
        connection.response.create(**ASKED, stream_id="a")
        text = ""
        while (event := connection.recv()).type not in FINAL:
            assert event.stream_id == "a"
            if event.type == "response.output_text.delta":
                text += event.delta
        assert event.type == "response.completed"
        assert text == ANSWER == event.response.output[0].content[0].text
        first = event.response
        again = {**ASKED, "input": AGAIN, "previous_response_id": first.id}
        connection.response.create(**again, stream_id="b")
        event = ended(connection)
        assert (event.type, event.stream_id) == ("response.completed", "b")
        cached = event.response.usage.input_tokens_details.cached_tokens
        assert cached >= first.usage.input_tokens
        over_http = client.responses.create(
            **{
                **ASKED,
                "input": [
                    {"role": "user", "content": QUESTION},
                    {"role": "assistant", "content": ANSWER},
                    {"role": "user", "content": AGAIN},
                ],
            }
        )
        assert event.response.output[0].content[0].text == over_http.output_text


def test_a_response_is_steered(client: Any) -> None:
    with client.responses.connect() as connection:
        connection.response.create(**ASKED)
        created = connection.recv()
        assert created.type == "response.created"
        connection.response.steer(previous_response_id=created.response.id, input=AGAIN)
        kinds = list[str]()
        while len([kind for kind in kinds if kind == "response.completed"]) < 2:
            event = connection.recv()
            kinds.append(event.type)
        assert kinds.count("response.steer.accepted") == 1
        assert event.response.previous_response_id == created.response.id


def test_what_only_another_connection_remembers_is_not_found(client: Any) -> None:
    with client.responses.connect() as connection:
        connection.response.create(**ASKED, generate=False)
        warm = ended(connection).response
        assert warm.output == []
    with client.responses.connect() as connection:
        connection.response.create(**ASKED, previous_response_id=warm.id)
        event = ended(connection)
        assert (event.type, event.error.code) == ("error", "previous_response_not_found")
        assert (event.status, event.error.param) == (400, "previous_response_id")
