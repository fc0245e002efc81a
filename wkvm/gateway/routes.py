"""The table of all routes."""

from wkvm.gateway import chat, completions, health, metrics, models, native, tokens, websocket
from wkvm.gateway.calls import Route

ROUTES: tuple[Route, ...] = (
    Route("POST", "/detokenize", tokens.detokenize),
    Route("GET", "/health", health.health, is_open=True),
    Route("GET", "/metrics", metrics.metrics, serves_draining=True, needs_engine=False),
    Route("GET", "/ping", health.health, serves_draining=True, needs_engine=False),
    Route("GET", "/ready", health.ready, is_open=True),
    Route("POST", "/tokenize", tokens.tokenize),
    Route("GET", "/tokenizer_info", tokens.tokenizer_info),
    Route("POST", "/v1/cancel", native.cancel, serves_draining=True),
    Route("POST", "/v1/chat/completions", chat.chat_completions),
    Route("POST", "/v1/completions", completions.completions),
    Route("POST", "/v1/generate", native.generate),
    Route("GET", "/v1/models", models.models),
    Route("GET", "/v1/models/{id:.+}", models.model),
    Route("POST", "/v1/score", native.score),
    Route("GET", "/v1/status/{id}", native.status, serves_draining=True, needs_engine=False),
    Route("POST", "/v1/stream", native.stream),
    Route("POST", "/v1/submit", native.submit),
    Route("GET", "/v1/ws", websocket.websocket),
    Route("GET", "/v2/health/live", health.health, serves_draining=True, needs_engine=False),
    Route("GET", "/v2/health/ready", health.ready, serves_draining=True, needs_engine=False),
    Route("GET", "/version", health.version, serves_draining=True, needs_engine=False),
)
