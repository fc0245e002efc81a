"""Calls of LiteLLM, in a process of their own: it leaves connections and event loops open.

    python litellm_calls.py BASE_URL KEY MODEL QUESTION [N]

Prints one JSON object: by the adapter's prefix, what came of each call.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
from only_here import asked

# isort: split
import litellm  # reads the environment


def usage_of(reply: Any) -> list[int]:
    """Tokens of prompt and completion, and their sum."""
    usage = reply.usage
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


def text_of(chunks: list[Any]) -> str:
    """The text of a streamed chat."""
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def error_of(call: Callable[[], object]) -> str:
    """The class of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


async def at_once(chat: dict[str, Any], n: int) -> list[str]:
    """Chats side by side, streamed and not."""

    async def streamed() -> str:
        stream = await litellm.acompletion(**chat, stream=True)
        return text_of([chunk async for chunk in stream])

    async def whole() -> str:
        return str((await litellm.acompletion(**chat)).choices[0].message.content)

    return list(await asyncio.gather(*(one() for _ in range(n // 2) for one in (streamed, whole))))


def tool_calls(chat: dict[str, Any]) -> dict[str, Any]:
    """A tool that is called, and its result."""
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    message = litellm.completion(**chat, tools=[tool], tool_choice="required").choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}
    history = [*chat["messages"], message.model_dump(), result]
    told = litellm.completion(**chat | {"messages": history}, tools=[tool])
    form = {"name": "weather", "schema": parameters, "strict": True}
    held = litellm.completion(**chat, response_format={"type": "json_schema", "json_schema": form})
    return {
        "called": [call.function.name, json.loads(call.function.arguments)],
        "told": told.choices[0].message.content,
        "held": json.loads(held.choices[0].message.content),
    }


def chat_calls(chat: dict[str, Any], prefix: str, model: str, n: int) -> dict[str, Any]:
    """Every kind of chat through one adapter."""
    chat = chat | {"model": prefix + model}
    whole = litellm.completion(**chat)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(litellm.completion(**chat, **usage))
    stopped = litellm.completion(**chat, stop=["hot star"])
    other = f"{prefix}other"
    return {
        "text": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": usage_of(whole),
        "streamed_text": text_of(chunks),
        "n_chunks": len(chunks),
        "streamed_usage": usage_of(chunks[-1]),
        "stopped_text": stopped.choices[0].message.content,
        "at_once": asyncio.run(at_once(chat, n)),
        "tools": tool_calls(chat),
        "errors": [
            error_of(lambda: litellm.completion(**chat | {"temperature": -1})),
            error_of(lambda: litellm.completion(**chat | {"api_key": "wrong"})),
            error_of(lambda: litellm.completion(**chat | {"model": other})),
        ],
    }


def text_calls(text: dict[str, Any]) -> dict[str, Any]:
    """A completion through one adapter, whole and streamed."""
    whole = litellm.text_completion(**text)
    chunks = list(litellm.text_completion(**text, stream=True))
    return {
        "text": whole.choices[0].text,
        "usage": usage_of(whole),
        "streamed_text": "".join(c.choices[0].text or "" for c in chunks),
    }


def response_calls(given: dict[str, Any], model: str, question: str) -> dict[str, Any]:
    """Responses, one that goes on from another, and Anthropic's messages made of them."""
    asked = given | {"model": f"openai/{model}", "input": question}
    library: Any = litellm
    ask = library.responses
    first = ask(**asked)
    events = list(ask(**asked, stream=True))
    second = ask(**asked, previous_response_id=first.id)
    message = library.anthropic.messages.acreate(
        model=f"openai/{model}",
        max_tokens=60,
        messages=[{"role": "user", "content": question}],
        **given,
    )
    return {
        "text": first.output[0].content[0].text,
        "n_tokens": first.usage.total_tokens,
        "n_events": len(events),
        "last": str(events[-1].type.value),
        "n_cached": second.usage.input_tokens_details.cached_tokens,
        "as_message": asyncio.run(message)["content"][0]["text"],
        "errors": [
            error_of(lambda: ask(**asked | {"temperature": -1})),
            error_of(lambda: ask(**asked | {"api_key": "wrong"})),
            error_of(lambda: ask(**asked | {"model": "openai/other"})),
        ],
    }


def main(base_url: str, key: str, model: str, question: str, n: str = "4") -> None:
    """Make all calls and print what came of them; ``n`` chats of each kind at once."""
    given = {"api_base": base_url, "api_key": key, "temperature": 0, "num_retries": 0}
    chat = given | {"messages": [{"role": "user", "content": question}]}
    text = given | {"prompt": "Once upon a time", "max_tokens": 8}
    litellm.suppress_debug_info = True
    results: dict[str, Any] = {
        "chat": {
            prefix: chat_calls(chat | {"api_base": base}, f"{prefix}/", model, int(n))
            for prefix, base in {
                "openai": base_url,
                "hosted_vllm": base_url,
                "anthropic": base_url.removesuffix("/v1"),
            }.items()
        },
        "embeddings": {
            prefix: litellm.embedding(
                model=f"{prefix}/{model}",
                input=[question, "The sea"],
                api_base=base_url,
                api_key=key,
            ).model_dump()
            for prefix in ("openai", "hosted_vllm")
        },
        "text": {
            prefix: text_calls(text | {"model": f"{prefix}/{model}"})
            for prefix in ("text-completion-openai", "hosted_vllm")
        },
    }
    results["responses"] = response_calls(given, model, question)
    print(json.dumps(results | {"asked": asked}))


if __name__ == "__main__":
    main(*sys.argv[1:])
