"""The table of all routes, and what the served document says of them."""

from typing import Literal

from wkvm_client.states import Difference, Durability, Replay, StateInfo

from wkvm.gateway import completions, embeddings, models, openapi, page_routes, tokens
from wkvm.gateway.anthropic import routes as anthropic
from wkvm.gateway.calls import Route
from wkvm.gateway.chat import completions as chat
from wkvm.gateway.chat.bodies import ChatBody
from wkvm.gateway.chat.replies import ChatCompletion
from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.conversations import routes as conversations
from wkvm.gateway.described import BYTES, EVENTS, Doc, Query
from wkvm.gateway.llama_cpp import routes as llama_cpp
from wkvm.gateway.monitoring import health, metrics
from wkvm.gateway.native import handlers as native
from wkvm.gateway.native import websocket
from wkvm.gateway.native.bodies import (
    Accepted,
    Answer,
    Arrival,
    CancelBody,
    Cancelled,
    FailedAnswer,
    GenerateBody,
    ScoreBody,
    Scored,
    StillRunning,
)
from wkvm.gateway.replies import Completion
from wkvm.gateway.responses import routes as responses
from wkvm.gateway.sessions import handlers as sessions
from wkvm.gateway.sessions.bodies import (
    AppendBody,
    BackBody,
    OpenBody,
    SaveBody,
    TurnBody,
    TurnEvent,
    WholeTurn,
)
from wkvm.gateway.sglang import routes as sglang
from wkvm.gateway.states import files as state_files
from wkvm.gateway.states import handlers as states
from wkvm.gateway.states import reading as state_text
from wkvm.gateway.states.bodies import (
    CreateBody,
    DiffBody,
    EditBody,
    ForkBody,
    HibernateBody,
    MutateBody,
    NothingBody,
    ReplayBody,
    RollbackBody,
    SnapshotBody,
)

_STATUS = Doc(answer=health.Status)
_EXPECTED = Query("expected_version", int, "what the head must be")
_FORMAT = Query("format", Literal["state", "blinkdl", "fla"])
_PAGE = (Query("limit", int, "at most 256"), Query("cursor", str, "`next` of the page before"))
_IMPORT = Doc(
    body_media=BYTES,
    query=(
        _FORMAT,
        Query("tag", str, "KEY:VALUE", is_many=True),
        Query("expires_in_s", float),
        _EXPECTED,
        Query("durability", Durability),
        Query("idempotency_key"),
    ),
    status=201,
    answer=StateInfo,
)

ROUTES: tuple[Route, ...] = (
    *anthropic.ROUTES,
    *conversations.ROUTES,
    *llama_cpp.ROUTES,
    *responses.ROUTES,
    *sglang.ROUTES,
    Route("GET", "/", page_routes.console, is_open=True, doc=Doc(media="text/html")),
    Route("GET", "/assets/{file}", page_routes.asset, is_open=True, doc=Doc(media=BYTES)),
    Route(
        "POST",
        "/detokenize",
        tokens.detokenize,
        doc=Doc(body=tokens.DetokenizeBody, answer=tokens.Text),
    ),
    Route("GET", "/health", health.health, is_open=True, doc=_STATUS),
    Route("GET", "/icon.svg", page_routes.icon, is_open=True, doc=Doc(media="image/svg+xml")),
    Route(
        "GET",
        "/metrics",
        metrics.metrics,
        serves_draining=True,
        needs_engine=False,
        doc=Doc(media="text/plain"),
    ),
    Route(
        "GET", "/openapi.json", openapi.openapi, serves_draining=True, needs_engine=False, doc=Doc()
    ),
    Route("GET", "/ping", health.health, serves_draining=True, needs_engine=False, doc=_STATUS),
    Route("GET", "/ready", health.ready, is_open=True, doc=_STATUS),
    Route(
        "POST",
        "/tokenize",
        tokens.tokenize,
        doc=Doc(body=tokens.TokenizeBody, answer=tokens.Tokens),
    ),
    Route("GET", "/tokenizer_info", tokens.tokenizer_info, doc=Doc(answer=tokens.TokenizerInfo)),
    Route(
        "POST",
        "/v1/cancel",
        native.cancel,
        serves_draining=True,
        doc=Doc(body=CancelBody, answer=Cancelled),
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        chat.chat_completions,
        doc=Doc(body=ChatBody, answer=ChatCompletion, event=dict),
    ),
    Route(
        "POST",
        "/v1/completions",
        completions.completions,
        doc=Doc(body=CompletionRequest, answer=Completion, event=dict),
    ),
    Route(
        "POST",
        "/v1/embeddings",
        embeddings.embeddings,
        doc=Doc(body=embeddings.EmbeddingBody, answer=embeddings.Embeddings),
    ),
    Route("POST", "/v1/generate", native.generate, doc=Doc(body=GenerateBody, answer=Answer)),
    Route("GET", "/v1/models", models.models, doc=Doc(answer=models.Models)),
    Route("GET", "/v1/models/{id:.+}", models.model, doc=Doc(answer=models.Model)),
    Route("POST", "/v1/score", native.score, doc=Doc(body=ScoreBody, answer=Scored)),
    Route(
        "GET",
        "/v1/status/{id}",
        native.status,
        owner="id",
        serves_draining=True,
        needs_engine=False,
        doc=Doc(
            answer=(Answer, StillRunning, FailedAnswer),
            query=(Query("from", int, "ids of each choice to leave out"),),
        ),
    ),
    Route("POST", "/v1/sessions", sessions.create, doc=Doc(body=OpenBody, status=201)),
    Route("GET", "/v1/sessions/{id}", sessions.get, owner="id", doc=Doc()),
    Route("DELETE", "/v1/sessions/{id}", sessions.delete, owner="id", doc=Doc()),
    Route(
        "POST", "/v1/sessions/{id}/append", sessions.append, owner="id", doc=Doc(body=AppendBody)
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/events",
        sessions.events,
        owner="id",
        doc=Doc(media=EVENTS, event=TurnEvent),
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/fork",
        sessions.fork,
        owner="id",
        doc=Doc(body=ForkBody, status=201),
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/generate",
        sessions.generate,
        owner="id",
        doc=Doc(body=TurnBody, answer=WholeTurn, event=TurnEvent),
    ),
    Route("POST", "/v1/sessions/{id}/interrupt", sessions.interrupt, owner="id", doc=Doc()),
    Route(
        "POST",
        "/v1/sessions/{id}/rollback",
        sessions.rollback,
        owner="id",
        doc=Doc(body=BackBody, body_optional=True),
    ),
    Route(
        "POST",
        "/v1/sessions/{id}/save",
        sessions.save,
        owner="id",
        doc=Doc(body=SaveBody, status=201, answer=StateInfo),
    ),
    Route(
        "GET",
        "/v1/states",
        states.list_states,
        doc=Doc(query=(Query("prefix"), Query("tag", str, "KEY:VALUE", is_many=True), *_PAGE)),
    ),
    Route(
        "POST", "/v1/states", states.create, doc=Doc(body=CreateBody, status=201, answer=StateInfo)
    ),
    Route("GET", "/v1/states/{ref}", states.get, doc=Doc(answer=StateInfo)),
    Route("PATCH", "/v1/states/{ref}", states.edit, doc=Doc(body=EditBody, answer=StateInfo)),
    Route("DELETE", "/v1/states/{ref}", states.delete, doc=Doc(query=(_EXPECTED,))),
    Route("POST", "/v1/states/{ref}/diff", states.diff, doc=Doc(body=DiffBody, answer=Difference)),
    Route(
        "GET", "/v1/states/{ref}/export", state_files.export, doc=Doc(media=BYTES, query=(_FORMAT,))
    ),
    Route("POST", "/v1/states/{ref}/fork", states.fork, doc=Doc(body=ForkBody, status=201)),
    Route(
        "POST",
        "/v1/states/{ref}/hibernate",
        states.hibernate,
        doc=Doc(body=HibernateBody, body_optional=True, answer=StateInfo),
    ),
    Route("POST", "/v1/states/{ref}/import", state_files.take, doc=_IMPORT),
    Route("PUT", "/v1/states/{ref}/import", state_files.take, doc=_IMPORT),
    Route(
        "GET",
        "/v1/states/{ref}/log",
        states.log,
        doc=Doc(query=(Query("before", int), Query("limit", int))),
    ),
    Route(
        "POST",
        "/v1/states/{ref}/mutate",
        states.mutate,
        doc=Doc(body=MutateBody, status=201, answer=StateInfo),
    ),
    Route(
        "POST",
        "/v1/states/{ref}/replay",
        states.replay,
        doc=Doc(body=ReplayBody, body_optional=True, answer=Replay),
    ),
    Route(
        "POST",
        "/v1/states/{ref}/resume",
        states.resume,
        doc=Doc(body=NothingBody, body_optional=True, answer=StateInfo),
    ),
    Route(
        "POST",
        "/v1/states/{ref}/rollback",
        states.rollback,
        doc=Doc(body=RollbackBody, status=201, answer=StateInfo),
    ),
    Route(
        "POST",
        "/v1/states/{ref}/snapshot",
        states.snapshot,
        doc=Doc(body=SnapshotBody, body_optional=True, status=201, answer=StateInfo),
    ),
    Route(
        "GET",
        "/v1/states/{ref}/text",
        state_text.text,
        doc=Doc(
            query=(
                Query("start", int, "the first token"),
                Query("end", int, "the first token that is not wanted"),
                Query("cut", int, "where a new text begins", is_many=True),
            ),
            answer=state_text.StateText,
        ),
    ),
    Route("GET", "/v1/states/{ref}/versions", states.versions, doc=Doc(query=_PAGE)),
    Route(
        "POST", "/v1/stream", native.stream, doc=Doc(body=GenerateBody, media=EVENTS, event=Arrival)
    ),
    Route(
        "POST", "/v1/submit", native.submit, doc=Doc(body=GenerateBody, status=202, answer=Accepted)
    ),
    Route("GET", "/v1/ws", websocket.websocket, doc=Doc(status=101, media=BYTES)),
    Route(
        "GET",
        "/v2/health/live",
        health.health,
        serves_draining=True,
        needs_engine=False,
        doc=_STATUS,
    ),
    Route(
        "GET",
        "/v2/health/ready",
        health.ready,
        serves_draining=True,
        needs_engine=False,
        doc=_STATUS,
    ),
    Route(
        "GET",
        "/version",
        health.version,
        serves_draining=True,
        needs_engine=False,
        doc=Doc(answer=health.Version),
    ),
)
