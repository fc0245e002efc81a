"""What the server is and whether it generates, by SGLang's names."""

import asyncio

import msgspec
from aiohttp import web
from wkvm_client.errors import ClientError

from wkvm import __version__
from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.failures import SERVER, HttpError

GENERATE_TIMEOUT_S = 20.0
"""How long one id may take before the server is said to be unwell."""


class ModelInfo(msgspec.Struct):
    """What ``GET /get_model_info`` answers."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True


class ServerInfo(msgspec.Struct):
    """What ``GET /server_info`` answers."""

    model_path: str
    served_model_name: str
    version: str
    context_length: int | None
    max_running_requests: int


async def model_info(call: Call) -> web.StreamResponse:
    """``GET /get_model_info``, ``GET /model_info``."""
    return json_response(msgspec.json.encode(ModelInfo(call.gateway.model, call.gateway.model)))


async def server_info(call: Call) -> web.StreamResponse:
    """``GET /get_server_info``, ``GET /server_info``."""
    gateway = call.gateway
    told = ServerInfo(
        gateway.model,
        gateway.model,
        __version__,
        gateway.max_model_len,
        call.client.server.n_slots,
    )
    return json_response(msgspec.json.encode(told))


async def health_generate(call: Call) -> web.StreamResponse:
    """``GET /health_generate``: 200 once one id was generated."""
    try:
        async with asyncio.timeout(GENERATE_TIMEOUT_S):
            stream = await call.client.generate([0], max_tokens=1, temperature=0, ignore_eos=True)
            await stream.completion()
    except (ClientError, TimeoutError) as error:
        why = "no id was generated in time"
        raise HttpError(503, why, SERVER, code="engine_unavailable") from error
    return web.Response()
