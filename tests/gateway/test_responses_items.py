"""Items: how they are kept, the chat that they are, and the events that build them."""

from typing import Any

import msgspec
import pytest

from wkvm.gateway.chat.messages import Message
from wkvm.gateway.chat.replies import LikelyToken, TokenLogprob
from wkvm.gateway.failures import HttpError
from wkvm.gateway.parsing.events import CallArguments, CallBegins, CallEnds, Reasoning, Text
from wkvm.gateway.responses.items import Item, Part, chat_messages, kept_items
from wkvm.gateway.responses.truncation import shortened
from wkvm.gateway.responses.writer import EventWriter


def kept(*items: Item) -> list[dict[str, Any]]:
    return kept_items(list(items), "input", omit_media=False)


def test_a_text_is_a_message_of_a_user() -> None:
    (item,) = kept_items("Hello", "input", omit_media=False)
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hello"}],
    }


def test_an_item_keeps_its_own_id_and_status() -> None:
    (item,) = kept(Item(id="msg_mine", status="incomplete", role="assistant", content="Hi"))
    assert (item["id"], item["status"]) == ("msg_mine", "incomplete")
    assert item["content"] == [
        {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}
    ]


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_an_id_has_its_limits(name: str) -> None:
    with pytest.raises(HttpError) as caught:
        kept(Item(id=name, role="user", content="x"))
    assert caught.value.param == "input[0].id"
    assert kept(Item(id="x" * 128, role="user", content="x"))


def test_what_an_answer_thought_said_and_called_is_one_message() -> None:
    messages = chat_messages(
        kept(
            Item(role="user", content="Look."),
            Item(type="reasoning", summary=[], content=[Part("reasoning_text", "Hm.")]),
            Item(role="assistant", content="I look."),
            Item(type="function_call", call_id="a", name="look", arguments="{}"),
            Item(type="function_call", call_id="b", name="hear", arguments="{}"),
            Item(type="function_call_output", call_id="a", output="Red."),
            Item(type="function_call_output", call_id="b", output=[Part("input_text", "Loud.")]),
            Item(type="function_call", call_id="c", name="look", arguments="{}"),
        )
    )
    assert [message.role for message in messages] == [
        *("user", "assistant", "tool", "tool", "assistant")
    ]
    answer = messages[1]
    assert (answer.content, answer.reasoning_content) == ("I look.", "Hm.")
    assert [call.function.name for call in answer.calls] == ["look", "hear"]
    assert [call.function.name for call in messages[4].calls] == ["look"]
    assert (messages[2].content, messages[2].tool_call_id) == ("Red.", "a")
    assert messages[3].content == "Loud."


def test_two_answers_in_a_row_are_two() -> None:
    said = [Item(role="assistant", content=text) for text in ("One.", "Two.")]
    assert [message.content for message in chat_messages(kept(*said))] == ["One.", "Two."]


def test_a_thought_that_nothing_follows_is_no_message() -> None:
    thought = Item(type="reasoning", summary=[Part("summary_text", "Hm.")])
    messages = chat_messages(kept(thought, Item(role="user", content="Well?")))
    assert [message.role for message in messages] == ["user"]


def test_an_answer_becomes_items_in_the_order_in_which_it_was_given() -> None:
    writer = EventWriter({})
    events = writer.read(
        [
            Reasoning("I "),
            Reasoning("see."),
            Text("It is "),
            Text("red."),
            CallBegins(0, "look", "call_1"),
            CallArguments(0, '{"at"'),
            CallArguments(0, ":1}"),
            CallEnds(0),
            CallBegins(1, "hear", "call_2"),
            CallArguments(1, "{}"),
        ],
        [],
    )
    events += writer.end(is_whole=True)
    thought, said, first, second = writer.output
    assert thought["content"] == [{"type": "reasoning_text", "text": "I see."}]
    assert said["content"][0]["text"] == "It is red."
    assert (first["name"], first["call_id"], first["arguments"]) == ("look", "call_1", '{"at":1}')
    assert (second["name"], second["call_id"], second["arguments"]) == ("hear", "call_2", "{}")
    assert {item["status"] for item in writer.output} == {"completed"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == writer.output
    indices = [one["output_index"] for one in events if one["type"] == "response.output_item.added"]
    assert indices == [0, 1, 2, 3]
    thoughts = [one["delta"] for one in events if one["type"] == "response.reasoning_text.delta"]
    assert thoughts == ["I ", "see."]


def test_log_probabilities_wait_for_the_end_of_a_text_as_json() -> None:
    likely = [LikelyToken(str(n), -float(n), [48 + n]) for n in range(5)]
    told = TokenLogprob("a", -1.0, [97], likely)
    writer = EventWriter({})
    (*_, delta) = writer.read([Text("a")], [told])
    writer.end(is_whole=True)
    (part,) = writer.output[0]["content"]
    for held in (delta["logprobs"], part["logprobs"]):
        # As objects of Python's they are five times the size.
        assert {type(one) for one in held} == {msgspec.Raw}
        assert msgspec.json.encode(held) == msgspec.json.encode([told])


def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    writer = EventWriter({})
    writer.end(is_whole=True)
    assert [item["content"][0]["text"] for item in writer.output] == [""]


def test_a_conversation_gets_shorter_by_whole_turns() -> None:
    messages = [
        Message("system", "s"),
        Message("user", "1"),
        Message("assistant", "a"),
        Message("tool", "t"),
        Message("developer", "d"),
        Message("user", "2"),
        Message("assistant", "b"),
        Message("user", "3"),
    ]
    told = [[one.content for one in way] for way in shortened(messages)]
    assert told == [["s", "d", "2", "b", "3"], ["s", "d", "3"]]
    assert shortened(messages[:2]) == []
