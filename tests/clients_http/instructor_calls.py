"""What instructor makes of a server, as one line of JSON: run by ``test_instructor.py``."""

import asyncio
import json
import sys
import warnings
from typing import Any, Literal

from only_here import asked

warnings.simplefilter("ignore")

import instructor  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel, Field, field_validator  # noqa: E402


class Sun(BaseModel):
    """What the sun is."""

    kind: Literal["star", "moon"]
    big: bool
    note: str = Field(max_length=12)


class Suns(BaseModel):
    """Two of them."""

    suns: list[Sun] = Field(min_length=2, max_length=2)


def calls_of(mode: str, base_url: str, key: str, given: dict[str, Any]) -> dict[str, Any]:
    """Every kind of call in one mode."""
    bodies = list[Any]()
    http = openai.DefaultHttpxClient(
        event_hooks={"request": [lambda request: bodies.append(json.loads(request.content))]}
    )
    whole = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, http_client=http)
    client = instructor.from_openai(whole, mode=instructor.Mode[mode])
    one, raw = client.create_with_completion(response_model=Sun, **given)
    parts = list(client.create_partial(response_model=Sun, **given))
    several = client.create(response_model=Suns, **given)

    refusals = list[str]()

    class Picky(Sun):
        """Refuses its first answer."""

        @field_validator("kind")
        @classmethod
        def refuse_once(cls, value: str) -> str:
            if not refusals:
                refusals.append(value)
                raise ValueError("say it once more")
            return value

    n_before = len(bodies)
    again = client.create(response_model=Picky, **given | {"max_retries": 2})
    return {
        "one": one.model_dump(),
        "n_output": getattr(raw.usage, "completion_tokens", None) or raw.usage.output_tokens,
        "n_parts": len(parts),
        "last_part": parts[-1].model_dump(),
        "several": several.model_dump(),
        "again": again.model_dump(),
        "n_asked_again": len(bodies) - n_before,
        "at_once": asyncio.run(at_once(mode, base_url, key, given)),
    }


async def at_once(mode: str, base_url: str, key: str, given: dict[str, Any]) -> list[Any]:
    """Several calls side by side."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as whole:
        client = instructor.from_openai(whole, mode=instructor.Mode[mode])
        every = (client.create(response_model=Sun, **given) for _ in range(8))
        return [one.model_dump() for one in await asyncio.gather(*every)]


def error_of(base_url: str, given: dict[str, Any]) -> str:
    """The class under which a wrong key is told."""
    client = instructor.from_openai(
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0), mode=instructor.Mode.TOOLS
    )
    try:
        client.create(response_model=Sun, **given)
    except Exception as error:
        return type(error.__cause__ or error).__name__ + ": " + str(error)[:200]
    return "none"


def main(base_url: str, key: str, model: str, question: str, *modes: str) -> None:
    """Make all calls and print what came of them."""
    messages = [{"role": "user", "content": question}]
    given = {"model": model, "messages": messages, "temperature": 0, "max_retries": 0}
    results: dict[str, Any] = {mode: calls_of(mode, base_url, key, given) for mode in modes}
    print(json.dumps(results | {"error": error_of(base_url, given), "asked": asked}))


if __name__ == "__main__":
    main(*sys.argv[1:])
