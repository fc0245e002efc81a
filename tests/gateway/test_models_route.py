"""The model is listed under the name by which it is served."""

from datetime import UTC, datetime

import pytest

from tests.fakes import FakeModel
from tests.gateway.harness import gateway_running
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.errors import SettingError


def engine(name: str, max_model_len: int | None = None) -> Engine:
    config = EngineConfig(n_slots=2, max_model_len=max_model_len)
    return Engine(FakeModel(vocab_size=256), config, served_name=name)


async def test_the_one_model_is_listed() -> None:
    async with (
        gateway_running(engine("tiny", 512)) as running,
        running.http.get("/v1/models") as response,
    ):
        assert response.status == 200
        assert await response.json() == {
            "object": "list",
            "data": [
                {
                    "id": "tiny",
                    "object": "model",
                    "created": running.gateway.started_at,
                    "owned_by": "wkvm",
                    "root": "tiny",
                    "parent": None,
                    "max_model_len": 512,
                    "permission": [],
                    "type": "model",
                    "display_name": "tiny",
                    "created_at": datetime.fromtimestamp(running.gateway.started_at, UTC).strftime(
                        "%Y-%m-%dT%H:%M:%SZ"
                    ),
                }
            ],
            "first_id": "tiny",
            "last_id": "tiny",
            "has_more": False,
        }


@pytest.mark.parametrize("path", ["org/model", "org%2Fmodel"])
async def test_a_model_is_found_by_a_name_with_a_slash(path: str) -> None:
    async with (
        gateway_running(engine("org/model")) as running,
        running.http.get(f"/v1/models/{path}") as response,
    ):
        assert response.status == 200
        assert (await response.json())["id"] == "org/model"


async def test_without_a_limit_the_length_is_null() -> None:
    async with (
        gateway_running(engine("tiny")) as running,
        running.http.get("/v1/models/tiny") as response,
    ):
        assert (await response.json())["max_model_len"] is None


@pytest.mark.parametrize("name", ["other", "tiny2", "tiny/", "Tiny"])
async def test_another_model_is_not_found(name: str) -> None:
    async with (
        gateway_running(engine("tiny")) as running,
        running.http.get(f"/v1/models/{name}") as response,
    ):
        assert response.status == 404
        error = (await response.json())["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("aliases", "name", "status"),
    [
        (("gpt-5", "org/model"), "gpt-5", 200),
        (("gpt-5", "org/model"), "org/model", 200),
        (("gpt-5", "org/model"), "tiny", 200),
        (("gpt-5", "org/model"), "gpt-6", 404),
        (("*",), "gpt-6", 200),
    ],
)
async def test_a_model_is_asked_for_by_its_aliases_and_answers_by_its_name(
    aliases: tuple[str, ...], name: str, status: int
) -> None:
    config = GatewayConfig(model_aliases=aliases)
    body = {"model": name, "ids": [1, 2], "max_tokens": 1}
    async with gateway_running(engine("tiny"), config=config) as running:
        async with running.http.post("/v1/generate", json=body) as response:
            assert response.status == status
            if status == 200:
                assert (await response.json())["model"] == "tiny"
        async with running.http.get("/v1/models") as response:
            assert [one["id"] for one in (await response.json())["data"]] == ["tiny"]


def test_an_alias_is_a_word() -> None:
    with pytest.raises(SettingError, match="model-aliases"):
        GatewayConfig(model_aliases=("a", ""))
