"""``POST /generate``: prompts to texts, by the same way as OpenAI's completions."""

from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType
from wkvm_client import TokenLogprobs

from wkvm.gateway.calls import Call, json_response, read_checked
from wkvm.gateway.completions import CompletionJob, completion_job
from wkvm.gateway.dialects import Dialect
from wkvm.gateway.logprobs import finite
from wkvm.gateway.sglang.bodies import GENERATE, SAMPLING, GenerateBody, SamplingBody
from wkvm.gateway.streams.choices import Lanes, collect
from wkvm.gateway.streams.pieces import ChoiceText, Finish, Piece, Whole
from wkvm.gateway.streams.pump import send_all
from wkvm.gateway.streams.sse import DONE, EventStream

Logprob = tuple[float | None, int, None]
"""The log probability of an id, the id, and no text."""


class FinishReason(msgspec.Struct, omit_defaults=True):
    """How it ended: ``stop``, with what did it, or ``length``."""

    type: str
    matched: str | int | None = None
    length: int | None = None


class MetaInfo(msgspec.Struct):
    """What is said of an answer beside its text. Times are in seconds."""

    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | UnsetType = UNSET
    input_token_logprobs: list[Logprob] | UnsetType = UNSET
    output_token_logprobs: list[Logprob] | UnsetType = UNSET
    input_top_logprobs: list[list[Logprob] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[Logprob] | None] | UnsetType = UNSET


class Generated(msgspec.Struct):
    """An answer. In a stream each event has all that there is so far."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo


async def generate(call: Call) -> web.StreamResponse:
    """Answer with everything, or with events."""
    body = await call.body(GenerateBody, GENERATE)
    params = msgspec.json.encode(body.sampling_params or {})
    sampling = await read_checked(params, SamplingBody, SAMPLING, call.gateway)
    call.dialect = Dialect(
        {
            "include_stop_str_in_output": "no_stop_trim",
            "logprobs": "top_logprobs_num",
            "max_tokens": "max_new_tokens",
            "min_tokens": "min_new_tokens",
            "prompt": "text" if body.input_ids is None else "input_ids",
            "prompt_logprobs": "top_logprobs_num",
            "request_id": "rid",
            "seed": "sampling_seed",
            "structured_outputs": "regex" if sampling.json_schema is None else "json_schema",
        }
    )
    request = body.to_completion(sampling)
    request.model = call.gateway.model
    job = await completion_job(call, request)
    async with Lanes(call.client) as lanes:
        for prompt in job.prompts:
            await lanes.open(prompt.ids, job.keywords_of(prompt), n=job.n)
        texts = job.choice_texts(lanes)
        with call.cancellable(*lanes.streams):
            if body.stream:
                return await _stream(call, job, texts[0])
            wholes = await collect(texts)
    name = call.request_id if body.rid is None else body.rid
    answers = [
        _answer(job, lanes, at, whole, text, name)
        for at, (whole, text) in enumerate(zip(wholes, texts, strict=True))
    ]
    is_one = not body.is_batch and sampling.n == 1
    return json_response(msgspec.json.encode(answers[0] if is_one else answers))


def _answer(
    job: CompletionJob, lanes: Lanes, at: int, whole: Whole, text: ChoiceText, name: str
) -> Generated:
    n_prompt = len(job.prompts[at // job.n].ids)
    meta = _meta(name, n_prompt, whole.finish, len(whole.ids), whole.finish.n_reused)
    meta.e2e_latency = text.times().total_s
    n_top = job.body.logprobs
    if n_top is not None:
        meta.output_token_logprobs = [_own(one) for one in whole.logprobs]
        meta.output_top_logprobs = [_top(one, n_top) for one in whole.logprobs]
    if job.body.prompt_logprobs is not None:
        of_prompt = lanes.streams[at].prompt_logprobs
        first: Logprob = (None, job.prompts[at // job.n].ids[0], None)
        meta.input_token_logprobs = [first, *map(_own, of_prompt)]
        meta.input_top_logprobs = [None, *[_top(one, n_top or 0) for one in of_prompt]]
    return Generated(whole.text, whole.ids, meta)


def _meta(
    name: str, n_prompt: int, finish: Finish | None, n_output: int, n_reused: int
) -> MetaInfo:
    reason = None
    if finish is not None:
        reason = FinishReason("length", length=n_output)
        if finish.reason == "stop":
            reason = FinishReason("stop", matched=finish.stop_reason)
    return MetaInfo(name, reason, n_prompt, n_output, n_reused)


async def _stream(call: Call, job: CompletionJob, text: ChoiceText) -> web.StreamResponse:
    """Events that each have the whole text so far, as SGLang's have."""
    said, ids, entries = list[str](), list[int](), list[TokenLogprobs]()
    name = call.request_id if job.body.request_id is None else job.body.request_id
    n_prompt, n_top = len(job.prompts[0].ids), job.body.logprobs

    def of(_: int, piece: Piece) -> bytes:
        said.append(piece.text)
        ids.extend(piece.ids)
        entries.extend(piece.logprobs)
        meta = _meta(name, n_prompt, piece.finish, len(ids), text.n_reused)
        if n_top is not None:
            meta.output_token_logprobs = [_own(one) for one in entries]
            meta.output_top_logprobs = [_top(one, n_top) for one in entries]
        if piece.finish is not None:
            meta.e2e_latency = text.times().total_s
        answer = Generated("".join(said), ids, meta)
        return b"data: %b\n\n" % msgspec.json.encode(answer)

    async with EventStream(call) as events:
        last = await send_all([text], events, of)
        await events.finish(last + DONE)
    return events.response


def _own(entry: TokenLogprobs) -> Logprob:
    return finite(entry.logprob), entry.token_id, None


def _top(entry: TokenLogprobs, n_top: int) -> list[Logprob] | None:
    tops: Sequence[Logprob] = [
        (finite(top.logprob), top.token_id, None) for top in entry.top[:n_top]
    ]
    return list(tops) or None
