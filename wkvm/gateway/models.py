"""The list of models, which has one entry."""

import msgspec
from aiohttp import web

from wkvm.gateway.calls import Call, Gateway, json_response


class Model(msgspec.Struct):
    """OpenAI's fields, and those that vLLM adds."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "wkvm"
    parent: str | None = None
    permission: tuple[str, ...] = ()


class Models(msgspec.Struct):
    """All models that are served."""

    data: list[Model]
    object: str = "list"


async def models(call: Call) -> web.Response:
    """GET /v1/models."""
    return json_response(msgspec.json.encode(Models([_model(call.gateway)])))


async def model(call: Call) -> web.Response:
    """GET /v1/models/{id}. An id may contain slashes, escaped or not."""
    call.gateway.check_model(call.request.match_info["id"])
    return json_response(msgspec.json.encode(_model(call.gateway)))


def _model(gateway: Gateway) -> Model:
    name = gateway.model
    return Model(name, gateway.started_at, name, gateway.max_model_len)
