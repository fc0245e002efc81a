"""GET /openapi.json: the table of routes as an OpenAPI 3.1 document.

All of it is made from the routes, their ``Doc`` and the types that it names. What the document
says of a body is what the route's own decoder takes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from wkvm import __version__
from wkvm.gateway.calls import Call, Route, json_response
from wkvm.gateway.described import EVENTS, JSON, NO_DOC, Doc
from wkvm.gateway.failures import ErrorBody
from wkvm.gateway.states.fields import KEY_FIELD, KEY_HEADER, KeyedFields

_VARIABLE = re.compile(r"\{(?P<name>\w+)(?::[^{}]*)?\}")
_LEAD = re.compile(r"^`*[A-Z, a-z]*/\S+`*(?:, `*/\S+`*)*: ")
EVENT_DATA = "x-event-data"
"""Of a stream: the schema of the data of each event, but for a last one of ``[DONE]``."""
_REF = "#/components/schemas/{name}"
_WORD = re.compile(r"\W+")


async def openapi(call: Call) -> web.Response:
    """GET /openapi.json: this document."""
    gateway = call.gateway
    if not gateway.document:
        # Where two types have one name, msgspec tells them apart by their modules.
        encoded = msgspec.json.encode(document(gateway.routes))
        gateway.document = encoded.replace(b"wkvm.gateway.", b"")
    return json_response(gateway.document)


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of some routes. Cost: tens of milliseconds.

    Raises:
        TypeError: a route's ``Doc`` names a type that msgspec does not know.
    """
    table = [(route, route.doc or NO_DOC) for route in routes if route.method != "*"]
    kinds = [kind for _, doc in table for kind in _kinds(doc)]
    schemas, components = msgspec.json.schema_components(
        [ErrorBody, *kinds], schema_hook=_schema, ref_template=_REF
    )
    known = iter(schemas)
    error, paths = next(known), dict[str, dict[str, Any]]()
    for route, doc in table:
        of_route = [next(known) for _ in _kinds(doc)]
        path = _VARIABLE.sub(lambda found: "{" + found["name"] + "}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, doc, of_route, error)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wkvm",
            "version": __version__,
            "description": "Recurrent language models, and their states, over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(components),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # Where the engine has no keys, none is needed.
        "security": [{"key": []}, {}],
    }


def _schema(kind: type) -> dict[str, Any]:
    """The schema of a type that msgspec has none for.

    Raises:
        NotImplementedError: there is none.
    """
    if kind is object:
        return {"description": "Any JSON; the route looks at it."}
    raise NotImplementedError


def _kinds(doc: Doc) -> list[Any]:
    """The types of a route, in the order in which ``_operation`` takes their schemas."""
    found = [*doc.bodies, *(one.kind for one in doc.query), *doc.answers]
    return found + [kind for kind in (doc.event, doc.error) if kind is not None]


def _operation(
    route: Route, doc: Doc, schemas: Sequence[Mapping[str, Any]], error: Mapping[str, Any]
) -> dict[str, Any]:
    """One method of one path."""
    left = iter(schemas)
    bodies = [next(left) for _ in doc.bodies]
    parameters: list[dict[str, Any]] = [
        {"name": found["name"], "in": "path", "required": True, "schema": {"type": "string"}}
        for found in _VARIABLE.finditer(route.path)
    ]
    parameters += [_query(one.name, one.what, one.is_many, next(left)) for one in doc.query]
    if _takes_key(doc):
        what = f"What {KEY_FIELD} says, where that is not given."
        schema = {"type": "string"}
        parameters.append(
            {"name": KEY_HEADER, "in": "header", "description": what, "schema": schema}
        )
    answer = _any_of([next(left) for _ in doc.answers])
    event = None if doc.event is None else next(left)
    refusal = error if doc.error is None else next(left)
    summary = " ".join((route.handler.__doc__ or "").split("\n\n")[0].split())
    about: dict[str, Any] = {
        "operationId": _WORD.sub("_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": _LEAD.sub("", summary),
        "tags": [_tag(route.path)],
    }
    if doc.what:
        about["description"] = doc.what
    if parameters:
        about["parameters"] = parameters
    if bodies or doc.body_media != JSON:
        about["requestBody"] = _body(doc, bodies)
    content: dict[str, Any] = {doc.media: {"schema": answer if doc.media == JSON else {}}}
    if event is not None:
        # OpenAPI 3.1 has no word for it: a ``schema`` would be of the whole text.
        content[EVENTS] = {EVENT_DATA: event}
    about["responses"] = {
        str(doc.status): {"description": "What was asked for.", "content": content},
        "default": {"description": "An error.", "content": {JSON: {"schema": refusal}}},
    }
    if route.is_open:
        about["security"] = list[Any]()
    return about


def _takes_key(doc: Doc) -> bool:
    return any(one.name == KEY_FIELD for one in doc.query) or any(
        isinstance(kind, type) and issubclass(kind, KeyedFields) for kind in doc.bodies
    )


def _query(name: str, what: str, is_many: bool, schema: Mapping[str, Any]) -> dict[str, Any]:
    if is_many:
        schema = {"type": "array", "items": schema}
    told: dict[str, Any] = {"name": name, "in": "query", "schema": schema}
    return {**told, "description": what} if what else told


def _body(doc: Doc, schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if doc.body_media != JSON:
        content: dict[str, Any] = {doc.body_media: {"schema": {}}}
    else:
        content = {JSON: {"schema": _any_of(schemas)}}
    return {"required": not doc.body_optional, "content": content}


def _any_of(schemas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if not schemas:
        return {"type": "object"}
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _tag(path: str) -> str:
    """By what routes are grouped: the first part of the path that is no version."""
    parts = [part for part in path.split("/") if part and not re.fullmatch(r"v\d+", part)]
    return parts[0] if parts else "server"
