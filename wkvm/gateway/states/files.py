"""The bytes of a state over HTTP: one file, sent and taken as it comes. None is ever held whole."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from aiohttp import web
from wkvm_client.errors import ClientError
from wkvm_client.states import Format

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.dialects import REQUEST_ID_HEADER
from wkvm.gateway.failures import HttpError, invalid
from wkvm.gateway.states import bodies
from wkvm.gateway.states.fields import EMPTY, KEY_FIELD, KEY_HEADER

logger = logging.getLogger("wkvm.gateway")

FORMATS: dict[str, Format] = {"state": "state", "blinkdl": "blinkdl", "fla": "fla"}
MIN_RATE = 64 * 1024
"""Bytes a second at least of a file that a client sends, beside the time that any body has."""


async def export(call: Call) -> web.StreamResponse:
    """``GET /v1/states/{ref}/export``: the file of a state."""
    query, ref = call.request.query, call.request.match_info["ref"]
    bodies.known_query(query, "format")
    exported = await call.client.states.export(ref, format=_format(call))
    with contextlib.closing(exported):
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Disposition": f'attachment; filename="{_filename(ref)}"',
                REQUEST_ID_HEADER: call.request_id,
            }
        )
        response.content_length = exported.n_bytes
        if exported.state is not None:
            response.headers["X-State"] = exported.state.ref
        await response.prepare(call.request)
        if call.request.method == "HEAD":
            return response
        try:
            async for chunk in exported:
                await response.write(chunk)
        except ClientError as error:
            # The client was promised more bytes: only the end of the connection says no.
            logger.error(
                "the export of request %s broke off: %s", call.request_id, type(error).__name__
            )
            if call.request.transport is not None:
                call.request.transport.abort()
            raise ConnectionResetError("the export broke off") from error
    await response.write_eof()
    return response


async def take(call: Call) -> web.StreamResponse:
    """``PUT`` or ``POST /v1/states/{name}/import``: keep a state that the client sends."""
    request, limit = call.request, call.gateway.config.max_state_bytes
    query, name = request.query, request.match_info["ref"]
    known = ("format", "tag", "expires_in_s", "expected_version", "durability", KEY_FIELD)
    bodies.known_query(query, *known)
    n_bytes = request.content_length
    if n_bytes is None:
        raise HttpError(411, "say how long the file is: Content-Length", code="length_required")
    if n_bytes > limit:
        raise HttpError(413, f"the file is larger than {limit} bytes", code="request_too_large")
    if not n_bytes:
        raise invalid(None, "there is no body; this route takes the file of a state")
    keywords: dict[str, Any] = {
        "tags": bodies.query_tags(query),
        "expires_in_s": bodies.query_seconds(query, "expires_in_s"),
        "expected_version": bodies.query_count(query, "expected_version"),
        "durability": query.get("durability"),
        KEY_FIELD: query.get(KEY_FIELD, request.headers.get(KEY_HEADER)),
    }
    keywords = {key: value for key, value in keywords.items() if value is not None}
    for key, value in keywords.items():
        if value == "":
            raise invalid(key, EMPTY)
    try:
        async with asyncio.timeout(call.gateway.config.body_timeout_s + n_bytes / MIN_RATE):
            info = await call.client.states.import_from(
                name, _parts(call), n_bytes=n_bytes, format=_format(call), **keywords
            )
    except TimeoutError as error:
        raise HttpError(408, "the file came too slowly", code="body_timeout") from error
    return json_response(bodies.one_json(info), status=201)


async def _parts(call: Call) -> AsyncGenerator[bytes]:
    """The body as it comes. What is not asked for is not read."""
    await call.begin_body()
    while part := await call.request.content.readany():
        yield part


def _format(call: Call) -> Format:
    found = FORMATS.get(call.request.query.get("format", "state"))
    if found is None:
        raise invalid("format", f"is one of {', '.join(FORMATS)}")
    return found


def _filename(ref: str) -> str:
    """A name for the file. What is no state's name has none of its own."""
    kept = "".join(c for c in ref if c.isascii() and (c.isalnum() or c in "._-@"))
    return f"{kept or 'state'}.safetensors"
