"""POST /v1/messages, streamed or not, and POST /v1/messages/count_tokens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from aiohttp import web
from msgspec.json import encode

from wkvm.gateway.anthropic.bodies import MessagesBody, PromptBody, to_chat
from wkvm.gateway.anthropic.replies import PING, CountedTokens, Replier
from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.chat.bodies import question
from wkvm.gateway.chat.jobs import ChatJob, chat_job
from wkvm.gateway.policy import COUNTED_MESSAGES, MESSAGES
from wkvm.gateway.streams.choices import Lanes, collect
from wkvm.gateway.streams.pieces import ChoiceText
from wkvm.gateway.streams.pump import pump
from wkvm.gateway.streams.sse import EventStream

PING_INTERVAL_S = 10.0
"""A stream has an event at least this often, also before the answer begins."""


async def messages(call: Call) -> web.StreamResponse:
    """Answer messages."""
    gateway = call.gateway
    body = await call.body(MessagesBody, MESSAGES)
    gateway.check_model(body.model)
    omits = gateway.config.omit_media
    chat = await gateway.offload.run(lambda: to_chat(body, omit_media=omits), size=call.n_held)
    job = await chat_job(call, chat)
    is_cut = _fit(job, gateway.max_model_len)
    replier = Replier(job, f"msg_{call.request_id}", gateway.model, is_cut=is_cut)
    async with Lanes(call.client) as lanes:
        await lanes.open(job.question.prompt, job.question.keywords)
        [text] = job.choice_texts(lanes)
        with call.cancellable(*lanes.streams):
            if body.stream:
                return await _stream(call, text, replier)
            [whole] = await collect([text])
    return json_response(replier.whole(whole))


def _fit(job: ChatJob, max_model_len: int | None) -> bool:
    """Limit an answer to what there is room for; whether it would have had a higher limit.

    Clients of this interface have to name one, and name a high one.
    """
    keywords = job.question.keywords
    room = keywords["max_tokens"]
    if max_model_len is not None:
        room = max_model_len - len(job.question.prompt)
    if not 1 <= room < keywords["max_tokens"]:
        return False
    keywords["max_tokens"] = room
    return True


async def count_tokens(call: Call) -> web.StreamResponse:
    """Count the tokens of the prompt that messages would make."""
    gateway = call.gateway
    body = await call.body(PromptBody, COUNTED_MESSAGES)
    gateway.check_model(body.model)
    omits = gateway.config.omit_media

    def count() -> int:
        chat = to_chat(body, omit_media=omits)
        asked = question(chat, gateway.texts, max_model_len=None, omit_media=omits)
        return len(asked.prompt)

    n_tokens = await gateway.offload.run(count, size=call.n_held)
    return json_response(encode(CountedTokens(n_tokens)))


async def _stream(call: Call, text: ChoiceText, replier: Replier) -> web.StreamResponse:
    async with EventStream(call) as events:
        async with _pinging(events, replier):
            last = await pump(text, events, replier.piece)
        await events.finish(last)
    return events.response


@asynccontextmanager
async def _pinging(events: EventStream, replier: Replier) -> AsyncGenerator[None]:
    """Send events while nothing else is to be sent, so that nobody takes a wait for a loss.

    They may be the first: then what fails later is an event, not a status.
    """
    task = asyncio.create_task(_ping(events, replier))
    try:
        yield
    finally:
        task.cancel()


async def _ping(events: EventStream, replier: Replier) -> None:
    # Who is gone is noticed elsewhere.
    with suppress(ConnectionError):
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            await events.send_raw(replier.begin() or PING)
