"""POST /v1/chat/completions: messages to an answer or a tool call, streamed or not."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType
from wkvm_client.states import StateEnd

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.chat.bodies import ChatBody
from wkvm.gateway.chat.jobs import ChatJob, chat_job
from wkvm.gateway.chat.replies import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    MessageDelta,
    chat_logprobs,
    chunk_deltas,
    whole_message,
)
from wkvm.gateway.fields import StreamOptions, limit_of
from wkvm.gateway.logprobs import prompt_infos
from wkvm.gateway.monitoring.times import metrics_of
from wkvm.gateway.policy import CHATS
from wkvm.gateway.replies import Frame, TokenInfo, Usage
from wkvm.gateway.states.fields import report
from wkvm.gateway.states.keeping import Keeper
from wkvm.gateway.streams.choices import Lanes, collect
from wkvm.gateway.streams.pieces import ChoiceText, Piece, Whole
from wkvm.gateway.streams.pump import send_all
from wkvm.gateway.streams.sse import DONE, EventStream


async def chat_completions(call: Call) -> web.StreamResponse:
    """Answer a chat."""
    job = await _job(call)
    keywords, n = job.question.keywords, job.body.n_choices
    async with Lanes(call.client) as lanes:
        await lanes.open(job.question.prompt, keywords, n=n)
        texts = job.choice_texts(lanes)
        keeper = call.keeper(job.body, lanes, texts)
        with call.cancellable(*lanes.streams):
            if job.body.stream:
                return await _stream(call, job, texts, keeper)
            wholes = await collect(texts)
            ends = [await keeper.settle(whole.finish) for whole in wholes]
    reply = _reply(job, lanes, wholes, ends)
    if job.body.return_metrics:
        reply.metrics = metrics_of(texts)
    return json_response(msgspec.json.encode(reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job(ChatJob):
    """A chat of OpenAI's interface, and what its answer is called."""

    response_id: str
    created: int
    model: str
    fingerprint: str

    def logprobs(self, piece: Piece | Whole) -> ChatLogprobs | None:
        """The log probabilities of a piece, if they were asked for."""
        if not self.body.logprobs:
            return None
        as_ids = bool(self.body.return_tokens_as_token_ids)
        return chat_logprobs(self.texts.tokenizer, piece.logprobs, as_ids=as_ids)


async def _job(call: Call) -> _Job:
    """Read and check a body.

    Raises:
        HttpError: 400, 404, 408 or 413.
        TemplateError: the template refused the messages.
    """
    gateway = call.gateway
    body = await call.body(ChatBody, CHATS)
    body.max_tokens = limit_of(body.max_tokens)
    body.max_completion_tokens = limit_of(body.max_completion_tokens)
    job = await chat_job(call, body)
    return _Job(
        body=job.body,
        texts=job.texts,
        question=job.question,
        response_id=body.response_id("chatcmpl", call.request_id),
        created=int(time.time()),
        model=gateway.model,
        fingerprint=f"fp_{gateway.engines.info.model_digest[:12]}",
    )


def _reply(
    job: _Job, lanes: Lanes, wholes: Sequence[Whole], ends: Sequence[StateEnd | None]
) -> ChatCompletion:
    choices = list[ChatChoice]()
    for index, whole in enumerate(wholes):
        reader = job.reader()
        message = whole_message(reader, whole.text, whole.finish)
        if echo := job.question.echo:
            message.content = echo + (message.content or "")
        choice = ChatChoice(
            index,
            message,
            job.logprobs(whole),
            reader.finish_reason,
            job.stop_reason(whole.finish),
        )
        if job.body.return_token_ids:
            choice.token_ids = whole.ids
        choices.append(choice)
    return ChatCompletion(
        id=job.response_id,
        object="chat.completion",
        created=job.created,
        model=job.model,
        choices=choices,
        usage=job.usage([whole.finish for whole in wholes], ends),
        system_fingerprint=job.fingerprint,
        prompt_logprobs=_prompt_logprobs(job, lanes),
        prompt_token_ids=job.question.prompt if job.body.return_token_ids else UNSET,
        state=report(ends[0]),
    )


def _prompt_logprobs(job: _Job, lanes: Lanes) -> list[dict[str, TokenInfo] | None] | UnsetType:
    """Those of the prompt, which all choices have in common, if they were asked for."""
    n_top = job.body.prompt_logprobs
    if n_top is None:
        return UNSET
    return prompt_infos(job.texts.tokenizer, lanes.streams[0].prompt_logprobs, n_top)


async def _stream(
    call: Call, job: _Job, texts: Sequence[ChoiceText], keeper: Keeper
) -> web.StreamResponse:
    chunks = _Chunks(job, texts)
    async with EventStream(call, interval=job.body.stream_interval) as events:
        last = await send_all(texts, events, chunks.of)
        await events.finish(last + await chunks.total(keeper) + DONE)
    return events.response


class _Chunks:
    """The events of a stream. What all chunks of a choice have in common is encoded once."""

    def __init__(self, job: _Job, texts: Sequence[ChoiceText]) -> None:
        self._job = job
        self._texts = texts
        n = len(texts)
        self._readers = [job.reader() for _ in range(n)]
        self._begun = [False] * n
        body, options = job.body, job.body.stream_options or StreamOptions()
        self._has_extras = bool(body.logprobs or body.return_token_ids)
        common = {
            "id": job.response_id,
            "object": "chat.completion.chunk",
            "created": job.created,
            "model": job.model,
            "system_fingerprint": job.fingerprint,
        }
        self._frame = frame = Frame(common, options)
        self._is_plain = not self._has_extras and not frame.tells_costs
        self._encode = msgspec.json.Encoder().encode
        self._plain_starts = [
            b'%b{"index":%d,"delta":{"content":' % (frame.start, index) for index in range(n)
        ]
        self._plain_end = b'},"logprobs":null,"finish_reason":null}' + frame.end

    def of(self, index: int, piece: Piece) -> bytes:
        """The events, if any, that a piece of a choice becomes."""
        is_begun = self._begun[index] and piece.finish is None
        if is_begun and self._is_plain and self._readers[index].passes_text:
            text = piece.text
            if not text:
                return b""
            # The usual event, by far: everything but its text was encoded before.
            return b"".join((self._plain_starts[index], self._encode(text), self._plain_end))
        return b"".join(map(self._event, self._choices(index, piece)))

    async def total(self, keeper: Keeper) -> bytes:
        """The event, if there is one, of all choices: what they cost, the state at their end.

        Raises:
            ClientError, HttpError: as ``Keeper.settle``.
        """
        finishes = [reader.finish for reader in self._readers if reader.finish is not None]
        ends = [await keeper.settle(finish) for finish in finishes]
        metrics = metrics_of(self._texts) if self._job.body.return_metrics else UNSET
        return self._frame.total(self._job.usage(finishes, ends), report(ends[0]), metrics)

    def _choices(self, index: int, piece: Piece) -> list[ChunkChoice]:
        """A piece as chunks. The first of a choice has its role, the last its end."""
        reader, job = self._readers[index], self._job
        choices = [ChunkChoice(index, delta) for delta in chunk_deltas(reader, piece)]
        if self._has_extras and (piece.ids or piece.logprobs):
            # Ids may come before their text; they have a chunk all the same.
            if not choices:
                choices.append(ChunkChoice(index, MessageDelta(content="")))
            choices[0].logprobs = job.logprobs(piece)
            if job.body.return_token_ids:
                choices[0].token_ids = piece.ids
        if not self._begun[index] and (choices or piece.finish is not None):
            self._begun[index] = True
            echo = job.question.echo
            opening = MessageDelta(role="assistant", content=echo, refusal=None)
            choices.insert(0, ChunkChoice(index, opening))
        if piece.finish is not None:
            end = ChunkChoice(index, MessageDelta(), finish_reason=reader.finish_reason)
            end.stop_reason = job.stop_reason(piece.finish)
            choices.append(end)
        return choices

    def _event(self, choice: ChunkChoice) -> bytes:
        cost, more, prompt = None, b"", self._job.question.prompt
        if self._frame.tells_costs:
            text = self._texts[choice.index]
            cost = Usage.of([len(prompt)], [text.n_output], n_reused=text.n_reused)
        if self._job.body.return_token_ids and choice.delta.role is not UNSET:
            more = b',"prompt_token_ids":' + self._encode(prompt)
        return self._frame.event(choice, cost, more=more)
