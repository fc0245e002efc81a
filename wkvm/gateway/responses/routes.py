"""The routes of responses: a part of the table of all."""

from wkvm.gateway.calls import Route
from wkvm.gateway.described import Doc, Query
from wkvm.gateway.responses import handlers
from wkvm.gateway.responses.bodies import CountBody, CreateBody
from wkvm.gateway.responses.paging import QUERY
from wkvm.gateway.responses.websocket.handler import connect

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/responses", connect, doc=Doc(status=101)),
    Route(
        "POST",
        "/v1/responses",
        handlers.create,
        doc=Doc(body=CreateBody, event=dict),
    ),
    Route("POST", "/v1/responses/compact", handlers.compact, doc=Doc()),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        handlers.input_tokens,
        doc=Doc(body=CountBody),
    ),
    Route(
        "GET",
        "/v1/responses/{id}",
        handlers.retrieve,
        serves_draining=True,
        needs_engine=False,
        owner="id",
        doc=Doc(
            event=dict,
            query=(Query("stream", bool), Query("starting_after", int, "an event's number")),
        ),
    ),
    Route(
        "DELETE",
        "/v1/responses/{id}",
        handlers.delete,
        serves_draining=True,
        owner="id",
        doc=Doc(),
    ),
    Route(
        "POST",
        "/v1/responses/{id}/cancel",
        handlers.cancel,
        serves_draining=True,
        owner="id",
        doc=Doc(),
    ),
    Route(
        "GET",
        "/v1/responses/{id}/input_items",
        handlers.input_items,
        serves_draining=True,
        needs_engine=False,
        doc=Doc(query=QUERY),
    ),
)
