"""Each field of a body is used, unused, refused by name, or ignored and counted."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import post
from wkvm.gateway.chat.bodies import ChatBody
from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.failures import HttpError
from wkvm.gateway.policy import CHATS, COMPLETIONS, NAMED, OTHER, POLICIES, TURNS, Policy
from wkvm.gateway.sessions.bodies import TurnBody

ROOT = Path(__file__).parents[2]
BODIES: list[tuple[Policy, type[msgspec.Struct]]] = [
    (COMPLETIONS, CompletionRequest),
    (CHATS, ChatBody),
    (TURNS, TurnBody),
]


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


def check(policy: Policy, kind: type[msgspec.Struct], **body: Any) -> Counter[tuple[str, str]]:
    ignored = Counter[tuple[str, str]]()
    policy.check(json.dumps(body).encode(), kind, ignored)
    return ignored


OF_BODIES = pytest.mark.parametrize(
    ("policy", "kind"), BODIES, ids=[f"{kind.__name__} {policy.route}" for policy, kind in BODIES]
)
"""Not by all that a policy is: sets come in any order, and tests have one name in all processes."""


@OF_BODIES
def test_no_field_is_used_and_in_the_table_too(policy: Policy, kind: type[msgspec.Struct]) -> None:
    used = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert not used & policy.unused
    assert not used & policy.unsupported.keys()
    assert not policy.unused & policy.unsupported.keys()
    assert not NAMED & (used | policy.unused | policy.unsupported.keys())


@OF_BODIES
def test_what_is_unsupported_is_refused_by_name_unless_it_asks_for_nothing(
    policy: Policy, kind: type[msgspec.Struct]
) -> None:
    for name, field in policy.unsupported.items():
        for value in (None, *field.neutral):
            assert not check(policy, kind, **{name: value})
        for value in ({"a": 1}, ["b"], 7):
            with pytest.raises(HttpError) as caught:
                check(policy, kind, **{name: value})
            assert (caught.value.status, caught.value.param) == (400, name)


def test_zero_is_not_false_and_one_is_not_true() -> None:
    with pytest.raises(HttpError):
        check(COMPLETIONS, CompletionRequest, use_beam_search=0)
    with pytest.raises(HttpError):
        check(CHATS, ChatBody, best_of=True)


def test_every_field_of_the_tables_is_in_the_documents() -> None:
    names = ("http.md", "anthropic.md", "embeddings.md", "responses.md")
    text = "".join([(ROOT / "docs" / name).read_text(encoding="utf-8") for name in names])
    for policy in POLICIES:
        for name in policy.unused | policy.unsupported.keys():
            assert f"`{name}`" in text, name


async def test_unknown_fields_are_counted_by_well_known_names_alone(running: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1, "mirostat": 2, "hunter2": "secret", "x" * 999: 1}
    for _ in range(2):
        status, _ = await post(running, "/v1/completions", body)
        assert status == 200
    route = COMPLETIONS.route
    assert running.gateway.counts.ignored == {(route, "mirostat"): 2, (route, OTHER): 4}
    async with running.http.get("/metrics") as response:
        text = await response.text()
    sample = 'wkvm_http_ignored_fields_total{field="mirostat",route="/v1/completions"} 2.0'
    assert sample in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "data",
    [b'{"a": 1', b'{"\xff": 1}', b'{"\\ud800": 1}', b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_what_is_no_json_is_an_error_of_the_client(
    running: Running, path: str, data: bytes
) -> None:
    async with running.http.post(path, data=data) as response:
        assert response.status == 400
