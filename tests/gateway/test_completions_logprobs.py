"""Log probabilities of completions, in OpenAI's legacy format and in vLLM's."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from wkvm_client.results import TokenLogprobs, TopLogprob

from tests.fakes import FakeModel, fake_continuation, fake_logits
from tests.gateway.conftest import WORLD_TOKENS
from tests.gateway.harness import Running, byte_texts, gateway_running
from tests.gateway.openai_http import MODEL, added_up, complete, stream_events
from tests.gateway.scripted import script_engine
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.gateway.logprobs import LOWEST, LogprobsWriter, token_text
from wkvm.gateway.text import ByteTokenizer, Tokenizer
from wkvm.gateway.texts import Texts


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with gateway_running() as running:
        yield running


def logprobs_after(ids: Sequence[int]) -> list[float]:
    """The definition: log softmax of the fake model's logits."""
    logits = fake_logits(ids, 256)
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def name(token_id: int) -> str:
    return chr(token_id) if token_id < 128 else f"bytes:\\x{token_id:02x}"


def approx(values: Any) -> Any:
    return pytest.approx(values, abs=1e-5)


async def test_what_lm_eval_sends_to_score_gives_what_lm_eval_reads(running: Running) -> None:
    """Batched ids of differing lengths, echo and logprobs over the whole prompt."""
    prompts = [[72, 101, 108, 108, 111], [65], list(b"a longer one")]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    answer = await complete(running, **body, echo=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        got = choice["logprobs"]
        ids = [*prompt, *fake_continuation(prompt, 1, 256)]
        assert got["tokens"] == [name(token_id) for token_id in ids]
        assert (got["token_logprobs"][0], got["top_logprobs"][0]) == (None, None)
        assert got["text_offset"] == list(range(len(ids)))
        for at in range(1, len(ids)):
            expected = logprobs_after(ids[:at])
            assert got["token_logprobs"][at] == approx(expected[ids[at]])
            best = expected.index(max(expected))
            assert got["top_logprobs"][at] == approx(
                {name(ids[at]): expected[ids[at]], name(best): expected[best]}
            )
            # How lm-eval finds out whether the text is what greedy decoding would have said.
            is_greedy = got["tokens"][at] == max(
                got["top_logprobs"][at], key=got["top_logprobs"][at].get
            )
            assert is_greedy == (ids[at] == best)


async def test_without_echo_only_the_output_has_logprobs(running: Running) -> None:
    answer = await complete(running, prompt="hi", max_tokens=3, temperature=0, logprobs=0)
    got = answer["choices"][0]["logprobs"]
    ids = fake_continuation(b"hi", 3, 256)
    assert got["tokens"] == [name(token_id) for token_id in ids]
    assert [list(top) for top in got["top_logprobs"]] == [[token] for token in got["tokens"]]


async def test_max_tokens_0_with_echo_scores_the_prompt_alone(running: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 2}
    (choice,) = (await complete(running, **body))["choices"]
    assert choice["text"] == "hello"
    assert choice["logprobs"]["tokens"] == list("hello")
    assert choice["logprobs"]["token_logprobs"][1:] == approx(
        [logprobs_after(b"hello"[:at])[b"hello"[at]] for at in range(1, 5)]
    )
    assert added_up(await stream_events(running, **body))[0] == choice


@pytest.mark.parametrize("echo", [False, True])
async def test_logprobs_streamed_are_those_not_streamed(running: Running, echo: bool) -> None:
    body = {"prompt": ["hello", "x"], "n": 2, "seed": 7, "max_tokens": 40, "logprobs": 5}
    body |= {"echo": echo, "stop": ["\ufffd\ufffd\ufffd"], "return_token_ids": True}
    whole = (await complete(running, **body))["choices"]
    choices = added_up(await stream_events(running, **body))
    assert [choices[index] for index in range(4)] == whole
    for choice in whole:
        n_prompt = len(choice["prompt_token_ids"]) if echo else 0
        assert len(choice["logprobs"]["tokens"]) == n_prompt + len(choice["token_ids"])


async def test_offsets_are_those_of_the_text_also_within_characters() -> None:
    text = "a🐭b"
    async with gateway_running(script_engine(text.encode())) as running:
        body = {"prompt": "x", "max_tokens": 6, "temperature": 0, "logprobs": 0, "echo": True}
        (choice,) = (await complete(running, **body))["choices"]
        assert choice["text"] == "xa🐭b"
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 2, 2, 3]


async def test_offsets_count_what_a_prompt_leaves_unfinished() -> None:
    async with gateway_running(script_engine(b"abc")) as running:
        body = {"prompt": [ord("x"), "é".encode()[0]], "temperature": 0, "max_tokens": 2}
        (choice,) = (await complete(running, **body, logprobs=0, echo=True))["choices"]
        assert choice["text"] == "x\ufffdbc"
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize("as_ids", [False, True])
async def test_offsets_are_after_the_characters_that_were_never_completed(as_ids: bool) -> None:
    async with gateway_running(script_engine("🐭".encode()[:2] + b"a\xed\xb9b")) as running:
        body = {"prompt": "x", "max_tokens": 6, "temperature": 0, "logprobs": 0}
        body["return_tokens_as_token_ids"] = as_ids
        (choice,) = (await complete(running, **body))["choices"]
        assert choice["text"] == "\ufffda\ufffd\ufffdb"
        assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 2, 4]


async def test_ids_can_be_named_by_number(running: Running) -> None:
    body = {"prompt": "hi", "max_tokens": 1, "temperature": 0, "logprobs": 3, "echo": True}
    answer = await complete(running, **body, return_tokens_as_token_ids=True)
    got = answer["choices"][0]["logprobs"]
    assert got["tokens"][:2] == ["token_id:104", "token_id:105"]
    assert len(got["top_logprobs"][2]) == 3
    assert all(key.startswith("token_id:") for key in got["top_logprobs"][2])


async def test_prompt_logprobs_of_vllm_are_by_position_and_id(running: Running) -> None:
    body = {"prompt": "hi", "max_tokens": 1, "temperature": 0, "prompt_logprobs": 2}
    answer = await complete(running, **body)
    first, second = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    expected = logprobs_after(b"h")
    ranked = sorted(range(256), key=lambda i: -expected[i])
    assert set(second) == {str(i) for i in (ord("i"), *ranked[:2])}
    for token_id, info in second.items():
        assert info["logprob"] == approx(expected[int(token_id)])
        assert info["rank"] == ranked.index(int(token_id)) + 1
        assert info["decoded_token"] == name(int(token_id))


def test_of_ids_with_one_text_the_most_likely_counts(bundled: Tokenizer) -> None:
    class Twins(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"x" if token_id in (1, 2) else super().token_bytes(token_id)

    writer = LogprobsWriter(Twins(), 2, as_ids=False, skip_special=True)
    top = (TopLogprob(1, -0.5), TopLogprob(2, -1.0))
    written = writer.output([TokenLogprobs(2, -1.0, 2, top)])
    assert written.top_logprobs == [{"x": -0.5}]
    assert written.token_logprobs == [-1.0]


def test_tokens_that_are_no_text_have_names_of_their_own(world: Tokenizer) -> None:
    names = {token_text(world, token_id) for token_id in range(1, world.vocab_size)}
    assert len(names) == len(WORLD_TOKENS)
    assert token_text(world, WORLD_TOKENS.index("한".encode()[:2]) + 1) == "bytes:\\xed\\x95"


def test_an_id_beyond_the_tokenizers_has_its_number_for_a_name() -> None:
    assert token_text(ByteTokenizer(), 256) == "token_id:256"


def test_a_probability_of_0_is_a_number_that_json_has() -> None:
    writer = LogprobsWriter(ByteTokenizer(), 0, as_ids=False, skip_special=True)
    written = writer.output([TokenLogprobs(65, -math.inf, 9, ())])
    assert written.token_logprobs == [LOWEST]


async def test_top_logprobs_may_name_ids_beyond_the_tokenizers() -> None:
    """Vocabularies of models are padded: such an id is never chosen, but it may be reported."""
    engine = Engine(FakeModel(vocab_size=300), EngineConfig(n_slots=2))
    allowed = list(range(256))
    async with gateway_running(engine, texts=Texts(ByteTokenizer(), byte_texts().template)) as one:
        body = {"prompt": "hi", "max_tokens": 40, "logprobs": 20, "allowed_token_ids": allowed}
        answer = await complete(one, **body)
        tops = answer["choices"][0]["logprobs"]["top_logprobs"]
        assert any(key.startswith("token_id:") for top in tops for key in top)
        assert answer["model"] == MODEL
