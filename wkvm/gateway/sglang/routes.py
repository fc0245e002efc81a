"""The routes of SGLang's server that have no other here: a part of the table of all."""

from wkvm.gateway.calls import Route
from wkvm.gateway.described import Doc
from wkvm.gateway.sglang import generate, info
from wkvm.gateway.sglang.bodies import GenerateBody
from wkvm.gateway.sglang.generate import Generated

_MODEL = Doc(answer=info.ModelInfo)
_SERVER = Doc(answer=info.ServerInfo)

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/generate",
        generate.generate,
        doc=Doc(body=GenerateBody, answer=(Generated, list[Generated]), event=Generated),
    ),
    Route("GET", "/get_model_info", info.model_info, doc=_MODEL),
    Route("GET", "/get_server_info", info.server_info, doc=_SERVER),
    Route("GET", "/health_generate", info.health_generate, doc=Doc(media="text/plain")),
    Route("GET", "/model_info", info.model_info, doc=_MODEL),
    Route("GET", "/server_info", info.server_info, doc=_SERVER),
)
