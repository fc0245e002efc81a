"""The routes of conversations: a part of the table of all."""

from wkvm.gateway.calls import Route
from wkvm.gateway.conversations import handlers
from wkvm.gateway.described import Doc
from wkvm.gateway.responses.paging import QUERY

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/conversations",
        handlers.create,
        doc=Doc(body=handlers.OpenBody, body_optional=True),
    ),
    Route("GET", "/v1/conversations/{id}", handlers.get, needs_engine=False, doc=Doc()),
    Route(
        "POST",
        "/v1/conversations/{id}",
        handlers.update,
        doc=Doc(body=handlers.UpdateBody),
    ),
    Route("DELETE", "/v1/conversations/{id}", handlers.delete, doc=Doc()),
    Route(
        "GET",
        "/v1/conversations/{id}/items",
        handlers.list_items,
        needs_engine=False,
        doc=Doc(query=QUERY),
    ),
    Route(
        "POST",
        "/v1/conversations/{id}/items",
        handlers.add_items,
        doc=Doc(body=handlers.ItemsBody),
    ),
    Route(
        "GET",
        "/v1/conversations/{id}/items/{item}",
        handlers.get_item,
        needs_engine=False,
        doc=Doc(),
    ),
    Route("DELETE", "/v1/conversations/{id}/items/{item}", handlers.delete_item, doc=Doc()),
)
