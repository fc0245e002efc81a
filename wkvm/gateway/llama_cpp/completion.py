"""``POST /completion``: a prompt to its continuation, by the same way as OpenAI's completions."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
from aiohttp import web
from wkvm_client.errors import ClientError
from wkvm_client.states import StateEnd

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.completions import CompletionJob, completion_job
from wkvm.gateway.failures import invalid
from wkvm.gateway.llama_cpp.bodies import COMPLETION, CompletionBody
from wkvm.gateway.llama_cpp.dialect import called
from wkvm.gateway.llama_cpp.replies import Event, Times, probabilities, stop_of
from wkvm.gateway.llama_cpp.slots import Slot
from wkvm.gateway.states.keeping import Keeper
from wkvm.gateway.streams.choices import Lanes, collect
from wkvm.gateway.streams.pieces import ChoiceText, Piece, Whole
from wkvm.gateway.streams.pump import send_all
from wkvm.gateway.streams.sse import EventStream


async def completion(call: Call) -> web.StreamResponse:
    """Answer a completion."""
    body = await call.body(CompletionBody, COMPLETION)
    call.dialect = called(body.limit_name)
    tokenizer = call.gateway.texts.tokenizer
    request = body.to_completion(tokenizer)
    request.model = call.gateway.model if body.model is None else body.model
    prompts = await call.gateway.offload.run(lambda: body.prompts(tokenizer), size=call.n_held)
    request.prompt = list(prompts)
    slot = None
    if body.id_slot != -1:
        if len(prompts) != 1:
            raise invalid("id_slot", "needs one prompt")
        slot = Slot(call, body.id_slot)
        new = await slot.begin(request, prompts[0])
        request.prompt = [new] if new else None
    job = await completion_job(call, request)
    reader = _Reader(call, body, job, prompts)
    async with Lanes(call.client) as lanes:
        for prompt in job.prompts:
            await lanes.open(prompt.ids, job.keywords_of(prompt))
        texts = job.choice_texts(lanes)
        keeper = call.keeper(request, lanes, texts)
        reader.lanes = lanes
        with call.cancellable(*lanes.streams):
            if body.stream:
                return await _stream(call, reader, texts, keeper, slot)
            wholes = await collect(texts)
            ends = [await keeper.settle(whole.finish) for whole in wholes]
    if slot is not None:
        await slot.end(wholes[0].ids, ends[0])
    events = [
        reader.last(index, whole, end)
        for index, (whole, end) in enumerate(zip(wholes, ends, strict=True))
    ]
    is_one = body.prompt is None or len(events) == 1
    return json_response(msgspec.json.encode(events[0] if is_one else events))


async def _stream(
    call: Call,
    reader: "_Reader",
    texts: Sequence[ChoiceText],
    keeper: Keeper,
    slot: Slot | None,
) -> web.StreamResponse:
    """Pieces as they come; the last event of each prompt after the last piece of all."""
    pieces = dict[int, Piece]()
    ids = list[int]()

    def of(index: int, piece: Piece) -> bytes:
        if slot is not None:
            ids.extend(piece.ids)
        if piece.finish is not None:
            pieces[index] = piece
            return b""
        return reader.event(index, piece)

    async with EventStream(call) as events:
        last = await send_all(texts, events, of)
        for index, piece in sorted(pieces.items()):
            assert piece.finish is not None
            end = await keeper.settle(piece.finish)
            if slot is not None:
                await slot.end(ids, end)
            whole = Whole(piece.text, piece.ids, piece.logprobs, piece.finish)
            last += _framed(reader.last(index, whole, end))
        await events.finish(last)
    return events.response


class _Reader:
    """Writes the choices of a request.

    Args:
        prompts: as they were sent, with what a slot had of them.
    """

    def __init__(
        self, call: Call, body: CompletionBody, job: CompletionJob, prompts: Sequence[Sequence[int]]
    ) -> None:
        self.lanes: Lanes | None = None
        self._body = body
        self._job = job
        self._prompts = prompts
        self._model = call.gateway.model
        self._n_output = [0] * len(prompts)
        self._has_line = [False] * len(prompts)

    def event(self, index: int, piece: Piece) -> bytes:
        """The event of a piece; nothing where there is nothing to tell yet."""
        told = self._event(index, piece)
        if not (piece.text or told.tokens or piece.logprobs):
            return b""
        return _framed(told)

    def last(self, index: int, whole: Whole, end: StateEnd | None) -> Event:
        """All that there is to say at the end."""
        event, job = self._event(index, whole), self._job
        n_prompt, n_output = len(self._prompts[index]), whole.finish.n_output
        n_cached = whole.finish.n_reused + (0 if end is None else end.cached_tokens)
        event.stop = True
        event.tokens_predicted = n_output
        event.stop_type, event.stopping_word = stop_of(whole.finish)
        event.model = self._model
        event.prompt = job.texts.tokenizer.decode(self._prompts[index], skip_special=False)
        event.generation_settings = settings_of(job)
        event.has_new_line = self._has_line[index]
        event.truncated = False
        event.tokens_cached = n_cached
        event.timings = self._times(index, n_prompt - n_cached, n_cached, n_output)
        return event

    def _event(self, index: int, piece: Piece | Whole) -> Event:
        self._n_output[index] += len(piece.ids)
        self._has_line[index] |= "\n" in piece.text
        event = Event(
            index=index,
            content=piece.text,
            tokens=piece.ids if self._body.return_tokens else [],
            id_slot=self._body.id_slot,
            stop=False,
            tokens_predicted=self._n_output[index],
            tokens_evaluated=len(self._prompts[index]),
        )
        if self._body.n_probs:
            event.completion_probabilities = probabilities(
                self._job.texts.tokenizer, piece.logprobs, self._body.n_probs
            )
        return event

    def _times(self, index: int, n_prompt: int, n_cached: int, n_output: int) -> Times:
        timings = None
        if self.lanes is not None and (stream := self.lanes.streams[index]).is_over:
            with suppress(ClientError):
                timings = stream.choices[0].result.timings
        return Times.of(timings, n_prompt, n_cached, n_output)


def settings_of(job: CompletionJob) -> dict[str, object]:
    """The sampling of a request, by llama.cpp's names."""
    return {**settings(job.keywords), "stop": job.body.stops, "n_probs": job.body.logprobs or 0}


def settings(keywords: dict[str, object]) -> dict[str, object]:
    """Keywords of ``Client.generate`` by llama.cpp's names, with what is the default."""
    given = partial(keywords.get)
    return {
        "n_predict": given("max_tokens", -1),
        "seed": given("seed", -1),
        "temperature": given("temperature", 1.0),
        "top_k": given("top_k", 0),
        "top_p": given("top_p", 1.0),
        "min_p": given("min_p", 0.0),
        "repeat_penalty": given("repetition_penalty", 1.0),
        "repeat_last_n": -1,
        "presence_penalty": given("presence_penalty", 0.0),
        "frequency_penalty": given("frequency_penalty", 0.0),
        "ignore_eos": given("ignore_eos", False),
        "samplers": ["logit_bias", "penalties", "temperature", "top_k", "top_p", "min_p"],
    }


def _framed(event: Event) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)
