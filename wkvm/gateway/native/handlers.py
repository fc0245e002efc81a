"""The native routes: token ids in, token ids out. They need no tokenizer."""

import asyncio
import contextlib
from functools import partial
from typing import cast

import msgspec
from aiohttp import web
from wkvm_client import Completion, aio
from wkvm_client.errors import ClientError
from wkvm_client.results import Path as ScorePath

from wkvm.gateway.asked import cancel_everywhere
from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.failures import http_error, invalid
from wkvm.gateway.native import bodies
from wkvm.gateway.native.submitted import Outcome, no_such_request
from wkvm.gateway.streams.choices import Lanes, Ready, credit_for, taken
from wkvm.gateway.streams.sse import DONE, EventStream


async def generate(call: Call) -> web.StreamResponse:
    """``POST /v1/generate``: wait for the end, and answer with everything."""
    body = await call.body(bodies.GenerateBody)
    async with Lanes(call.client) as lanes:
        asked = await _ask(call, body, lanes)
        with call.cancellable(asked):
            completions = await _whole(asked)
    return json_response(bodies.answer(call.request_id, call.gateway.model, completions))


async def stream(call: Call) -> web.StreamResponse:
    """``POST /v1/stream``: ids as they arrive, each arrival an event."""
    body = await call.body(bodies.GenerateBody)
    interval = body.stream_interval
    async with EventStream(call, interval=interval) as events, Lanes(call.client) as lanes:
        asked = await _ask(call, body, lanes)
        with call.cancellable(asked):
            await _send_all(events, asked, body)
        await events.finish(DONE)
    return events.response


async def submit(call: Call) -> web.StreamResponse:
    """``POST /v1/submit``: take a request, and answer with a name to ask for it by.

    What the engine refuses at once is refused here.
    """
    body = await call.body(bodies.GenerateBody)
    submitted, model = call.gateway.submitted, call.gateway.model
    submitted.make_room(call.tenant)

    def seal(request_id: str, outcome: Outcome) -> bytes:
        if not isinstance(outcome, ClientError):
            return bodies.answer(request_id, model, outcome, status="done")
        error = http_error(outcome, bodies.NAMES)
        assert error is not None, "the table has a row for every error of the client"
        return bodies.failed_answer(request_id, model, error)

    stream = await _ask(call, body)
    try:
        await taken(call.client, stream)
        submission = submitted.add(call.whose, stream, seal)
    except BaseException:
        stream.cancel()
        raise
    return json_response(msgspec.json.encode(bodies.Accepted(submission.request_id)), status=202)


async def score(call: Call) -> web.StreamResponse:
    """``POST /v1/score``: how likely given ids are."""
    body = await call.body(bodies.ScoreBody)
    call.names = bodies.NAMES
    if body.model is not None:
        call.gateway.check_model(body.model)
    scores = await call.client.score(
        body.ids,
        path=cast(ScorePath, body.path),  # the engine refuses what is none
        n_top=body.n_top,
        timeout_s=body.timeout_s,
        priority=body.priority,
    )
    call.absorbs(len(body.ids))
    scored = bodies.Scored(call.request_id, call.gateway.model, bodies.positions(scores))
    return json_response(msgspec.json.encode(scored))


async def status(call: Call) -> web.StreamResponse:
    """``GET /v1/status/{id}``: what has come of a submitted request so far."""
    start = _start(call.request)
    submission = call.gateway.submitted.get(call.tenant, call.request.match_info["id"])
    if submission.result is not None:
        return json_response(submission.result)
    assert submission.stream is not None, "it runs"
    choices = [
        bodies.PartialChoice(choice.index, choice.ids[start:])
        for choice in submission.stream.choices
    ]
    return json_response(
        msgspec.json.encode(
            bodies.StillRunning(submission.request_id, call.gateway.model, choices, start)
        )
    )


async def cancel(call: Call) -> web.StreamResponse:
    """``POST /v1/cancel``: end a request that runs, whichever route it came by."""
    body = await call.body(bodies.CancelBody)
    found = await cancel_everywhere(call, body.id)
    if not found.was_running and not found.is_known:
        raise no_such_request(body.id)
    return json_response(msgspec.json.encode(bodies.Cancelled(body.id, found.was_running)))


async def _send_all(events: EventStream, stream: aio.Stream, body: bodies.GenerateBody) -> None:
    """Send the arrivals of all choices, in the order in which they come.

    Raises:
        ClientError: the engine failed; after the events that came before.
        ConnectionError: the client is gone.
    """
    ready = Ready()

    def watch(choice: aio.Choice) -> None:
        choice.call_when_ready(partial(ready.note, choice.index))

    n_sent = [0] * len(stream.choices)
    held = [list[int]() for _ in stream.choices]
    n_open = len(stream.choices)
    prompt_logprobs = stream.prompt_logprobs if body.wants_prompt_logprobs else None
    for choice in stream.choices:
        watch(choice)
    while n_open:
        for index in await ready.wait():
            choice = stream.choices[index]
            try:
                ids = choice.take()
            except ClientError:
                if held[index]:
                    await events.send(bodies.arrival(index, held[index]))
                raise
            completion = _completion(choice)
            if completion is None:
                watch(choice)
            else:
                n_open -= 1
            ids, held[index] = held[index] + ids, []
            if not choice.is_over and n_sent[index] and len(ids) < events.interval:
                held[index] = ids
                continue
            first = n_sent[index]
            n_sent[index] += len(ids)
            logprobs = choice.logprobs[first : first + len(ids)] if body.wants_logprobs else None
            await events.send(
                bodies.arrival(
                    index,
                    ids,
                    logprobs=logprobs,
                    prompt_logprobs=prompt_logprobs,
                    completion=completion,
                )
            )
            prompt_logprobs = None


def _completion(choice: aio.Choice) -> Completion | None:
    """What became of a choice. A failure is for the next look at it: its ids go first."""
    if not choice.is_over:
        return None
    try:
        return choice.result
    except ClientError:
        return None


async def _whole(stream: aio.Stream) -> list[Completion]:
    """Wait for the ends of all choices. Cancelling this leaves them as they are.

    Raises:
        ClientError: the lane failed.
    """
    over, n_open = asyncio.Event(), len(stream.choices)

    def note() -> None:
        nonlocal n_open
        n_open -= 1
        if not n_open:
            over.set()

    for choice in stream.choices:
        choice.call_when_over(note)
    await over.wait()
    return [choice.result for choice in stream.choices]


def _leave(call: Call, stream: aio.Stream, on_disconnect: str | None) -> None:
    """The client has left a request whose state is kept."""
    match on_disconnect:
        case "finish":
            call.gateway.unwatched.add(_finish(call, stream))
        case "hibernate":
            stream.interrupt()
        case _:
            stream.cancel()


async def _finish(call: Call, stream: aio.Stream) -> None:
    """Let a request run to its end that nobody waits for."""
    with call.cancellable(stream), contextlib.suppress(ClientError):
        await _whole(stream)


async def _ask(call: Call, body: bodies.GenerateBody, lanes: Lanes | None = None) -> aio.Stream:
    """Send a request to the engine.

    Args:
        lanes: where the request belongs that ends with its call.

    Raises:
        HttpError: 404; it names another model.
        ClientError: it cannot be sent.
    """
    call.names = bodies.NAMES
    if body.model is not None:
        call.gateway.check_model(body.model)
    keywords = body.keywords()
    stream = await call.client.generate(body.ids, **keywords, credit=credit_for(keywords))
    if lanes is not None:
        lanes.streams.append(stream)
        if body.saves:
            lanes.on_leave = partial(_leave, call, stream, body.on_disconnect)
    return stream


def _start(request: web.Request) -> int:
    given = request.query.get("from", "0")
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise invalid("from", f"{given[:32]!r} is not a count")
    return int(given)
