"""The list of models, which has one entry."""

from datetime import UTC, datetime

import msgspec
from aiohttp import web

from wkvm.gateway.calls import Call, Gateway, json_response


class Model(msgspec.Struct):
    """OpenAI's fields, those that vLLM adds, and Anthropic's: each client reads its own."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    display_name: str
    created_at: str
    type: str = "model"
    object: str = "model"
    owned_by: str = "wkvm"
    parent: str | None = None
    permission: tuple[str, ...] = ()


class Models(msgspec.Struct):
    """All models that are served."""

    data: list[Model]
    first_id: str
    last_id: str
    has_more: bool = False
    object: str = "list"


async def models(call: Call) -> web.Response:
    """GET /v1/models."""
    name = call.gateway.model
    return json_response(msgspec.json.encode(Models([_model(call.gateway)], name, name)))


async def model(call: Call) -> web.Response:
    """GET /v1/models/{id}. An id may contain slashes, escaped or not."""
    call.gateway.check_model(call.request.match_info["id"])
    return json_response(msgspec.json.encode(_model(call.gateway)))


def _model(gateway: Gateway) -> Model:
    name = gateway.model
    created_at = datetime.fromtimestamp(gateway.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Model(name, gateway.started_at, name, gateway.max_model_len, name, created_at)
