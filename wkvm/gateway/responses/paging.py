"""Lists of items, part by part, as the API has them."""

from typing import Any, Literal

import msgspec
from aiohttp import web

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.described import Query
from wkvm.gateway.failures import HttpError, invalid
from wkvm.gateway.responses import rows
from wkvm.gateway.responses.items import Kept

MAX_LIMIT = 100
DEFAULT_LIMIT = 20

QUERY = (
    Query("limit", int, f"at most {MAX_LIMIT}"),
    Query("order", Literal["asc", "desc"]),
    Query("after", str, "`last_id` of the part before"),
)
"""The parameters of a part of a list."""


async def items_page(call: Call, holder: str) -> web.StreamResponse:
    """The part of a list that a query asks for.

    Args:
        holder: a response, or a conversation, of whoever asks.

    Raises:
        HttpError: 400, a parameter has a value that cannot be; 404, there is no item ``after``.
    """
    query = call.request.query
    text, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_LIMIT:
        raise invalid("limit", f"{text[:40]!r} is not in [1, {MAX_LIMIT}]")
    if order not in ("asc", "desc"):
        raise invalid("order", f'{order[:40]!r} is neither "asc" nor "desc"')
    after = query.get("after")
    found = await call.gateway.responses.database.run(
        rows.page, holder, after=after, limit=int(text[:9]), descends=order == "desc"
    )
    if found is None:
        raise HttpError(404, f"after: there is no item {(after or '')[:80]!r}", param="after")
    items, has_more = found
    return json_response(msgspec.json.encode(page(items, has_more=has_more)))


def page(items: list[Kept], *, has_more: bool) -> dict[str, Any]:
    """A part of a list."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
