"""Empty and extreme parameters of completions: each is refused by name, or does what it says."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes import FakeModel
from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import complete, refused
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


NO_IDS = [-1, 256, 2**31, 2**32, 2**63 - 1, 2**63, 2**70, True, 1.0, "1", None, [1]]


@pytest.mark.parametrize("token_id", NO_IDS, ids=repr)
@pytest.mark.parametrize("field", ["prompt", "prompts", "stop_token_ids", "allowed_token_ids"])
async def test_an_id_that_is_none_is_refused_in_every_field(
    running: Running, field: str, token_id: Any
) -> None:
    body: dict[str, Any]
    if field == "prompts":
        param, body = "prompt", {"prompt": [[1], [1, token_id]]}
    elif field == "prompt":
        param, body = "prompt", {"prompt": [1, token_id]}
    else:
        param, body = field, {"prompt": "x", field: [1, token_id]}
    assert (await refused(running, max_tokens=1, **body))[0] == param


@pytest.mark.parametrize(
    "key", ["-1", "256", str(2**31), str(2**63), "1.0", "true", "", "٣", "1e3"]
)
async def test_a_bias_of_what_is_no_id_is_refused(running: Running, key: str) -> None:
    assert (await refused(running, prompt="x", logit_bias={key: 1}))[0] == "logit_bias"


@pytest.mark.parametrize("key", ["x", "1"])
async def test_biases_are_counted_before_they_are_read(running: Running, key: str) -> None:
    biases = {f"{key}{n:05}": 0.0 for n in range(1025)}
    param, message = (await refused(running, prompt="x", logit_bias=biases))[:2]
    assert (param, "1024" in message) == ("logit_bias", True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [""]),
        ("prompt", ["x", ""]),
        ("prompt", ["x", 1]),
        ("prompt", [[1], 1]),
        ("prompt", None),
        ("prompt", 1),
        ("prompt", {}),
        ("max_tokens", -2),
        ("max_tokens", 2**31),
        ("max_tokens", 2**63),
        ("max_tokens", 1.0),
        ("max_tokens", "1"),
        ("max_tokens", True),
        ("temperature", -1),
        ("temperature", 101),
        ("temperature", 1e308),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", -0.5),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 101),
        ("frequency_penalty", -101),
        ("penalty_decay", 0),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 2**63 - 1),
        ("n", 1.0),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("stop", [""]),
        ("stop", ""),
        ("stop", ["x"] * 65),
        ("stop", "x" * 257),
        ("stop", [1]),
        ("stop_token_ids", [1] * 257),
        ("allowed_token_ids", []),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "x"}),
        ("logit_bias", {"1": 1e300}),
        ("min_tokens", -1),
        ("min_tokens", 300),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", 21),
        ("prompt_logprobs", -1),
        ("timeout_s", 0),
        ("timeout_s", -1),
        ("timeout_s", 1e300),
        ("priority", 2**63),
        ("priority", "high"),
        ("stream", 1),
        ("echo", "yes"),
        ("best_of", 0),
        ("request_id", 5),
        ("return_token_ids", 1),
        ("ignore_eos", "no"),
    ],
)
async def test_an_extreme_value_is_refused_by_name(
    running: Running, field: str, value: Any
) -> None:
    body = {"prompt": "x", "max_tokens": 256, field: value}
    param, message = await refused(running, **body)
    assert param == field
    assert message


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"temperature": 1e-9},
        {"top_p": 1e-9},
        {"top_k": 0},
        {"top_k": -1},
        {"stop": []},
        {"stop": None},
        {"stop_token_ids": []},
        {"logit_bias": {}},
        {"min_tokens": 0},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"logprobs": 20},
        {"priority": -(2**63)},
        {"timeout_s": 1e9},
    ],
)
async def test_an_extreme_value_that_makes_sense_is_taken(
    running: Running, body: dict[str, Any]
) -> None:
    answer = await complete(running, prompt="x", max_tokens=4, **body)
    assert answer["usage"]["completion_tokens"] == 4


async def test_max_tokens_0_absorbs_the_prompt_and_ends(running: Running) -> None:
    answer = await complete(running, prompt="x", max_tokens=0)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert answer["usage"]["completion_tokens"] == 0


async def test_a_huge_max_tokens_costs_nothing_until_it_is_used(running: Running) -> None:
    body = {"prompt": "x", "max_tokens": 2**31 - 1, "temperature": 9, "stop": ["a", "e"]}
    (choice,) = (await complete(running, **body))["choices"]
    assert choice["finish_reason"] == "stop"


async def test_n_128_is_the_most(running: Running) -> None:
    answer = await complete(running, prompt="x", n=128, max_tokens=1)
    assert [choice["index"] for choice in answer["choices"]] == list(range(128))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model": "fake", "prompt": "\\ud800", "max_tokens": 1}',
        b'{"model": "fake", "prompt": "a\\udc00", "max_tokens": 1}',
        b'{"model": "fake", "prompt": "x", "stop": "\\ud83d"}',
        b'{"model": "fake", "prompt": "x", "temperature": NaN}',
        b'{"model": "fake", "prompt": "x", "temperature": Infinity}',
        b'{"model": "fake", "prompt": "x", "temperature": 1e999}',
        b'{"model": "fake", "prompt": "\xff"}',
        b'{"model": "fake", "prompt": ' + b"[" * 100_000,
    ],
    ids=lambda data: data[:48].decode(errors="replace"),
)
async def test_a_body_that_is_no_json_or_no_text_is_refused(running: Running, data: bytes) -> None:
    async with running.http.post("/v1/completions", data=data) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_prompt_beyond_the_engines_limit_is_refused_and_can_be_truncated() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=8))
    async with gateway_running(engine) as running:
        assert (await refused(running, prompt="x" * 9))[0] == "prompt"
        answer = await complete(running, prompt="x" * 6)
        assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("limit", "n_prompt", "n_output"), [(None, 4, 4), (-1, 4, 4), (0, 8, 0), (3, 5, 3), (7, 1, 7)]
)
async def test_a_prompt_that_is_cut_to_fit_leaves_room_for_the_output(
    limit: int | None, n_prompt: int, n_output: int
) -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=8))
    async with gateway_running(engine) as running:
        body = {"truncate_prompt_tokens": -1, "max_tokens": limit, "return_token_ids": True}
        for prompt in ("x" * 100, "y" * 9 + "x" * 9):
            answer = await complete(running, prompt=prompt, **body)
            usage = answer["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (n_prompt, n_output)
            assert set(answer["choices"][0]["prompt_token_ids"]) == {ord("x")}
        short = await complete(running, prompt="x", **body)
        assert short["usage"]["prompt_tokens"] == 1


async def test_no_prompt_is_cut_to_fit_an_output_that_does_not() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=8))
    async with gateway_running(engine) as running:
        for limit in (8, 2**31 - 1):
            body = {"truncate_prompt_tokens": -1, "max_tokens": limit}
            assert (await refused(running, prompt="x" * 100, **body))[0] == "prompt"


async def test_minus_1_is_no_limit_as_to_llama_cpps_clients() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=16))
    async with gateway_running(engine) as running:
        answer = await complete(running, prompt="x" * 6, max_tokens=-1)
        assert answer["usage"]["completion_tokens"] == 10


async def test_how_much_room_a_prompt_leaves_does_not_depend_on_its_neighbours() -> None:
    engine = Engine(FakeModel(vocab_size=256), EngineConfig(n_slots=2, max_model_len=16))
    async with gateway_running(engine) as running:
        body = {"prompt": ["x" * 15, "x", "x" * 16], "return_token_ids": True, "temperature": 0}
        choices = (await complete(running, **body))["choices"]
        assert [len(choice["token_ids"]) for choice in choices] == [1, 15, 0]
