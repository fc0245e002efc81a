"""The table of all routes."""

from wkvm.gateway import completions, native
from wkvm.gateway.calls import Route

ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/cancel", native.cancel, serves_draining=True),
    Route("POST", "/v1/completions", completions.completions),
    Route("POST", "/v1/generate", native.generate),
    Route("GET", "/v1/status/{id}", native.status, serves_draining=True),
    Route("POST", "/v1/stream", native.stream),
    Route("POST", "/v1/submit", native.submit),
)
