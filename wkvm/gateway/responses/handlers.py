"""``/v1/responses``: HTTP in front of ``core``."""

import asyncio
import contextlib
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from wkvm.gateway import policy
from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.failures import HttpError, invalid
from wkvm.gateway.responses import records
from wkvm.gateway.responses.asking import Caller, ask, n_input
from wkvm.gateway.responses.bodies import CountBody, CreateBody
from wkvm.gateway.responses.core import Run, forget
from wkvm.gateway.responses.feed import Feed, gone
from wkvm.gateway.responses.keys import Key, key_of
from wkvm.gateway.responses.paging import items_page
from wkvm.gateway.responses.records import Record
from wkvm.gateway.responses.resource import Resource
from wkvm.gateway.responses.writer import Event, told_again
from wkvm.gateway.streams.sse import DONE, STREAM_HEADERS, EventStream

POLL_S = 0.25
"""How often it is looked how far a response is that another gateway makes."""
CANCEL_TIMEOUT_S = 10.0
"""How long a cancellation waits for a response to be over."""

_encode = msgspec.json.Encoder().encode


async def create(call: Call) -> web.StreamResponse:
    """``POST /v1/responses``: make a response, as a whole, as events or in the background."""
    body = await call.body(CreateBody, policy.RESPONSES)
    key = await _key(call, body)
    if key is None:
        return await _make(call, body, None)
    while True:
        made = await _made_before(call, key)
        if made is not None:
            return await _told_again(call, body, made)
        try:
            return await _make(call, body, key)
        except HttpError as error:
            # It may have been begun twice at once: then one of the two is the one.
            if error.status != 409 or await _asked_before(call, key) is None:
                raise


async def _make(call: Call, body: CreateBody, key: Key | None) -> web.StreamResponse:
    caller = Caller.of(call)
    shows_events = bool(body.stream or body.background)
    run = Run(caller, await ask(caller, body, key=key), shows_events=shows_events)
    if body.background:
        feed = await begin_background(caller, run)
        if body.stream:
            return await _send(call, run.id, feed, 0)
        return _json(run.resource)
    if body.stream:
        return await _stream(call, run)
    async with run:
        async for _ in run:
            pass
    if run.error is not None:
        raise run.error
    return _json(run.resource)


async def _key(call: Call, body: CreateBody) -> Key | None:
    """The key of a response. Where nothing is kept there is nothing to do twice."""
    if not body.stores:
        return None
    work = partial(key_of, body, "response")
    return await call.gateway.offload.run(work, size=call.n_held)


async def _made_before(call: Call, key: Key) -> Record | None:
    """What was made with a key, or is being made in the background.

    What is being made for a client that waits is waited for here too.
    """
    while True:
        record = await _asked_before(call, key)
        if record is None or record.is_over or record.resource["background"]:
            return record
        await asyncio.sleep(POLL_S)


async def _asked_before(call: Call, key: Key) -> Record | None:
    return await call.gateway.responses.database.run(records.asked_before, call.tenant, key)


async def _told_again(call: Call, body: CreateBody, record: Record) -> web.StreamResponse:
    """The answer of a response that was made before."""
    if not body.stream:
        return _json(_now(call, record))
    if record.resource["background"]:
        return await _send(call, record.id, await _feed(call, record), 0)
    async with EventStream(call) as stream:
        for event in told_again(record.resource):
            await stream.send_raw(framed(event))
        await stream.finish(DONE)
    return stream.response


async def _stream(call: Call, run: Run) -> web.StreamResponse:
    async with EventStream(call) as stream:
        async with run:
            async for event in run:
                await stream.send_raw(framed(event))
        await stream.finish(DONE)
    return stream.response


async def begin_background(caller: Caller, run: Run) -> Feed:
    """Let a response be made by itself.

    Returns:
        Its events. They are kept with it.

    Raises:
        HttpError: as ``Run.__aenter__``.
    """
    shelf = caller.gateway.responses
    await run.__aenter__()
    feed = shelf.feeds[run.id] = Feed()
    shelf.add(_background(caller, run, feed))
    return feed


async def _background(caller: Caller, run: Run, feed: Feed) -> None:
    shelf = caller.gateway.responses
    try:
        try:
            async for event in run:
                feed.add(framed(event))
        finally:
            await run.__aexit__(None, None, None)
        events = feed.whole()
        if events is not None:
            await shelf.database.run(records.keep_events, run.id, events)
    except HttpError:
        pass  # the events are not kept; the response is
    finally:
        feed.end()
        del shelf.feeds[run.id]


def framed(event: Event) -> bytes:
    """An event as server-sent events have it."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


async def retrieve(call: Call) -> web.StreamResponse:
    """``GET /v1/responses/{id}``: a response as it is now; or its events, with ``stream``."""
    record = await _find(call, _name(call))
    query = call.request.query
    if not _flag(query.get("stream"), "stream"):
        if "starting_after" in query:
            raise invalid("starting_after", "needs stream to be true")
        return _json(_now(call, record))
    after = query.get("starting_after", "")
    if after and not (after.isascii() and after.isdigit()):
        raise invalid("starting_after", f"{after[:40]!r} is no number of an event")
    if not record.resource["background"]:
        raise invalid("stream", "only the events of background responses are kept")
    if call.request.method == "HEAD":
        return web.Response(headers=STREAM_HEADERS)
    return await _send(call, record.id, await _feed(call, record), int(after[:18] or -1) + 1)


async def _feed(call: Call, record: Record) -> Feed:
    """The events of a background response; those of one that is made elsewhere once it is over.

    Raises:
        HttpError: 410; they are not kept.
    """
    shelf = call.gateway.responses
    feed = shelf.feeds.get(record.id)
    if feed is not None:
        return feed
    await _over(call, record)
    kept = await shelf.database.run(records.events_of, record.id)
    if kept is None:
        raise gone()
    feed = Feed()
    for event in kept.split(b"\n\n")[:-1]:
        feed.add(event + b"\n\n")
    feed.end()
    return feed


async def _send(call: Call, response_id: str, feed: Feed, n_seen: int) -> web.StreamResponse:
    async with EventStream(call) as stream:
        while True:
            found = feed.since(n_seen)
            n_seen += len(found)
            await stream.send_raw(b"".join(found))
            if feed.is_over and not feed.since(n_seen):
                break
            await feed.changed(n_seen)
        await stream.finish(DONE)
    return stream.response


async def delete(call: Call) -> web.StreamResponse:
    """``DELETE /v1/responses/{id}``: forget a response and its state. One that runs ends."""
    record = await _find(call, _name(call))
    if not record.is_over:
        await _cancel(call, record)
    if not await call.gateway.responses.database.run(records.delete, call.tenant, record.id):
        raise _not_found(record.id)
    await forget(Caller.of(call), [record.id])
    return _json({"id": record.id, "object": "response", "deleted": True})


async def cancel(call: Call) -> web.StreamResponse:
    """``POST /v1/responses/{id}/cancel``: end a response; one that is over stays as it is."""
    record = await _find(call, _name(call))
    if not record.is_over:
        record = await _cancel(call, record)
    return _json(_now(call, record))


async def _cancel(call: Call, record: Record) -> Record:
    """End a response, and wait for its end for some time."""
    shelf = call.gateway.responses
    if not shelf.cancel(record.id):
        await shelf.database.run(records.ask_to_cancel, record.id)
    feed = shelf.feeds.get(record.id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            while feed is not None and not feed.is_over:
                await feed.changed(feed.n_events)
            return await _over(call, await _find(call, record.id))
    return await _find(call, record.id)


async def _over(call: Call, record: Record) -> Record:
    """Wait until a response is over, wherever it is made."""
    while not record.is_over:
        await asyncio.sleep(POLL_S)
        record = await _find(call, record.id)
    return record


async def input_items(call: Call) -> web.StreamResponse:
    """``GET /v1/responses/{id}/input_items``: what a response was asked with, in parts."""
    record = await _find(call, _name(call))
    return await items_page(call, record.id)


async def input_tokens(call: Call) -> web.StreamResponse:
    """``POST /v1/responses/input_tokens``: how long the prompt of a response would be."""
    body = await call.body(CountBody, policy.COUNTED_RESPONSES)
    n_tokens = await n_input(Caller.of(call), body)
    return _json({"object": "response.input_tokens", "input_tokens": n_tokens})


async def compact(call: Call) -> web.StreamResponse:
    """``POST /v1/responses/compact``: not there; a state is as small as it is."""
    raise HttpError(404, f"there is no {call.request.path}", code="not_found")


def _name(call: Call) -> str:
    """The response that the path names."""
    return call.request.match_info["id"]


async def _find(call: Call, name: str) -> Record:
    """A response that is kept.

    Raises:
        HttpError: 404; there is none, or none any more, or it is another tenant's.
    """
    record = await call.gateway.responses.database.run(records.find, call.tenant, name)
    if record is None:
        raise _not_found(name)
    return record


def _not_found(name: str) -> HttpError:
    return HttpError(404, f"there is no response {name[:80]!r}", code="response_not_found")


def _now(call: Call, record: Record) -> Resource:
    """A response as it is now, also where it is made here just now."""
    if record.is_over:
        return record.resource
    return call.gateway.responses.now(record.id) or record.resource


def _flag(text: str | None, field: str) -> bool:
    if text is None or text.lower() == "false":
        return False
    if text.lower() == "true":
        return True
    raise invalid(field, f"{text[:40]!r} is neither true nor false")


def _json(told: dict[str, Any]) -> web.Response:
    return json_response(_encode(told))
