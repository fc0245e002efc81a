"""Chats with the tokenizer and the template of the bundled model, held against OpenAI's schema."""

import asyncio
from pathlib import Path
from typing import Any

import llm_comply
import pytest
from llm_comply.schema import SpecLoader

from tests.fakes import FakeModel
from tests.gateway.conftest import BUNDLED
from tests.gateway.harness import gateway_running
from tests.gateway.test_chat import USER, ask, chunks, joined
from tests.gateway.test_chat_tools import NAMED, TOOLS
from wkvm.assembly.engine import texts_of_ids
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.gateway.text import Tokenizer
from wkvm.gateway.text.template_files import load_chat_template
from wkvm.gateway.texts import Texts

EOS = (0, 1)
SPEC = Path(llm_comply.__file__).parent / "specs" / "openai_chat.json"


@pytest.fixture(scope="module")
def schemas() -> SpecLoader:
    return SpecLoader(str(SPEC))


@pytest.fixture(scope="module")
def texts(bundled: Tokenizer) -> Texts:
    return Texts(bundled, load_chat_template(BUNDLED))


def engine(texts: Texts) -> Engine:
    """An engine with the vocabulary of the bundled model, and output like dice."""
    size = texts.tokenizer.vocab_size
    grammars = GrammarCompiler(texts_of_ids(texts.tokenizer, EOS), vocab_size=size)
    model = FakeModel(vocab_size=size, eos_ids=EOS)
    return Engine(model, EngineConfig(n_slots=4), grammars=grammars)


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "n": {"n": 3, "temperature": 1},
    "logprobs": {"logprobs": True, "top_logprobs": 5},
    "ids": {"return_token_ids": True},
    "tools": {"tools": TOOLS},
    "a required call": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200},
    "a named call": {"tools": TOOLS, "tool_choice": NAMED, "logprobs": True, "max_tokens": 200},
    "JSON": {"response_format": {"type": "json_object"}},
}


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
@pytest.mark.parametrize("shape", SHAPES)
async def test_answers_satisfy_the_schema_of_openai(
    shape: str, schemas: SpecLoader, texts: Texts
) -> None:
    async with gateway_running(engine(texts), texts=texts) as running:
        answer = await ask(running, **SHAPES[shape])
        found = await chunks(running, **SHAPES[shape])
    assert schemas.validate(answer, "CreateChatCompletionResponse") == []
    if "call" in shape:
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
    for chunk in found:
        for choice in chunk["choices"]:
            # The schema does not allow the null that it describes, and that OpenAI sends.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert schemas.validate(chunk, "CreateChatCompletionStreamResponse") == []


async def test_the_prompt_is_that_of_the_template(texts: Texts) -> None:
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "And <|end|>?", "name": "anna"},
    ]
    async with gateway_running(engine(texts), texts=texts) as running:
        answer = await ask(running, messages=messages, return_token_ids=True)
    ids = answer["prompt_token_ids"]
    assert texts.tokenizer.decode(ids, skip_special=False) == (
        "System: Be kind.\n\nUser: Hello!\n\nAssistant: Hi!<|end|>\n\n"
        "User: And <|end|>?\n\nAssistant:"
    )
    assert [i for i in ids if i in texts.tokenizer.special_ids] == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 64},
        {"max_tokens": 64, "n": 3, "temperature": 1, "seed": 3},
        {"max_tokens": 64, "logprobs": True, "top_logprobs": 2, "return_token_ids": True},
        {"max_tokens": 64, "stop": ["the", "a b", "\n"]},
        {"max_tokens": 64, "include_stop_str_in_output": True, "stop": ["e"]},
    ],
)
async def test_streamed_and_not_streamed_are_the_same(fields: dict[str, Any], texts: Texts) -> None:
    async with gateway_running(engine(texts), texts=texts) as running:
        answer = await ask(running, **fields)
        found = await chunks(running, **fields, stream_options={"include_usage": True})
    assert [joined(found, i) for i in range(len(answer["choices"]))] == answer["choices"]
    assert found[-1]["usage"] == answer["usage"]


async def test_fifty_chats_at_once_are_those_of_one_at_a_time(texts: Texts) -> None:
    messages = [[USER | {"content": f"Tell me about {n}."}] for n in range(50)]
    async with gateway_running(engine(texts), texts=texts) as running:
        together = await asyncio.gather(*(ask(running, messages=one) for one in messages))
        for one, answer in zip(messages[::10], together[::10], strict=True):
            assert (await ask(running, messages=one))["choices"] == answer["choices"]
