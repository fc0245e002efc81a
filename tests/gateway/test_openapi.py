"""The served document says what the routes' own readers know, of every route."""

import re
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tests.gateway.harness import ANNA, KEYS, gateway_running
from wkvm.gateway.calls import Call, Route, json_response
from wkvm.gateway.described import Doc
from wkvm.gateway.openapi import document
from wkvm.gateway.routes import ROUTES


def resolved(schema: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    found: dict[str, Any] = told["components"]["schemas"][name]
    return found


def test_every_route_of_the_table_is_in_the_document_and_nothing_else() -> None:
    told = document(ROUTES)
    listed = {(method, path) for path, methods in told["paths"].items() for method in methods}
    assert listed == {(one.method.lower(), re.sub(r":[^{}]*\}", "}", one.path)) for one in ROUTES}


def test_every_field_that_a_reader_of_a_body_knows_is_in_the_document() -> None:
    told = document(ROUTES)
    n_read = 0
    for route in ROUTES:
        if route.doc is None or not route.doc.bodies:
            continue
        path = re.sub(r":[^{}]*\}", "}", route.path)
        body = told["paths"][path][route.method.lower()]["requestBody"]
        schema = body["content"]["application/json"]["schema"]
        schemas = [resolved(one, told) for one in schema.get("anyOf", [schema])]
        for kind, found in zip(route.doc.bodies, schemas, strict=True):
            fields = {one.encode_name for one in msgspec.structs.fields(kind)}
            assert set(found.get("properties", {})) == fields, route.path
            n_read += 1
    assert n_read >= 25


def test_every_route_says_what_it_takes_and_gives() -> None:
    assert [route.path for route in ROUTES if route.doc is None] == []


def test_bodies_are_read_where_it_is_checked_that_the_document_has_them() -> None:
    """What ``Call.body`` reads is in the document; see the last test. Others read bytes alone."""
    folder = Path(__file__).parents[2] / "wkvm" / "gateway"
    readers = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if ".read_body()" in path.read_text(encoding="utf-8")
    }
    assert readers == {"app.py", "asked.py", "calls.py"}


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    told = document(ROUTES)
    operations = [one for methods in told["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all(one["summary"] for one in operations)


def test_every_variable_part_of_a_path_is_a_parameter() -> None:
    told = document(ROUTES)
    for path, methods in told["paths"].items():
        for operation in methods.values():
            named = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
            assert named == re.findall(r"\{(\w+)\}", path)


async def test_the_document_is_served_to_whoever_has_a_key() -> None:
    async with gateway_running(keys=KEYS) as running, running.http.get("/openapi.json") as refused:
        assert refused.status == 401
        async with running.http.get("/openapi.json", headers=ANNA) as response:
            assert response.status == 200
            told = await response.json()
    assert told["openapi"] == "3.1.0"
    assert "/v1/chat/completions" in told["paths"]


async def test_nothing_of_the_document_names_a_module_of_the_server() -> None:
    async with gateway_running() as running, running.http.get("/openapi.json") as response:
        assert b"wkvm.gateway" not in await response.read()


class _Told(msgspec.Struct):
    x: int


class _Read(msgspec.Struct):
    y: int


async def test_a_handler_cannot_read_another_body_than_the_document_has() -> None:
    async def handler(call: Call) -> web.StreamResponse:
        """Do something."""
        await call.body(_Read)
        return json_response(b"{}")

    route = Route("POST", "/x", handler, doc=Doc(body=_Told))
    async with (
        gateway_running(routes=(route,)) as running,
        running.http.post("/x", json={"y": 1}) as response,
    ):
        assert response.status == 500
