"""What answers of all interfaces say they cost, against what the engine counted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientSession, UnixConnector

from wkvm_bench.harness import BenchError
from wkvm_bench.load_binary import BinarySource

PROMPT = "Once upon a time there was a dog"
MESSAGES = [
    {"role": "user", "content": "Once there was a dog. It ran to the park and found a ball. " * 12},
    {"role": "assistant", "content": "What a nice day."},
    {"role": "user", "content": "What is the sun?"},
]
"""So long that what was read once need not be read again."""
N_OUT = 12


class Cost(NamedTuple):
    """Tokens of a request: of its prompt, of these not computed, and of its output."""

    n_prompt: int
    n_cached: int
    n_output: int


class Asked(NamedTuple):
    """A way to ask: its path, a body, and where its answer has the cost."""

    path: str
    body: dict[str, Any]
    cost: Callable[[Any], Cost]


def of_openai(answer: Any) -> Cost:
    """Of completions and chats."""
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Cost(usage["prompt_tokens"], cached, usage["completion_tokens"])


def of_anthropic(answer: Any) -> Cost:
    """Of messages: what was read again is told apart from what was computed."""
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    n_input = usage["input_tokens"] + usage["cache_creation_input_tokens"]
    return Cost(n_input + cached, cached, usage["output_tokens"])


def of_responses(answer: Any) -> Cost:
    """Of responses, and of the event that has a whole one."""
    usage = answer.get("response", answer)["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Cost(usage["input_tokens"], cached, usage["output_tokens"])


def of_embeddings(answer: Any) -> Cost:
    """Of embeddings, which have no output."""
    return Cost(answer["usage"]["prompt_tokens"], 0, 0)


def of_llama_cpp(answer: Any) -> Cost:
    """Of completions in the form of llama.cpp's server."""
    names = ("tokens_evaluated", "tokens_cached", "tokens_predicted")
    return Cost(*(answer[name] for name in names))


def of_ids(answer: Any) -> Cost:
    """Of requests in ids."""
    usage = answer["usage"]
    return Cost(usage["n_prompt"], usage.get("n_cached", 0), usage["n_output"])


def of_nobody(answer: Any) -> Cost:
    """Of what computes nothing."""
    del answer
    return Cost(0, 0, 0)


CHAT = {"messages": MESSAGES, "max_tokens": N_OUT}
TEXT = {"prompt": PROMPT, "max_tokens": N_OUT}
RESPONSE = {"input": "What is the sun?", "max_output_tokens": N_OUT}
IDS = {"ids": list(range(100, 140)), "max_tokens": N_OUT}
INTERFACES = (
    Asked("/v1/completions", TEXT, of_openai),
    Asked("/v1/completions", TEXT | {"max_tokens": 0, "echo": True, "logprobs": 1}, of_openai),
    Asked("/v1/chat/completions", CHAT, of_openai),
    Asked("/v1/messages", CHAT, of_anthropic),
    Asked("/v1/responses", RESPONSE, of_responses),
    Asked("/v1/responses", RESPONSE | {"store": False}, of_responses),
    Asked("/v1/embeddings", {"input": [PROMPT, "The sea"]}, of_embeddings),
    Asked("/completion", {"prompt": PROMPT * 40, "n_predict": N_OUT}, of_llama_cpp),
    Asked("/v1/generate", IDS, of_ids),
    Asked("/v1/messages/count_tokens", {"messages": MESSAGES}, of_nobody),
    Asked("/tokenize", {"prompt": PROMPT}, of_nobody),
)
STREAMS = (
    Asked("/v1/completions", TEXT, of_openai),
    Asked("/v1/chat/completions", CHAT, of_openai),
    Asked("/v1/messages", CHAT, of_anthropic),
    Asked("/v1/responses", RESPONSE, of_responses),
    Asked("/v1/stream", IDS, of_ids),
)


async def difference(http: Path, lanes: BinarySource) -> tuple[int, dict[str, float]]:
    """Ask everything, twice, and compare.

    Args:
        http: the server's unix socket.
        lanes: the same server by the binary protocol. Nobody else may use it meanwhile.

    Returns:
        How many tokens the sums are apart, and the sums.

    Raises:
        BenchError: an answer is no success, or does not say what it cost.
    """
    before, told = await lanes.stats(), list[Cost]()
    async with ClientSession(connector=UnixConnector(str(http))) as session:
        async with session.get("http://localhost/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        for _ in range(2):
            for asked in INTERFACES:
                told.append(await _ask(session, asked, model))
            for asked in STREAMS:
                told.append(await _ask(session, asked, model, streamed=True))
        told += await _turns(session, model)
    after = await lanes.stats()
    computed = sum(cost.n_prompt - cost.n_cached for cost in told)
    output = sum(cost.n_output for cost in told)
    counted = {
        name: after[name] - before[name] for name in ("prompt_tokens_total", "output_tokens_total")
    }
    apart = abs(computed - counted["prompt_tokens_total"])
    apart += abs(output - counted["output_tokens_total"])
    return apart, {
        "requests": len(told),
        "computed of prompts": computed,
        "not computed of prompts": sum(cost.n_cached for cost in told),
        "output": output,
    }


async def _turns(session: ClientSession, model: str) -> list[Cost]:
    """Of two responses, the second of which goes on from the first."""
    body, costs = RESPONSE | {"model": model}, list[Cost]()
    for _ in range(2):
        answer = msgspec.json.decode(await _post(session, "/v1/responses", body))
        body["previous_response_id"] = answer["id"]
        costs.append(of_responses(answer))
    if not costs[1].n_cached:
        raise BenchError("a response that goes on from another computed all of it")
    return costs


async def _ask(session: ClientSession, asked: Asked, model: str, *, streamed: bool = False) -> Cost:
    body = asked.body | {"model": model}
    if streamed and asked.path != "/v1/stream":
        body |= {"stream": True}
        body |= {"stream_options": {"include_usage": True}} if asked.cost is of_openai else {}
    data = await _post(session, asked.path, body)
    if not streamed:
        return asked.cost(msgspec.json.decode(data))
    # The last event that has it knows best.
    costs = [asked.cost(event) for event in _events(data) if _usage(event)]
    if not costs:
        raise BenchError(f"{asked.path}: no event says what it cost")
    return costs[-1]


async def _post(session: ClientSession, path: str, body: dict[str, Any]) -> bytes:
    async with session.post(f"http://localhost{path}", json=body) as response:
        data = await response.read()
    if response.status != 200:
        raise BenchError(f"{path}: {response.status}: {data[:200]!r}")
    return data


def _usage(event: Any) -> Any:
    return event.get("usage") or (event.get("response") or {}).get("usage")


def _events(data: bytes) -> Iterator[Any]:
    for line in data.splitlines():
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield msgspec.json.decode(line[6:])
