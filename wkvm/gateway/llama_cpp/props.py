"""What the server is, by llama.cpp's names, and prompts of chats as texts."""

import msgspec
from aiohttp import web

from wkvm import __version__
from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.chat.bodies import ChatBody, question
from wkvm.gateway.failures import HttpError
from wkvm.gateway.llama_cpp.bodies import TEMPLATE, TemplateBody
from wkvm.gateway.llama_cpp.completion import settings
from wkvm.gateway.llama_cpp.dialect import NOT_SUPPORTED


class DefaultSettings(msgspec.Struct):
    """What a request that says nothing gets."""

    n_ctx: int
    params: dict[str, object]


class Props(msgspec.Struct):
    """What ``GET /props`` answers."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    modalities: dict[str, bool]


class Prompt(msgspec.Struct):
    """The text of a chat."""

    prompt: str


async def props(call: Call) -> web.StreamResponse:
    """``GET /props``."""
    gateway = call.gateway
    texts, names = gateway.texts, gateway.texts.template.variables
    params = settings({"max_tokens": texts.default_max_tokens, **texts.suggested})
    answer = Props(
        DefaultSettings(gateway.max_model_len or 0, params),
        call.client.server.n_slots,
        gateway.model,
        gateway.model,
        texts.template.source,
        names.get("bos_token") or "",
        names.get("eos_token") or "",
        f"wkvm {__version__}",
        {"vision": False, "audio": False},
    )
    return json_response(msgspec.json.encode(answer))


async def apply_template(call: Call) -> web.StreamResponse:
    """``POST /apply-template``: the prompt of a chat as a text, special tokens by name."""
    gateway = call.gateway
    body = await call.body(TemplateBody, TEMPLATE)
    chat = ChatBody(
        model=gateway.model,
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt,
    )
    omit_media = gateway.config.omit_media

    def work() -> str:
        ids = question(chat, gateway.texts, max_model_len=None, omit_media=omit_media).prompt
        return gateway.texts.tokenizer.decode(ids, skip_special=False)

    text = await gateway.offload.run(work, size=call.n_held)
    return json_response(msgspec.json.encode(Prompt(text)))


async def infill(call: Call) -> web.StreamResponse:
    """``POST /infill``: no model here has tokens for a gap."""
    del call
    why = "this model cannot fill in: it has no tokens for a gap"
    raise HttpError(400, why, code=NOT_SUPPORTED)
