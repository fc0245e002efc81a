"""Bodies that are as much work as their size allows, for all routes that take many of a thing."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SIZE = 4_000_000
"""Bytes of a body that is about as large as may be."""
MANY = 65_000
"""Objects and arrays, just below their limit."""
USER = {"role": "user", "content": "x"}


class Large(NamedTuple):
    """A body, and whom it is for."""

    name: str
    path: str
    body: bytes


def written(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def large_bodies(model: str) -> Iterator[Large]:
    """All of them, made one at a time."""
    for name, path, make in (*_BODIES, *_SHAPES):
        body = make()
        if isinstance(body, dict):
            body = {"model": model, **body} if path in _NEED_MODEL else body
        yield Large(name, path, body if isinstance(body, bytes) else written(body))


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], "max_tokens": 1} | fields


def _text(**outputs: Any) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 1, "structured_outputs": outputs}


def _formatted(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _chat(response_format=form)


def _nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema, {"type": "integer"}]}
    return schema


CHAT, TEXT, ANSWER = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_NEED_MODEL = {CHAT, TEXT, ANSWER, "/v1/messages", "/v1/embeddings"}
Make = Callable[[], Any]

_BODIES: tuple[tuple[str, str, Make], ...] = (
    (
        "a message of a megabyte",
        CHAT,
        lambda: _chat(messages=[USER | {"content": "hello " * 170_000}]),
    ),
    ("90,000 items", ANSWER, lambda: {"input": [USER] * 90_000, "max_output_tokens": 1}),
    ("items of a conversation", "/v1/conversations", lambda: {"items": [USER] * MANY}),
    ("a million lists", TEXT, lambda: {"prompt": [[]] * (SIZE // 3)}),
    ("fields that nobody knows", CHAT, lambda: _chat(**{f"f{n}": 1 for n in range(300_000)})),
    ("a text of no end", TEXT, lambda: {"prompt": " " * SIZE}),
    ("a regex of four megabytes", TEXT, lambda: _text(regex="(a+)+b" * (SIZE // 6))),
    ("choices by the million", TEXT, lambda: _text(choice=["a"] * (SIZE // 4))),
    ("a schema of many levels", CHAT, lambda: _formatted(_nested(60))),
    ("a regex that blows up", TEXT, lambda: _text(regex="(a+)+b")),
    ("a regex of many repeats", TEXT, lambda: _text(regex="((((a{1,50}){1,50}){1,50}){1,50})")),
    ("brackets", CHAT, lambda: b"[" * SIZE),
)
"""Of each kind one: in the suite as well."""

_SHAPES: tuple[tuple[str, str, Make], ...] = (
    ("as many items as may be", ANSWER, lambda: {"input": [USER] * MANY, "max_output_tokens": 1}),
    ("as many messages as may be", CHAT, lambda: _chat(messages=[USER] * MANY)),
    (
        "parts of a message",
        CHAT,
        lambda: _chat(messages=[USER | {"content": [{"type": "text", "text": "x"}] * MANY}]),
    ),
    (
        "tools",
        CHAT,
        lambda: _chat(
            tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(MANY // 2)]
        ),
    ),
    ("biases", CHAT, lambda: _chat(logit_bias={str(n): 1 for n in range(300_000)})),
    ("stop strings", CHAT, lambda: _chat(stop=["a"] * (SIZE // 4))),
    (
        "a schema of many properties",
        CHAT,
        lambda: _formatted({"properties": {f"p{n}": {} for n in range(MANY)}}),
    ),
    ("an enumeration", CHAT, lambda: _formatted({"enum": list(range(500_000))})),
    (
        "words for a template",
        CHAT,
        lambda: _chat(chat_template_kwargs={f"k{n}": 1 for n in range(300_000)}),
    ),
    ("brackets in a text", CHAT, lambda: _chat(messages=[USER | {"content": "[{" * (SIZE // 2)}])),
    (
        "quotes in a text",
        CHAT,
        lambda: _chat(messages=[USER | {"content": '\\"' * (SIZE // 5)}], stop=[[]] * 200),
    ),
    ("ids", TEXT, lambda: {"prompt": [1] * (SIZE // 2)}),
    ("prompts", TEXT, lambda: {"prompt": ["a"] * (SIZE // 4)}),
    ("words that are bad", TEXT, lambda: {"prompt": "a", "bad_words": ["a"] * (SIZE // 4)}),
    ("a tag of structures", TEXT, lambda: _text(structural_tag="[" * (SIZE // 2))),
    ("references", ANSWER, lambda: {"input": [{"type": "item_reference", "id": "a"}] * MANY}),
    ("metadata", ANSWER, lambda: {"input": "a", "metadata": {str(n): "" for n in range(300_000)}}),
    (
        "messages of Anthropic's",
        "/v1/messages",
        lambda: {"messages": [USER] * MANY, "max_tokens": 1},
    ),
    ("a long text to count", "/tokenize", lambda: {"prompt": "a b" * 349_000}),
    ("ids to be text", "/detokenize", lambda: {"tokens": [100] * 262_144}),
    ("inputs", "/v1/embeddings", lambda: {"input": ["a"] * (SIZE // 4)}),
    ("ids of a request", "/v1/generate", lambda: {"ids": [1] * (SIZE // 2), "max_tokens": 1}),
    ("ids of a submission", "/v1/submit", lambda: {"ids": [1] * (SIZE // 2), "max_tokens": 1}),
    ("ids to score", "/v1/score", lambda: {"ids": [1] * (SIZE // 2)}),
    ("ids of a state", "/v1/states", lambda: {"name": "a", "ids": [1] * (SIZE // 2)}),
    (
        "tags of a state",
        "/v1/states",
        lambda: {"name": "a", "ids": [1], "tags": {str(n): "" for n in range(300_000)}},
    ),
    (
        "names of forks",
        "/v1/states/tale/fork",
        lambda: {"names": [f"a{n}" for n in range(400_000)]},
    ),
    (
        "parameters",
        "/v1/states/tale/mutate",
        lambda: {"operation": "noise", "parameters": {f"k{n}": 1 for n in range(300_000)}},
    ),
    (
        "prompts of llama.cpp's",
        "/completion",
        lambda: {"prompt": ["a", 1] * (SIZE // 6), "n_predict": 1},
    ),
    ("texts of SGLang's", "/generate", lambda: {"text": ["a"] * (SIZE // 4)}),
    (
        "parameters of SGLang's",
        "/generate",
        lambda: {"text": "a", "sampling_params": {f"f{n}": 1 for n in range(300_000)}},
    ),
)
N_KINDS = len(_BODIES)
