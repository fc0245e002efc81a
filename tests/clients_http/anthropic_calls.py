"""What Anthropic's client makes of a server, as one line of JSON: run by ``test_anthropic.py``."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from only_here import asked

# isort: split
import anthropic
from pydantic import BaseModel

GREEDY = {"temperature": 0}


class Sun(BaseModel):
    """What the sun is."""

    kind: Literal["star", "moon"]


@anthropic.beta_tool  # type: ignore[untyped-decorator]
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather in a city."""
    return f"In {city} it is sunny."


def usage_of(message: Any) -> list[int]:
    """Tokens of prompt and answer."""
    return [message.usage.input_tokens, message.usage.output_tokens]


def error_of(call: Callable[[], object]) -> str:
    """The class of the error that a call raises."""
    try:
        call()
    except anthropic.APIError as error:
        return type(error).__name__
    return "none"


def calls_of(client: Any, stranger: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Every kind of call."""
    answer = client.messages.create(**given)
    with client.messages.stream(**given) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    counted = client.messages.count_tokens(model=given["model"], messages=given["messages"])
    stopped = client.messages.create(**given, stop_sequences=["hot star"])
    parsed = client.messages.parse(**given, output_format=Sun)
    must = {"tools": [weather.to_dict()], "tool_choice": {"type": "any"}}
    called = client.messages.create(**given, **must)
    with client.messages.stream(**given, **must) as stream:
        streamed_call = stream.get_final_message()
    (block,) = called.content
    turn = {"type": "tool_result", "tool_use_id": block.id, "content": weather.call(block.input)}
    history = [
        *given["messages"],
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [turn]},
    ]
    told = client.messages.create(**given | {"messages": history}, tools=[weather.to_dict()])
    ran = client.beta.messages.tool_runner(**given, tools=[weather]).until_done()
    return {
        "text": answer.content[0].text,
        "stop_reason": answer.stop_reason,
        "usage": usage_of(answer),
        "pieces": pieces,
        "streamed_usage": usage_of(streamed),
        "counted": counted.input_tokens,
        "stopped": [stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence],
        "parsed": parsed.parsed_output.kind,
        "called": [called.stop_reason, block.name, block.input],
        "streamed_call": [block.input for block in streamed_call.content],
        "told": told.content[0].text,
        "ran": ran.stop_reason,
        "models": [[m.id, m.type, m.display_name, m.created_at.year] for m in client.models.list()],
        "errors": [
            error_of(lambda: client.messages.create(**given | {"extra_body": {"top_p": 7}})),
            error_of(lambda: client.messages.create(**given | {"model": "other"})),
            error_of(lambda: stranger.messages.create(**given)),
        ],
    }


async def at_once(settings: dict[str, Any], given: dict[str, Any], n: int) -> list[str]:
    """Answers side by side, every other one streamed."""
    async with anthropic.AsyncAnthropic(**settings) as client:

        async def whole() -> str:
            return str((await client.messages.create(**given)).content[0].text)

        async def streamed() -> str:
            async with client.messages.stream(**given) as stream:
                return "".join([piece async for piece in stream.text_stream])

        return list(await asyncio.gather(*(c() for _ in range(n // 2) for c in (whole, streamed))))


def main(
    base_url: str, key: str, model: str, question: str, n: str = "100", max_retries: str = "0"
) -> None:
    """Make all calls, ``n`` of them at once, and print what came of them."""
    messages = [{"role": "user", "content": question}]
    given: dict[str, Any] = {"model": model, "max_tokens": 100, "messages": messages}
    given["extra_body"] = GREEDY
    settings: dict[str, Any] = {"base_url": base_url, "max_retries": int(max_retries)}
    with (
        anthropic.Anthropic(api_key=key, **settings) as client,
        anthropic.Anthropic(api_key="wrong", **settings) as stranger,
    ):
        results = calls_of(client, stranger, given)
    results["at_once"] = asyncio.run(at_once(settings | {"api_key": key}, given, int(n)))
    print(json.dumps(results | {"asked": asked}))


if __name__ == "__main__":
    main(*sys.argv[1:])
