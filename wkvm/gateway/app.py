"""The application: all routes, and what every request goes through before and after its handler.

A handler is a function of a ``Call``; what it raises is answered here, in the format of its route.
"""

import asyncio
import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from wkvm_client.errors import ClientError, UnauthenticatedError

from wkvm.gateway.calls import Call, Gateway, Route
from wkvm.gateway.dialects import OPENAI, REQUEST_ID_HEADER, Dialect
from wkvm.gateway.door.expectations import check_expectation
from wkvm.gateway.door.keys import request_key
from wkvm.gateway.door.origins import check_origin, let_pages_read
from wkvm.gateway.failures import SERVER, HttpError
from wkvm.gateway.monitoring.counts import HttpCounts
from wkvm.gateway.monitoring.watch import ANSWER_TIMEOUT_S
from wkvm.gateway.peers import ASK

SERVER_NAME = "wkvm"
"""In the header ``Server`` of every answer."""
_IS_STREAM = web.RequestKey("is_stream", bool)
_LIMITS = web.RequestKey("limits", dict[str, str])
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def build_app(
    gateway: Gateway, routes: Iterable[Route], *, for_peers: bool = False
) -> web.Application:
    """An application with these routes; whatever else is asked for is not found.

    Args:
        for_peers: whether it is for the other processes of the port: they hand on what clients
            have sent, and that was counted there.
    """
    routes = tuple(routes)
    counts = HttpCounts() if for_peers else gateway.counts
    if not for_peers:
        gateway.routes = routes
    dialects = {one.path: one.dialect for one in routes if one.dialect is not OPENAI}
    app = web.Application(middlewares=[_answer_http_errors(dialects)])
    for route in (*routes, _ELSE):
        endpoint = _endpoint(gateway, route, dialects, counts, for_peers=for_peers)
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            app.router.add_route(method, route.path, endpoint, expect_handler=_not_yet)

    async def on_prepare(request: web.BaseRequest, response: web.StreamResponse) -> None:
        response.headers.setdefault(REQUEST_ID_HEADER, _request_id(request))
        response.headers["Server"] = SERVER_NAME  # not the versions of Python and aiohttp
        response.headers.update(request.get(_LIMITS, {}))
        if not isinstance(response, web.Response):
            request[_IS_STREAM] = True
            counts.n_streams += 1

    app.on_response_prepare.append(on_prepare)
    if gateway.config.allowed_origins and not for_peers:
        let_pages_read(app, gateway.config)
    return app


def _endpoint(
    gateway: Gateway,
    route: Route,
    dialects: Mapping[str, Dialect],
    of_all: HttpCounts,
    *,
    for_peers: bool,
) -> Handler:
    """A route as aiohttp calls it."""
    counts = of_all.route(route.method, route.path)

    title = f"{route.method} {counts.template}"

    async def count(request: web.Request) -> web.StreamResponse:
        status, began_at = None, time.perf_counter()
        dialect = route.dialect if route is not _ELSE else _dialect(dialects, request.path)
        call = Call(request, gateway, _request_id(request), dialect=dialect, doc=route.doc)
        counts.begin()
        try:
            response = await answer(call)
            if response is None:
                return web.Response(status=499)  # for nobody
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            counts.end(status)
            if _IS_STREAM in request:
                of_all.n_streams -= 1
            if not call.is_handed_on and route.path != ASK:  # which no client sends
                gateway.log.add(
                    request_id=call.request_id,
                    whose=call.whose,
                    route=title,
                    status=status,
                    spent=call.spent,
                    began_at=began_at,
                )

    async def answer(call: Call) -> web.StreamResponse | None:
        """The answer; None if the client is gone."""
        request, dialect, request_id = call.request, call.dialect, call.request_id
        try:
            if not route.is_open:
                await _let_in(call, route)
            check_expectation(request)
            if route.is_limited and not for_peers:
                call.enter()
                request[_LIMITS] = call.limit_headers or {}
            owner = None if for_peers else _owner(call, route)
            if owner is None:
                response = await route.handler(call)
            else:
                call.is_handed_on = True
                response = await _hand_on(call, owner)
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001  (what was not meant is logged)
            if isinstance(error, ConnectionError) and _is_gone(request):
                return None
            response = error_response(call.failure(error), dialect, request_id)
        finally:
            call.release()
        if not response.prepared:
            response.headers.update(dict.fromkeys(dialect.id_headers, request_id))
        return response

    return count


def _owner(call: Call, route: Route) -> int | None:
    """Which other process has what a call is about; None if none has."""
    peers = call.gateway.peers
    if peers is None or route.owner is None:
        return None
    owner = peers.owner(call.tenant, call.request.match_info[route.owner])
    return None if owner == peers.index else owner


async def _hand_on(call: Call, owner: int) -> web.StreamResponse:
    """Let another process answer.

    Raises:
        HttpError: as ``Call.read_body``; 503, it is not there now.
    """
    peers = call.gateway.peers
    assert peers is not None, "there is an owner"
    return await peers.forward(call.request, await call.read_body(), owner, call.request_id)


async def _let_in(call: Call, route: Route) -> None:
    """Find out whose a call is.

    Raises:
        ClientError: nobody's; or the engine, which knows, cannot be asked.
        HttpError: 503; the gateway is draining. 403; it is a browser page's from elsewhere, and
            nothing but the lack of a key lets it in.
    """
    gateway, key = call.gateway, request_key(call.request)
    if not gateway.engines.needs_key:
        check_origin(call.request, gateway.config, needs_key=False)
    try:
        if route.needs_engine:
            call.tenant_client = await gateway.engines.client(key)
        else:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                call.tenant_client = await gateway.engines.client(key)
    except UnauthenticatedError:
        gateway.counts.n_refused_keys += 1
        raise
    except (ClientError, TimeoutError):
        if route.needs_engine or not gateway.engines.has_let_in(key):
            raise
    call.whose = gateway.engines.whose(key)
    if gateway.is_draining and not route.serves_draining:
        raise HttpError(503, "the server is draining", SERVER, code="draining", retry_after_s=1.0)


def error_response(
    error: HttpError, dialect: Dialect = OPENAI, request_id: str | None = None
) -> web.Response:
    """A response that says what went wrong.

    Args:
        request_id: None for a fresh one.
    """
    request_id = request_id or uuid.uuid4().hex
    response = web.Response(
        status=dialect.status(error),
        body=dialect.body(error, request_id),
        content_type="application/json",
        headers=dict.fromkeys(dialect.id_headers, request_id),
    )
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _is_gone(request: web.Request) -> bool:
    """Whether nothing can be sent to the client any more."""
    return request.transport is None or request.transport.is_closing()


def _request_id(request: web.BaseRequest) -> str:
    """What the client calls a request, or a name made for it."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


async def _not_yet(request: web.Request) -> None:
    """A client that waits before it sends its body is told to go on by who reads it."""


async def _nothing_here(call: Call) -> web.StreamResponse:
    """404; or 405 where there are routes with other methods."""
    request, allowed = call.request, set[str]()
    for resource in request.app.router.resources():
        _, methods = await resource.resolve(request)
        allowed |= methods
    allowed.discard(_ELSE.method)
    if allowed:
        raise web.HTTPMethodNotAllowed(request.method, allowed)
    for meant in _near(request.path):
        for resource in request.app.router.resources():
            found, methods = await resource.resolve(
                request.clone(rel_url=request.rel_url.with_path(meant))
            )
            if (found is not None or methods) and _ELSE.method not in methods:
                why = f"there is no {request.path}, but {meant}: look at the client's base URL"
                raise HttpError(404, why, code="not_found")
    why = f"there is no {request.path}; /openapi.json names all routes"
    raise HttpError(404, why, code="not_found")


def _near(path: str) -> Iterator[str]:
    """What may be meant by a path without a route: the address with or without ``/v1``."""
    if path.startswith("/v1/"):
        yield path.removeprefix("/v1")
    else:
        yield f"/v1{path}"


_ELSE = Route("*", "/{path:.*}", _nothing_here)


def _dialect(dialects: Mapping[str, Dialect], path: str) -> Dialect:
    """How the refusal of a path is written that has no route: as what is above it."""
    found = (one for top, one in dialects.items() if path == top or path.startswith(f"{top}/"))
    return next(found, OPENAI)


def _answer_http_errors(dialects: Mapping[str, Dialect]) -> Middleware:
    """What gives aiohttp's own refusals, such as of a method, the format of ours."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            message, allowed = error.reason, error.headers.get("Allow")
            if allowed is not None:
                methods = " or ".join(allowed.split(","))
                message = f"{request.method} is no method of {request.path}; use {methods}"
            refusal = HttpError(error.status, message)
            if error.status == 404:  # every path has a route: this is none, such as that of CONNECT
                refusal = HttpError(400, "what is asked for has to be a path here")
            dialect = _dialect(dialects, request.path)
            response = error_response(refusal, dialect, _request_id(request))
            if allowed is not None:
                response.headers["Allow"] = allowed
            return response

    return answer
