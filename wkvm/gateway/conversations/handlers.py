"""``/v1/conversations``: conversations and their items, over HTTP."""

from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.conversations import talks
from wkvm.gateway.failures import invalid
from wkvm.gateway.responses.bodies import check_metadata
from wkvm.gateway.responses.items import Item, Kept, kept_items
from wkvm.gateway.responses.keys import Key, key_of
from wkvm.gateway.responses.paging import items_page, page
from wkvm.gateway.responses.references import resolved
from wkvm.gateway.states.fields import KeyedFields


class OpenBody(KeyedFields, kw_only=True):
    """A new conversation: with items, or without."""

    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


class UpdateBody(msgspec.Struct, kw_only=True):
    """Other metadata; null for none."""

    metadata: dict[str, str] | None


class ItemsBody(KeyedFields, kw_only=True):
    """Items to be added."""

    items: list[Item]


async def create(call: Call) -> web.StreamResponse:
    """``POST /v1/conversations``: begin one."""
    body = await call.body(OpenBody, is_optional=True)
    check_metadata(body.metadata)
    items = await _items(call, body.items)
    gateway = call.gateway
    talk = await gateway.responses.database.run(
        talks.create,
        call.tenant,
        body.metadata or {},
        items,
        gateway.responses.limits,
        await _key(call, body, "conversation"),
    )
    return _json(talk.told())


async def get(call: Call) -> web.StreamResponse:
    """``GET /v1/conversations/{id}``: one of them."""
    talk = await call.gateway.responses.database.run(talks.get, call.tenant, _name(call))
    return _json(talk.told())


async def update(call: Call) -> web.StreamResponse:
    """``POST /v1/conversations/{id}``: give it other metadata."""
    body = await call.body(UpdateBody)
    check_metadata(body.metadata)
    talk = await call.gateway.responses.database.run(
        talks.update, call.tenant, _name(call), body.metadata or {}
    )
    return _json(talk.told())


async def delete(call: Call) -> web.StreamResponse:
    """``DELETE /v1/conversations/{id}``: forget it, and its items."""
    name = _name(call)
    await call.gateway.responses.database.run(talks.delete, call.tenant, name)
    return _json({"id": name, "object": "conversation.deleted", "deleted": True})


async def list_items(call: Call) -> web.StreamResponse:
    """``GET /v1/conversations/{id}/items``: its items, in parts."""
    name = _name(call)
    await call.gateway.responses.database.run(talks.get, call.tenant, name)
    return await items_page(call, name)


async def add_items(call: Call) -> web.StreamResponse:
    """``POST /v1/conversations/{id}/items``: add items at its end."""
    body, gateway = await call.body(ItemsBody), call.gateway
    if not body.items:
        raise invalid("items", "at least one is needed")
    items = await _items(call, body.items)
    key = await _key(call, body, f"items {_name(call)}")
    items = await gateway.responses.database.run(
        talks.append, call.tenant, _name(call), items, gateway.responses.limits, key
    )
    return _json(page(items, has_more=False))


async def get_item(call: Call) -> web.StreamResponse:
    """``GET /v1/conversations/{id}/items/{item}``: one item."""
    found = await call.gateway.responses.database.run(
        talks.item, call.tenant, _name(call), call.request.match_info["item"]
    )
    return _json(found)


async def delete_item(call: Call) -> web.StreamResponse:
    """``DELETE /v1/conversations/{id}/items/{item}``: take one item out."""
    talk = await call.gateway.responses.database.run(
        talks.delete_item, call.tenant, _name(call), call.request.match_info["item"]
    )
    return _json(talk.told())


async def _key(call: Call, body: OpenBody | ItemsBody, what: str) -> Key | None:
    work = partial(key_of, body, what)
    return await call.gateway.offload.run(work, size=call.n_held)


async def _items(call: Call, given: list[Item] | None) -> list[Kept]:
    """Items as they are kept.

    Raises:
        HttpError: 400; one cannot be read, or refers to what is not there.
    """
    gateway = call.gateway
    omits = gateway.config.omit_media
    items = await gateway.offload.run(
        lambda: kept_items(given, "items", omit_media=omits), size=call.n_held
    )
    return await resolved(items, "items", gateway, call.tenant)


def _name(call: Call) -> str:
    return call.request.match_info["id"]


def _json(told: dict[str, Any]) -> web.Response:
    return json_response(msgspec.json.encode(told))
