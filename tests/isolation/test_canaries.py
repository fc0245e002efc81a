"""What clients send and hold is nowhere but in their answers: not in logs, errors, or metrics.

A canary of each kind is sent in all places that take one, with all that can go wrong; then all
that was written and told is searched for it.
"""

import ast
import contextlib
import json
import logging
import random
import re
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wkvm_client import Grammar
from wkvm_client.errors import ClientError
from wkvm_protocol.framing import encode_frame

import wkvm
from tests.isolation.world import BytesModel, World, key_of, world_running
from tests.server.test_auth import REQUESTS
from tests.soak import amount, seed, tell
from tests.states.doors import Refused
from tests.states.test_refusals import MAKING, OPERATIONS
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.routes import ROUTES
from wkvm.server.crashes import report_of
from wkvm.state.image import pack_ids

TEXT = "zanzibarquokka"
IDS = [201, 77, 202, 78, 203, 79]
NAME = "quokkaname"
WRONG_KEY = "wrongquokkakey"
NEEDLES = {
    "text": TEXT,
    "ids": ", ".join(map(str, IDS[:4])),
    "ids without spaces": ",".join(map(str, IDS[:4])),
    "packed ids": repr(pack_ids(IDS[:3]))[2:-1],
    "a name": NAME,
    "a wrong key": WRONG_KEY,
    "anna's key": key_of("anna"),
    "bert's key": key_of("bert"),
}
OWN = {"text", "ids", "ids without spaces", "packed ids", "a name"}
"""What an error may tell again to who has just sent it: what it was, where that helps."""


class Heard(logging.Handler):
    """All that is logged by anybody, as it would be written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines = list[str]()
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler, root = Heard(), logging.getLogger()
    loggers = [logging.getLogger(name) for name in ("wkvm", "wkvm_client", "asyncio", "aiohttp")]
    levels = [one.level for one in (root, *loggers)]
    root.addHandler(handler)
    for one in (root, *loggers):
        one.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    for one, level in zip((root, *loggers), levels, strict=True):
        one.setLevel(level)


def bodies() -> Iterator[dict[str, Any]]:
    """Of all kinds, with canaries wherever they may be; some of them are right."""
    chat = [{"role": "user", "content": TEXT}]
    ids, one = {"ids": IDS}, {"max_tokens": 1}
    yield {"model": "tales", "prompt": TEXT, **one}
    yield {"model": TEXT, "prompt": TEXT, "messages": chat, "input": TEXT}
    yield {"model": "tales", "messages": chat, **one}
    yield {"model": "tales", "input": TEXT, "max_output_tokens": 1, "metadata": {TEXT: TEXT}}
    yield {"prompt": TEXT, "n_predict": 1}
    yield {"text": TEXT, "sampling_params": {"max_new_tokens": 1}}
    yield {"model": "tales", "messages": chat, "stop": [TEXT] * 65}
    yield {"model": "tales", "prompt": TEXT, "max_tokens": TEXT, "temperature": TEXT}
    yield {"model": "tales", "prompt": [*IDS, 10**6], **one}
    yield {"model": "tales", "messages": [{"role": TEXT, "content": [{"type": TEXT}]}]}
    yield {"model": "tales", "prompt": TEXT, "response_format": {"type": TEXT, TEXT: TEXT}}
    schema = {"type": "object", "properties": {TEXT: {"type": TEXT, "pattern": f"({TEXT}"}}}
    form = {"type": "json_schema", "json_schema": {"name": TEXT, "schema": schema}}
    yield {"model": "tales", "messages": chat, "response_format": form}
    tool = {"type": "function", "function": {"name": TEXT, "parameters": {"type": TEXT}}}
    yield {"model": "tales", "messages": chat, "tools": [tool], "tool_choice": TEXT}
    yield {**ids, **one}
    yield {**ids, **one, "state": NAME, "save_as": NAME}
    yield {**ids, **one, "logit_bias": {TEXT: 1}, "stop_ids": IDS, "allowed_ids": [*IDS, -1]}
    yield {**ids, **one, "grammar": {"kind": "regex", "grammar": f"({TEXT}"}}
    yield {"name": NAME, **ids, "tags": {TEXT: TEXT}, "idempotency_key": TEXT}
    yield {"name": f"{NAME}/..", **ids}
    yield {"names": [NAME, NAME], "name": NAME, "save_as": NAME, "other": NAME, "filename": NAME}
    yield {"operation": TEXT, "parameters": {TEXT: TEXT}, "save_as": NAME}
    yield {"id": TEXT, "tokens": IDS, "content": TEXT, TEXT: TEXT}
    yield {"previous_response_id": TEXT, "conversation": TEXT, "input": TEXT, "model": "tales"}
    yield {"items": [{"role": "user", "content": TEXT}, {"type": TEXT}], "metadata": {TEXT: IDS}}
    yield {"state_bytes": TEXT, **ids}


async def everything_over_http(world: World, answers: list[bytes]) -> None:
    """Every body to every route, and what is no JSON."""
    raws = [json.dumps(one).encode() for one in bodies()]
    raws += [TEXT.encode(), f'{{"{TEXT}": "{TEXT}'.encode(), b'{"prompt": "' + TEXT.encode() * 400]
    for route in ROUTES:
        if route.path in ("/v1/ws", "/metrics", "/openapi.json"):
            continue
        path = re.sub(r"\{[^}]*\}", NAME, route.path)
        for raw in raws if route.method in ("POST", "PUT", "PATCH") else raws[:1]:
            headers = world.headers("anna")
            async with world.http.request(
                route.method, f"{path}?prefix={NAME}", data=raw, headers=headers
            ) as response:
                data = await response.read()
            if response.status >= 500:
                assert response.status in (503, 507), (path, raw, data)
            answers.append(data if response.status >= 400 or route.method == "GET" else b"")
    for headers in ({"Authorization": f"Bearer {WRONG_KEY}"}, {"X-Api-Key": WRONG_KEY}):
        async with world.http.post("/v1/generate", json={"ids": IDS}, headers=headers) as response:
            assert response.status == 401
            answers.append(await response.read())


async def everything_over_binary(world: World, answers: list[bytes]) -> None:
    """Every operation, on what is there and on what is not; and frames that are none."""
    for kind in ("binary", "websocket"):
        door = world.door("anna", kind)
        for name in (NAME, f"{NAME}-none", f"{NAME}/"):
            asks = (*OPERATIONS.values(), *MAKING.values())
            answers.extend([await refusal_of(ask(door, name)) for ask in asks])
    answers.append(str(await error_of(world, f"({TEXT}")).encode())
    answers.append(str(await error_of(world, TEXT * 9000)).encode())
    for request in REQUESTS:
        for frame in (
            encode_frame(msgspec.msgpack.encode(request), 2**16),
            encode_frame(msgspec.msgpack.encode([0x10, 1, TEXT]), 2**16),
            TEXT.encode() * 10,
        ):
            sock = await world.server.connect_local(is_trusted=False)
            sock.setblocking(True)
            sock.settimeout(0.0)
            with contextlib.suppress(OSError):
                sock.send(frame)
            sock.close()


async def refusal_of(asking: Awaitable[Any]) -> bytes:
    """What is told if it is refused."""
    try:
        await asking
    except Refused as refused:
        return refused.message.encode()
    return b""


async def error_of(world: World, pattern: str) -> ClientError | None:
    """What the client is told of a request with a grammar."""
    try:
        grammar = Grammar("regex", pattern)
        await (await world.clients["anna"].generate(IDS, grammar=grammar)).completion()
    except ClientError as error:
        return error
    return None


def faults(world: World, model: BytesModel) -> Iterator[None]:
    """One after the other, what is below goes wrong."""
    payloads = world.folder / "payloads"
    for one in [one for one in payloads.iterdir() if one.suffix != ".tmp"]:
        one.write_bytes(one.read_bytes()[:-8])
    yield
    aside = payloads.rename(payloads.with_name("aside"))
    yield
    aside.rename(payloads)
    model._nan_id = IDS[0]
    yield
    model._nan_id = None
    forward = model.forward

    def fail(*_: Any) -> Any:
        raise RuntimeError("the device is gone")

    model.forward = fail  # type: ignore[assignment,method-assign]
    yield
    model.forward = forward  # type: ignore[method-assign]
    yield


@pytest.mark.parametrize("style", ["text", "json"])
async def test_no_canary_is_in_any_log_error_or_metric(
    tmp_path: Path, heard: Heard, capfd: pytest.CaptureFixture[str], style: Any
) -> None:
    folder = tmp_path / "folderquokka"
    folder.mkdir()
    model, answers = BytesModel(), list[bytes]()
    gateway = GatewayConfig(responses_dir=str(folder / "responses"), request_log=style)
    async with world_running(folder, model, gateway=gateway) as world:
        await world.door("anna", "binary").create(NAME, IDS)
        await world.door("anna", "binary").hibernate(NAME)
        await everything_over_binary(world, answers)
        await everything_over_http(world, answers)
        await world.at_rest()
        for _ in faults(world, model):
            for path, body in FAULTY.items():
                status, told = await world.post("anna", path, body)
                answers.append(json.dumps(told).encode() if status >= 400 else b"")
            door = world.door("anna", "binary")
            for what in ("generate and keep", "fork", "export", "create"):
                ask = (OPERATIONS | MAKING)[what]
                answers.append(await refusal_of(ask(door, NAME)))
        async with world.http.get("/metrics", headers=world.headers("anna")) as response:
            metrics = await response.text()
        await world.at_rest()
    written = capfd.readouterr()
    lines = [*heard.lines, *written.out.splitlines(), *written.err.splitlines()]
    assert len(heard.lines) > 20
    assert any("/v1/generate" in line for line in lines), "the log of requests"
    assert any("a step of" in line for line in lines), "the log of failures"
    found = set[tuple[str, str]]()
    for what, needle in (*NEEDLES.items(), ("the folder", "folderquokka")):
        found |= {(what, line) for line in lines if needle in line}
        if needle in metrics:
            found.add((what, "metrics"))
        if what not in OWN:
            found |= {(what, str(data)) for data in answers if needle.encode() in data}
    assert found == set()


FAULTY: dict[str, Any] = {
    "/v1/generate": {"ids": IDS, "max_tokens": 2, "state": NAME},
    "/v1/states": {"name": f"{NAME}-new", "ids": IDS, "durability": "disk"},
    f"/v1/states/{NAME}/snapshot": {},
    f"/v1/states/{NAME}/fork": {"names": [f"{NAME}-fork"]},
    "/v1/responses": {"model": "tales", "input": TEXT, "max_output_tokens": 1},
    "/v1/chat/completions": {
        "model": "tales",
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": 1,
    },
}


async def test_no_canary_is_in_the_report_of_a_crash(tmp_path: Path) -> None:
    folder = tmp_path / "folderquokka"
    async with world_running(folder, has_websockets=False) as world:
        client = world.clients["anna"]
        stream = await client.generate(
            IDS, max_tokens=10_000, ignore_eos=True, save_as=NAME, grammar=Grammar("regex", ".*")
        )
        await stream.read()
        error = KeyError(TEXT, IDS, str(folder))
        error.__cause__ = OSError(2, TEXT, str(folder))
        steps, counters = world.loop.steps_told(), world.loop.stats()
        report = report_of("engine_failed", 70, error=error, steps=steps, counters=counters)
        stream.cancel()
        await stream.completion()
    text = json.dumps(report)
    assert report["steps"]
    for needle in (*NEEDLES.values(), "folderquokka"):
        assert needle not in text


async def test_a_folder_of_responses_that_cannot_be_used_is_not_told_by_its_path(
    tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / "file").write_text("")
    gateway = GatewayConfig(responses_dir=str(tmp_path / "file" / "folderquokka"))
    async with world_running(tmp_path / "a", gateway=gateway, has_websockets=False) as world:
        body = {"model": "tales", "input": TEXT, "max_output_tokens": 1}
        status, told = await world.post("anna", "/v1/responses", body)
        assert (status, told["error"]["code"]) == (503, "store_failed")
        assert "folderquokka" not in told["error"]["message"]
    assert not any("folderquokka" in line for line in heard.lines)


async def test_random_names_leave_the_metrics_small(tmp_path: Path) -> None:
    """Names of handles, routes, methods, models and requests: none of them becomes a label."""
    rng, n, sent = random.Random(seed()), amount(300, 25_000), list[str]()
    async with world_running(tmp_path, has_websockets=False) as world:
        headers = world.headers("anna")

        async def call() -> None:
            name = f"{rng.randrange(10**11, 10**12)}"
            sent.append(name)
            method = rng.choice(["GET", "POST", "DELETE", "PATCH", name[:6]])
            path = rng.choice(
                [f"/v1/states/{name}", f"/{name}/{name}", f"/v1/status/{name}", "/v1/completions"]
            )
            more = {"X-Request-Id": name, "User-Agent": name, "Origin": f"http://{name}"}
            body = {"model": name, name: name, "name": name}
            async with world.http.request(
                method, path, json=body, headers={**headers, **more}
            ) as response:
                assert response.status in (400, 403, 404, 405), (method, path)

        async def metrics() -> str:
            async with world.http.get("/metrics", headers=headers) as response:
                return await response.text()

        for _ in range(n // 3):
            await call()
        await metrics()
        early = await metrics()
        for _ in range(n - n // 3):
            await call()
        late = await metrics()
        assert len(late) < 2**20
        assert len(_names(late)) - len(_names(early)) < 20  # kinds of answers that came late
        labels = "".join(_names(late))
        assert not any(name in labels for name in sent)
        client = world.clients["anna"]
        assert len(await client.stats()) < 1024
    tell(11, "random names", n, "names", metrics_bytes=len(late))


def _names(text: str) -> set[str]:
    """The samples, without their numbers."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def test_no_log_line_has_the_text_of_an_error_that_a_client_was_told() -> None:
    """Such a text has names, or more. Of what is not known there is a traceback."""
    root, found = Path(next(iter(wkvm.__path__))), list[str]()
    for folder in ("gateway", "server", "engine/states"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
                    told = [ast.unparse(one) for one in node.args]
                    if {"error", "str(error)", "exc"} & set(told):
                        found.append(f"{path.relative_to(root)}: {told}")
    assert found == []
