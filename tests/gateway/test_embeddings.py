"""POST /v1/embeddings: vectors of texts, in OpenAI's format."""

import base64
import math
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from wkvm_bench.null_engine import NullEngine

from tests.engine.conftest import BUNDLED
from tests.gateway.harness import Running, gateway_running
from tests.gateway.openai_http import MODEL, post
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway import embeddings
from wkvm.gateway.embeddings import shaped
from wkvm.gateway.text import Tokenizer
from wkvm.gateway.text.template_files import load_chat_template
from wkvm.gateway.texts import Texts
from wkvm.models.registry import load_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["Once upon a time", "What is the sun?", "A fox"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(bundled: Tokenizer) -> AsyncIterator[Running]:
    model = load_model(BUNDLED, device="cpu", dtype="float32")
    config = EngineConfig(n_slots=4, n_threads=1, deterministic=True)
    engine = Engine(model, config, served_name=MODEL)
    texts = Texts(bundled, load_chat_template(BUNDLED))
    async with gateway_running(engine, texts=texts) as running:
        yield running


async def embed(running: Running, status: int = 200, **body: Any) -> Any:
    body = {"input": TEXTS, **body}
    got, answer = await post(running, "/v1/embeddings", body)
    assert got == status, answer
    return answer


def vectors(answer: Any) -> list[Any]:
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return [one["embedding"] for one in answer["data"]]


def length(vector: Sequence[float]) -> float:
    return math.sqrt(sum(number * number for number in vector))


async def test_each_text_has_a_vector_of_length_one_and_the_ids_are_counted(
    running: Running, bundled: Tokenizer
) -> None:
    answer = await embed(running)
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert [one["object"] for one in answer["data"]] == ["embedding"] * 3
    assert [length(vector) for vector in vectors(answer)] == pytest.approx([1.0] * 3, abs=1e-5)
    n_ids = sum(len(bundled.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": n_ids, "total_tokens": n_ids}


@pytest.mark.parametrize("pooling", ["last", "mean", "state"])
async def test_texts_and_ids_alone_and_together_have_the_same_vectors(
    running: Running, bundled: Tokenizer, pooling: str
) -> None:
    together = vectors(await embed(running, pooling=pooling))
    ids = [bundled.encode(text) for text in TEXTS]
    assert vectors(await embed(running, pooling=pooling, input=ids)) == together
    for text, some, vector in zip(TEXTS, ids, together, strict=True):
        assert vectors(await embed(running, pooling=pooling, input=text)) == [vector]
        assert vectors(await embed(running, pooling=pooling, input=some)) == [vector]


async def test_the_poolings_are_different_vectors_and_last_is_the_default(running: Running) -> None:
    last, mean, state = [
        vectors(await embed(running, pooling=pooling)) for pooling in ("last", "mean", "state")
    ]
    assert vectors(await embed(running)) == last
    assert last != mean != state != last


async def test_base64_is_the_same_numbers(running: Running) -> None:
    plain = vectors(await embed(running, encoding_format="float"))
    for vector, packed in zip(
        plain, vectors(await embed(running, encoding_format="base64")), strict=True
    ):
        data = base64.b64decode(packed)
        assert list(struct.unpack(f"<{len(data) // 4}f", data)) == vector


async def test_dimensions_are_the_first_ones_made_as_long_as_one(running: Running) -> None:
    whole = vectors(await embed(running))
    for vector, short in zip(whole, vectors(await embed(running, dimensions=16)), strict=True):
        scale = length(vector[:16])
        assert short == pytest.approx([number / scale for number in vector[:16]], abs=1e-6)
        assert length(short) == pytest.approx(1.0, abs=1e-5)


async def test_without_normalizing_they_are_what_the_model_gives(running: Running) -> None:
    client = await running.gateway.engines.client("")
    given = await client.embed(running.gateway.texts.tokenizer.encode(TEXTS[0]))
    (raw, *_) = vectors(await embed(running, normalize=False))
    assert raw == given
    (short, *_) = vectors(await embed(running, normalize=False, dimensions=3))
    assert short == given[:3]


async def test_of_a_truncated_text_the_last_ids_count(running: Running, bundled: Tokenizer) -> None:
    ids = bundled.encode(TEXTS[0])
    answer = await embed(running, input=TEXTS[0], truncate_prompt_tokens=2)
    assert vectors(answer) == vectors(await embed(running, input=ids[-2:]))
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input", {"input": ""}),
        ("input", {"input": ["a", ""]}),
        ("input", {"input": ["a", 1]}),
        ("input", {"input": [[1], []]}),
        ("input", {"input": [10**9]}),
        ("input", {"input": ["a"] * 2049}),
        ("model", {"model": None}),
        ("pooling", {"pooling": "cls"}),
        ("encoding_format", {"encoding_format": "int8"}),
        ("dimensions", {"dimensions": 0}),
        ("dimensions", {"dimensions": 321}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
        ("timeout_s", {"timeout_s": -1}),
        ("priority", {"priority": "high"}),
        ("messages", {"messages": [{"role": "user", "content": "x"}]}),
        ("embed_dtype", {"embed_dtype": "float16"}),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(
    running: Running, param: str, body: dict[str, Any]
) -> None:
    answer = await embed(running, status=400, **body)
    assert answer["error"]["param"] == param


async def test_as_many_texts_as_may_be_are_answered() -> None:
    async with gateway_running() as running:
        answer = await embed(running, input=[[5]] * 2048)
        assert len(vectors(answer)) == 2048


async def test_an_answer_that_would_be_too_large_is_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "MAX_NUMBERS", 959)
    answer = await embed(running, status=413)
    assert (answer["error"]["param"], answer["error"]["code"]) == ("input", "request_too_large")
    monkeypatch.setattr(embeddings, "MAX_NUMBERS", 960)
    await embed(running)


async def test_another_model_is_not_found(running: Running) -> None:
    answer = await embed(running, status=404, model="gpt")
    assert answer["error"]["code"] == "model_not_found"


async def test_streams_go_on_beside_them(running: Running) -> None:
    client = await running.gateway.engines.client("")
    stream = await client.generate([5], max_tokens=10**6, ignore_eos=True)
    assert await stream.read()
    await embed(running)
    assert await stream.read()
    stream.cancel()


async def test_a_vector_of_zeros_stays_one() -> None:
    assert shaped([0.0, 0.0, 1.0], 2, normalize=True) == [0.0, 0.0]


async def test_an_engine_that_gives_none_is_an_error_of_the_server() -> None:
    async with gateway_running(NullEngine()) as running:
        answer = await embed(running, status=500, input="x", model="null")
        assert answer["error"]["type"] == "server_error"
