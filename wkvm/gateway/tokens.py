"""Text to ids and back, as the model that is served has them; and what its tokenizer is.

The routes have vLLM's names and fields. Evaluation harnesses use them to need no tokenizer of
their own.
"""

from typing import Annotated

import msgspec
from aiohttp import web
from wkvm_protocol.messages import unpack_ids

from wkvm.gateway.calls import Call, Gateway, json_response
from wkvm.gateway.chat.bodies import ChatBody, question
from wkvm.gateway.chat.messages import Message
from wkvm.gateway.chat.tools import Tool
from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.failures import invalid
from wkvm.gateway.policy import TOKENS
from wkvm.gateway.text.tokenizer import Tokenizer

MAX_TEXT = 2**20
"""Characters of a text that one call may bring."""
MAX_IDS = 2**18
"""Ids that one call may bring: as many as a prompt can have."""


class TokenizeBody(msgspec.Struct, kw_only=True):
    """What ``/tokenize`` takes: a prompt, or messages.

    Attributes:
        content: llama.cpp's name of ``prompt``.
        return_token_strs: whether the text of each id is wanted too.
    """

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    return_token_strs: bool | None = None
    messages: list[Message] | None = None
    # As of a chat.
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None


class Tokens(msgspec.Struct):
    """The ids of a text."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """What ``/detokenize`` takes."""

    model: str | None = None
    tokens: Annotated[list[int], msgspec.Meta(max_length=MAX_IDS)]


class Text(msgspec.Struct):
    """The text of ids, by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


class TokenizerInfo(msgspec.Struct):
    """Names are those of Hugging Face's ``tokenizer_config.json``, where it has one."""

    tokenizer_class: str
    vocab_size: int
    digest: str
    eos_token: str | None
    eos_token_ids: list[int]
    bos_token: str | None
    pad_token: str | None
    unk_token: str | None
    add_bos_token: bool
    add_eos_token: bool
    special_tokens: dict[str, str]
    model_max_length: int | None
    chat_template: str


async def tokenize(call: Call) -> web.Response:
    """POST /tokenize: exactly the ids that a completion or a chat would begin with."""
    gateway = call.gateway
    body = await call.body(TokenizeBody, TOKENS)
    if body.model is not None:
        gateway.check_model(body.model)
    if body.prompt is None:
        body.prompt = body.content
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "give either prompt or messages")
    if body.prompt is not None and len(body.prompt) > MAX_TEXT:
        raise invalid("prompt", f"has more than {MAX_TEXT} characters")
    answer = await gateway.offload.run(lambda: _tokens(body, gateway), size=call.n_held)
    return json_response(answer)


async def detokenize(call: Call) -> web.Response:
    """POST /detokenize: the text of ids, special tokens by name."""
    gateway = call.gateway
    body = await call.body(DetokenizeBody)
    if body.model is not None:
        gateway.check_model(body.model)

    def work() -> bytes:
        text = gateway.texts.tokenizer.decode(body.tokens, skip_special=False)
        return msgspec.json.encode(Text(text, text))

    try:
        answer = await gateway.offload.run(work, size=call.n_held)
    except UnknownTokenError as error:
        raise invalid("tokens", str(error)) from error
    return json_response(answer)


async def tokenizer_info(call: Call) -> web.Response:
    """GET /tokenizer_info."""
    texts, info = call.gateway.texts, call.gateway.engines.info
    tokenizer, names = texts.tokenizer, texts.template.variables
    eos_ids = list(unpack_ids(info.eos_ids))
    eos_names = [tokenizer.specials.get(eos_id) for eos_id in eos_ids]
    eos = names.get("eos_token") or next(filter(None, eos_names), None)
    body = TokenizerInfo(
        tokenizer_class=type(tokenizer).__name__,
        vocab_size=tokenizer.vocab_size,
        digest=tokenizer.digest,
        eos_token=eos,
        eos_token_ids=eos_ids,
        bos_token=names.get("bos_token"),
        pad_token=names.get("pad_token"),
        unk_token=names.get("unk_token"),
        add_bos_token=False,
        add_eos_token=False,
        special_tokens={str(i): name for i, name in sorted(tokenizer.specials.items())},
        model_max_length=call.gateway.max_model_len,
        chat_template=texts.template.source,
    )
    return json_response(msgspec.json.encode(body))


def _tokens(body: TokenizeBody, gateway: Gateway) -> bytes:
    tokenizer = gateway.texts.tokenizer
    if body.prompt is not None:
        ids = tokenizer.encode(body.prompt, special=True)
    else:
        ids = _chat_ids(body, gateway)
    strings = _strings(tokenizer, ids) if body.return_token_strs else None
    return msgspec.json.encode(Tokens(len(ids), gateway.max_model_len, ids, strings))


def _chat_ids(body: TokenizeBody, gateway: Gateway) -> list[int]:
    chat = ChatBody(
        model=gateway.model,
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return question(
        chat, gateway.texts, max_model_len=None, omit_media=gateway.config.omit_media
    ).prompt


def _strings(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each id by itself; where a character is cut, U+FFFD."""
    return [tokenizer.token_bytes(token_id).decode("utf-8", errors="replace") for token_id in ids]
