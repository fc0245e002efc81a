"""What OpenAI's Agents SDK makes of a server, as one line of JSON: run by ``test_agents.py``."""

import asyncio
import json
import sys
from typing import Any, Literal

from only_here import asked

# isort: split
import agents
import openai
from pydantic import BaseModel

MODELS = {
    "chat": agents.OpenAIChatCompletionsModel,
    "responses": agents.OpenAIResponsesModel,
    "websocket": agents.OpenAIResponsesWSModel,
}
WEATHER = "What is the weather in Oslo?"


class Sun(BaseModel):
    """What the sun is."""

    kind: Literal["star", "moon"]


@agents.function_tool  # type: ignore[untyped-decorator]
def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather in a city."""
    return f"In {city} it is sunny."


async def calls_of(kind: str, client: Any, model: str, question: str) -> dict[str, Any]:
    """Runs of agents over one of the two interfaces."""
    asking = MODELS[kind](model=model, openai_client=client)
    settings = agents.ModelSettings(temperature=0, max_tokens=100)
    must_call = agents.ModelSettings(temperature=0, max_tokens=100, tool_choice="required")
    plain = agents.Agent("plain", instructions="You are kind.", model=asking)
    plain.model_settings = settings
    caller = agents.Agent("caller", model=asking, tools=[weather], model_settings=must_call)
    typed = agents.Agent("typed", model=asking, output_type=Sun, model_settings=settings)
    first = agents.Agent("first", model=asking, handoffs=[plain], model_settings=must_call)

    answered = await agents.Runner.run(plain, question)
    goes_on = [*answered.to_input_list(), {"role": "user", "content": question}]
    second = await agents.Runner.run(plain, goes_on)
    called = await agents.Runner.run(caller, WEATHER)
    streamed = agents.Runner.run_streamed(caller, WEATHER)
    events = [event.type async for event in streamed.stream_events()]
    handed = await agents.Runner.run(first, question)
    at_once = await asyncio.gather(*(agents.Runner.run(plain, question) for _ in range(12)))
    usage = answered.context_wrapper.usage
    return {
        "answered": answered.final_output,
        "usage": [usage.input_tokens, usage.output_tokens, usage.total_tokens],
        "second": second.final_output,
        "called": called.final_output,
        "items": [type(item).__name__ for item in called.new_items],
        "result": next(item.output for item in called.new_items if hasattr(item, "output")),
        "n_requests": called.context_wrapper.usage.requests,
        "streamed": streamed.final_output,
        "n_events": len(events),
        "typed": (await agents.Runner.run(typed, question)).final_output.kind,
        "handed_to": handed.last_agent.name,
        "at_once": [one.final_output for one in at_once],
    }


async def main(base_url: str, key: str, model: str, question: str, *kinds: str) -> None:
    """Make all runs and print what came of them."""
    agents.set_tracing_disabled(True)
    given = {"base_url": base_url, "max_retries": 0}
    results = dict[str, Any]()
    async with (
        openai.AsyncOpenAI(api_key=key, **given) as client,  # type: ignore[arg-type]
        openai.AsyncOpenAI(api_key="wrong", **given) as stranger,  # type: ignore[arg-type]
    ):
        for kind in kinds:
            results[kind] = await calls_of(kind, client, model, question)
            agent = agents.Agent("stranger")
            agent.model = MODELS[kind](model=model, openai_client=stranger)
            try:
                await agents.Runner.run(agent, question)
            except Exception as error:
                results[kind]["error"] = type(error).__name__
    print(json.dumps(results | {"asked": asked}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
