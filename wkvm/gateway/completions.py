"""POST /v1/completions: prompts as text or ids to text, streamed or not."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET
from wkvm_client.states import StateEnd

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.failures import invalid
from wkvm.gateway.fields import MAX_N, CommonFields, Integer, StreamOptions, limit_of
from wkvm.gateway.logprobs import LogprobsWriter, joined, prompt_infos
from wkvm.gateway.monitoring.times import metrics_of
from wkvm.gateway.policy import COMPLETIONS
from wkvm.gateway.prompts import ALL_THAT_FIT, Prompt, PromptField, n_kept, read_prompts
from wkvm.gateway.replies import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Frame,
    Usage,
    n_reused,
)
from wkvm.gateway.states.fields import STATE_NAMES, n_cached, report
from wkvm.gateway.states.keeping import Keeper, choice_text, origin_of, room_after
from wkvm.gateway.streams.choices import MAX_CHOICES, Lanes, collect
from wkvm.gateway.streams.pieces import ChoiceText, Finish, Piece, Whole
from wkvm.gateway.streams.pump import send_all
from wkvm.gateway.streams.sse import DONE, EventStream
from wkvm.gateway.structured import ResponseFormat, wanted
from wkvm.gateway.texts import Texts


class CompletionRequest(CommonFields, kw_only=True):
    """The body of a completion.

    Attributes:
        echo: the text, and the log probabilities, begin with the prompt.
        logprobs: how many of the most likely ids are named at each position.
        prompt_logprobs: vLLM's; likewise for the prompt, in a field of its own.
        best_of: so many choices are made of each prompt, of which the ``n`` likeliest, by the
            mean of their log probabilities, are told.
        response_format: what the text must be, as of a chat.
        truncate_prompt_tokens: of each prompt only the last so many ids count; -1 takes as
            many as leave room for the output.
    """

    prompt: PromptField | None = None
    max_tokens: Integer | None = None
    echo: bool | None = None
    logprobs: Integer | None = None
    prompt_logprobs: Integer | None = None
    best_of: Integer | None = None
    truncate_prompt_tokens: Integer | None = None
    response_format: ResponseFormat | None = None


async def completions(call: Call) -> web.StreamResponse:
    """Answer a completion."""
    body = await call.body(CompletionRequest, COMPLETIONS)
    body.max_tokens = limit_of(body.max_tokens)
    job = await completion_job(call, body)
    async with Lanes(call.client) as lanes:
        for prompt in job.prompts:
            await lanes.open(prompt.ids, job.keywords_of(prompt), n=job.n_made)
        texts = job.choice_texts(lanes)
        keeper = call.keeper(job.body, lanes, texts)
        with call.cancellable(*lanes.streams):
            if job.body.stream:
                return await _stream(call, job, lanes, texts, keeper)
            wholes = await collect(texts)
            ends = [await keeper.settle(whole.finish) for whole in wholes]
    reply = _reply(job, lanes, wholes, ends)
    if job.body.return_metrics:
        reply.metrics = metrics_of(texts)
    return json_response(msgspec.json.encode(reply))


@dataclass(slots=True, kw_only=True)
class CompletionJob:
    """A request, checked as far as the gateway can. Choice ``i`` is of prompt ``i // n_made``.

    Attributes:
        n: choices of each prompt that are told.
        n_made: that are made.
        most_tokens: of each prompt and its output together, where the request names no limit.
    """

    body: CompletionRequest
    texts: Texts
    response_id: str
    created: int
    model: str
    prompts: list[Prompt]
    echoes: list[str]
    n: int
    n_made: int
    keywords: dict[str, Any]
    most_tokens: int | None

    def keywords_of(self, prompt: Prompt) -> dict[str, Any]:
        """The keywords of ``Client.generate`` for a prompt, whatever the others are."""
        if self.most_tokens is None:
            return self.keywords
        room = max(0, self.most_tokens - len(prompt.ids))
        return {**self.keywords, "max_tokens": min(self.keywords["max_tokens"], room)}

    def choice_texts(self, lanes: Lanes) -> list[ChoiceText]:
        """Readers of all choices."""
        options = self.body.text_options(logprobs=self.keywords["logprobs"] is not None)
        return [choice_text(one, self.texts, options, self.body) for one in lanes.streams]

    def n_cached(self, ends: Sequence[StateEnd | None]) -> int:
        """How many tokens came with states, counted once for each prompt.

        Args:
            ends: one for each choice.
        """
        return n_cached(ends[:: self.n_made])

    def told(self, wholes: Sequence[Whole]) -> list[int]:
        """Which choices are told, in order: of each prompt the likeliest ones, if some are not."""
        places = range(len(wholes))
        if self.n_made == self.n:
            return list(places)
        of_prompts = (places[first : first + self.n_made] for first in places[:: self.n_made])
        return [
            at
            for of_prompt in of_prompts
            for at in sorted(of_prompt, key=lambda at: -_mean_logprob(wholes[at]))[: self.n]
        ]

    def writer(self, lanes: Lanes, at: int, index: int | None = None) -> "_ChoiceWriter":
        """What writes a choice in the format of the answer.

        Args:
            at: which of those that were made.
            index: what it is called; None for ``at``.
        """
        return _ChoiceWriter(self, lanes, at, at if index is None else index)

    @property
    def prompt_lengths(self) -> list[int]:
        """One for each prompt."""
        return [len(prompt.ids) for prompt in self.prompts]


async def completion_job(call: Call, body: CompletionRequest) -> CompletionJob:
    """Check a completion, and make ids of its prompts; long ones in a thread of their own.

    Args:
        call: whose body was read.
        body: as it was sent, or made from what another interface sends.

    Raises:
        HttpError: 400 or 404.
        ClientError: the state that it goes on from is not there, or the engine is not.
    """
    gateway = call.gateway
    if body.model is None:
        raise invalid("model", "is required")
    gateway.check_model(body.model)
    n = body.n_choices
    n_made = _n_made(body, n)
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "not available in a stream; use echo with logprobs")
    call.names = {**call.names, **STATE_NAMES}
    texts, room = gateway.texts, gateway.max_model_len
    cuts_to_fit = body.truncate_prompt_tokens == ALL_THAT_FIT
    if room is not None and body.continues and (body.max_tokens is None or cuts_to_fit):
        room = await room_after(call.client, await origin_of(call.client, body, pins=False), room)
    default = texts.default_max_tokens
    max_ids = n_kept(body.truncate_prompt_tokens, room, max_tokens=body.max_tokens, default=default)
    prompts = await gateway.offload.run(
        lambda: read_prompts(
            body.prompt,
            texts.tokenizer,
            max_prompts=MAX_CHOICES // n_made,
            max_ids=max_ids,
            may_be_empty=body.continues,
        ),
        size=call.n_held,
    )
    max_tokens = default if body.max_tokens is None else body.max_tokens
    must_be = wanted(body.response_format, body.structured_outputs)
    grammar = None if must_be is None else must_be.grammar
    if must_be is not None:
        call.names = {**call.names, "grammar": must_be.field}
    elif body.bad_words:
        call.names = {**call.names, "grammar": "bad_words"}
    keywords = body.keywords(texts, max_tokens=max_tokens, grammar=grammar)
    keywords |= body.state_keywords(n=n_made * len(prompts))
    ranked = body.logprobs is None and n_made > n
    keywords["logprobs"] = 0 if ranked else body.logprobs
    keywords["prompt_logprobs"] = _n_prompt_logprobs(body)
    return CompletionJob(
        body=body,
        texts=texts,
        response_id=body.response_id("cmpl", call.request_id),
        created=int(time.time()),
        model=gateway.model,
        prompts=prompts,
        echoes=[prompt.shown(texts.tokenizer) for prompt in prompts] if body.echo else [],
        n=n,
        n_made=n_made,
        keywords=keywords,
        most_tokens=room if body.max_tokens is None else None,
    )


def _n_made(body: CompletionRequest, n: int) -> int:
    """How many choices of each prompt are made, to tell ``n`` of them."""
    best_of = n if body.best_of is None else body.best_of
    if not n <= best_of <= MAX_N:
        raise invalid("best_of", f"{best_of} is not in [n, {MAX_N}], and n is {n}")
    if best_of > n and body.stream:
        raise invalid("best_of", "which choices are best is known at their ends: not in a stream")
    return best_of


def _mean_logprob(whole: Whole) -> float:
    """Over the ids of a choice; of one without ids, the least there is."""
    logprobs = [one.logprob for one in whole.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _n_prompt_logprobs(body: CompletionRequest) -> int | None:
    """How many most likely ids the engine reports for the prompt."""
    counts = [body.logprobs if body.echo else None, body.prompt_logprobs]
    return max((n for n in counts if n is not None), default=None)


class _ChoiceWriter:
    """Writes one choice, whole or in chunks: what was cut adds up to what was not."""

    def __init__(self, job: CompletionJob, lanes: Lanes, at: int, index: int) -> None:
        self._job = job
        self._index = index
        self._stream = lanes.streams[at]
        self._prompt = job.prompts[at // job.n_made]
        body = job.body
        self.echo = job.echoes[at // job.n_made] if body.echo else ""
        self._logprobs: LogprobsWriter | None = None
        if body.logprobs is not None:
            self._logprobs = LogprobsWriter(
                job.texts.tokenizer,
                body.logprobs,
                as_ids=bool(body.return_tokens_as_token_ids),
                skip_special=body.skip_special_tokens is not False,
            )

    def head(self) -> CompletionChoice:
        """What comes before the output: the prompt, as far as it was asked for."""
        body = self._job.body
        choice = CompletionChoice(self._index, self.echo, None, None, None)
        if self._logprobs is not None:
            if body.echo:
                prompt_logprobs = self._stream.prompt_logprobs
                choice.logprobs = self._logprobs.prompt(self._prompt.ids, prompt_logprobs)
            else:
                choice.logprobs = CompletionLogprobs([], [], [], [])
        if body.return_token_ids:
            choice.prompt_token_ids, choice.token_ids = self._prompt.ids, []
        if body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_infos(
                self._job.texts.tokenizer, self._stream.prompt_logprobs, body.prompt_logprobs
            )
        return choice

    def tail(self, piece: Piece | Whole) -> CompletionChoice:
        """Output."""
        choice = CompletionChoice(self._index, piece.text, None, None, None)
        if self._logprobs is not None:
            choice.logprobs = self._logprobs.output(piece.logprobs)
        if self._job.body.return_token_ids:
            choice.token_ids = piece.ids
        finish = piece.finish
        if finish is not None:
            choice.finish_reason = finish.reason
            choice.stop_reason = self._job.body.stop_reason(finish.stop_reason)
        return choice

    def whole(self, whole: Whole) -> CompletionChoice:
        """The prompt, as far as it was asked for, and the output."""
        head, choice = self.head(), self.tail(whole)
        choice.text = head.text + choice.text
        if head.logprobs is not None and choice.logprobs is not None:
            choice.logprobs = joined(head.logprobs, choice.logprobs)
        choice.prompt_logprobs = head.prompt_logprobs
        choice.prompt_token_ids = head.prompt_token_ids
        return choice


def _reply(
    job: CompletionJob, lanes: Lanes, wholes: Sequence[Whole], ends: Sequence[StateEnd | None]
) -> Completion:
    lengths = [whole.finish.n_output for whole in wholes]
    return Completion(
        id=job.response_id,
        object="text_completion",
        created=job.created,
        model=job.model,
        choices=[
            job.writer(lanes, at, index).whole(wholes[at])
            for index, at in enumerate(job.told(wholes))
        ],
        usage=Usage.of(
            job.prompt_lengths,
            lengths,
            job.n_cached(ends),
            n_reused([whole.finish for whole in wholes], job.n_made),
        ),
        state=report(ends[0]),
    )


async def _stream(
    call: Call, job: CompletionJob, lanes: Lanes, texts: Sequence[ChoiceText], keeper: Keeper
) -> web.StreamResponse:
    chunks = _Chunks(job, lanes, texts)
    async with EventStream(call, interval=job.body.stream_interval) as events:
        last = await send_all(texts, events, chunks.of)
        await events.finish(last + await chunks.total(keeper) + DONE)
    return events.response


class _Chunks:
    """The events of a stream. What all chunks of a choice have in common is encoded once."""

    def __init__(self, job: CompletionJob, lanes: Lanes, texts: Sequence[ChoiceText]) -> None:
        self._job = job
        self._texts = texts
        body, options = job.body, job.body.stream_options or StreamOptions()
        self._writers = [job.writer(lanes, index) for index in range(len(texts))]
        self._begun = [False] * len(texts)
        self._has_head = bool(body.echo or body.return_token_ids)
        common = {
            "id": job.response_id,
            "object": "text_completion",
            "created": job.created,
            "model": job.model,
        }
        self._frame = frame = Frame(common, options)
        self._is_plain = not (
            body.logprobs is not None or body.return_token_ids or frame.tells_costs
        )
        self._finishes = dict[int, Finish]()
        self._encode = msgspec.json.Encoder().encode
        self._plain_starts = [
            b'%b{"index":%d,"text":' % (frame.start, index) for index in range(len(texts))
        ]
        self._plain_end = b',"logprobs":null,"finish_reason":null,"stop_reason":null}' + frame.end

    def of(self, index: int, piece: Piece) -> bytes:
        """The events, if any, that a piece of a choice becomes."""
        head = b""
        if self._has_head and not self._begun[index]:
            self._begun[index] = True
            head = self._event(index, self._writers[index].head())
        if piece.finish is not None:
            self._finishes[index] = piece.finish
        elif self._is_plain:
            text = piece.text
            if not text:
                return head
            # The usual event, by far: everything but its text was encoded before.
            return b"".join((head, self._plain_starts[index], self._encode(text), self._plain_end))
        return head + self._event(index, self._writers[index].tail(piece))

    async def total(self, keeper: Keeper) -> bytes:
        """The event, if there is one, of all choices: what they cost, the state at their end.

        Raises:
            ClientError, HttpError: as ``Keeper.settle``.
        """
        finishes = [self._finishes[index] for index in range(len(self._texts))]
        ends = [await keeper.settle(finish) for finish in finishes]
        outputs = [finish.n_output for finish in finishes]
        reused = n_reused(finishes, self._job.n_made)
        cost = Usage.of(self._job.prompt_lengths, outputs, self._job.n_cached(ends), reused)
        metrics = metrics_of(self._texts) if self._job.body.return_metrics else UNSET
        return self._frame.total(cost, report(ends[0]), metrics)

    def _event(self, index: int, choice: CompletionChoice) -> bytes:
        cost = None
        if self._frame.tells_costs:
            n_prompt = len(self._job.prompts[index // self._job.n].ids)
            text = self._texts[index]
            cost = Usage.of([n_prompt], [text.n_output], n_reused=text.n_reused)
        return self._frame.event(choice, cost)
