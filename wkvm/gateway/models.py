"""The list of models, which has one entry."""

import msgspec
from aiohttp import web

from wkvm.gateway.calls import Call, Gateway


class _Model(msgspec.Struct):
    """OpenAI's fields, and those that vLLM adds."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "wkvm"
    parent: str | None = None
    permission: tuple[str, ...] = ()


class _Models(msgspec.Struct):
    data: list[_Model]
    object: str = "list"


async def models(call: Call) -> web.Response:
    """GET /v1/models."""
    body = msgspec.json.encode(_Models([_model(call.gateway)]))
    return web.Response(body=body, content_type="application/json")


async def model(call: Call) -> web.Response:
    """GET /v1/models/{id}. An id may contain slashes, escaped or not."""
    call.gateway.check_model(call.request.match_info["id"])
    body = msgspec.json.encode(_model(call.gateway))
    return web.Response(body=body, content_type="application/json")


def max_model_len(gateway: Gateway) -> int | None:
    """The limit on prompt and output together; None for none."""
    return gateway.engines.info.max_model_len or None


def _model(gateway: Gateway) -> _Model:
    name = gateway.model
    return _Model(name, gateway.started_at, name, max_model_len(gateway))
