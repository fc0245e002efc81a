"""What a notebook calls: the bundled model in this process."""

import contextlib
import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from wkvm_client.errors import (
    ClientClosedError,
    EmptyPromptError,
    TokenOutOfRangeError,
    UnauthenticatedError,
)

from tests.cli.conftest import KEY, environment, running_server
from tests.llm.test_batch import wait_until_idle
from wkvm import LLM, RequestOutput, SamplingParams, cli, llm
from wkvm.core.errors import ConfigError, InvalidParameterError, ModelNotFoundError
from wkvm.gateway.errors import TemplateError
from wkvm.gateway.streams.pieces import ChoiceText, Piece
from wkvm.gateway.text.template import ChatTemplate

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ["Once upon a time", "The sea", "A little dog"]


@pytest.fixture(scope="module")
def model() -> Iterator[LLM]:
    with LLM(device="cpu", slots=2) as model:
        yield model


def texts_of(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_results_are_in_the_order_of_the_prompts_and_as_those_of_each_alone(model: LLM) -> None:
    prompts = [prompt + "," * i for prompt in PROMPTS for i in range(4)]
    outputs = model.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert outputs == [model.generate(prompt, GREEDY)[0] for prompt in prompts]


def test_a_text_is_the_one_of_wkvm_complete_with_the_same_seed(
    model: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["complete", "--local", "--device", "cpu", "--json", "--seed", "3"]
    assert cli.main([*command, "--max-tokens", "40", "--stop", "was", PROMPTS[0]]) == 0
    expected = json.loads(capsys.readouterr().out)
    params = SamplingParams(seed=3, max_tokens=40, stop="was")
    (output,) = model.generate(PROMPTS[0], params)
    assert output.prompt_ids == expected["prompt_ids"]
    assert output.outputs[0].text == expected["text"] != ""


def test_ids_and_their_text_are_the_same_prompt(model: LLM) -> None:
    ids = model.tokenizer.encode(PROMPTS[1])
    prompts: list[str | list[int]] = [PROMPTS[1], ids]
    of_text, of_ids = model.generate(prompts, GREEDY)
    assert (of_text.prompt, of_ids.prompt) == (PROMPTS[1], None)
    assert of_text.prompt_ids == of_ids.prompt_ids == ids
    assert of_text.outputs == of_ids.outputs == model.generate(ids, GREEDY)[0].outputs


def test_texts_are_scored_by_either_path_as_their_prompts_are(model: LLM) -> None:
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    outputs = model.generate(ids, SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert model.score(PROMPTS, n_top=1) == [output.prompt_logprobs for output in outputs]
    (decoded,) = model.score(ids[0], path="decode", n_top=1)
    for one, other in zip(decoded, outputs[0].prompt_logprobs or [], strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    with pytest.raises(EmptyPromptError, match="prompt 1"):
        model.score([ids[0], []])


@pytest.mark.parametrize("pooling", ["last", "mean", "state"])
def test_texts_have_the_vectors_of_their_ids_in_order(model: LLM, pooling: Any) -> None:
    ids = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    vectors = model.embed(PROMPTS, pooling=pooling)
    assert len({tuple(vector) for vector in vectors}) == len(PROMPTS)
    for some, vector in zip(ids, vectors, strict=True):
        assert model.embed(some, pooling=pooling)[0] == pytest.approx(vector, abs=1e-3)
    with pytest.raises(EmptyPromptError, match="prompt 1"):
        model.embed([ids[0], []])


def test_each_prompt_can_have_parameters_of_its_own(model: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 5)]
    outputs = model.generate(PROMPTS[:2], params)
    assert [len(output.outputs[0].ids) for output in outputs] == [1, 5]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length"]


def test_parameters_that_are_not_as_many_as_the_prompts_are_refused(model: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="sampling_params: 1 for 3 prompts"):
        model.generate(PROMPTS, [GREEDY])


def test_log_probabilities_are_those_of_the_ids(model: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=2, prompt_logprobs=0, stop="was")
    (output,) = model.generate(PROMPTS[0], params)
    (completion,) = output.outputs
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == completion.ids
    assert all(len(entry.top) == 2 for entry in completion.logprobs)
    assert output.prompt_logprobs is not None
    assert [entry.token_id for entry in output.prompt_logprobs] == output.prompt_ids[1:]


def test_what_was_not_asked_for_is_none(model: LLM) -> None:
    (output,) = model.generate(PROMPTS[0], GREEDY)
    assert output.prompt_logprobs is None
    assert output.outputs[0].logprobs is None


def test_a_stop_id_is_the_reason_and_not_among_the_ids(model: LLM) -> None:
    first, second = model.generate(PROMPTS[0], GREEDY)[0].outputs[0].ids[:2]
    params = SamplingParams(temperature=0, stop_ids=[second])
    completion = model.generate(PROMPTS[0], params)[0].outputs[0]
    assert completion.ids == [first]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", second)


def test_without_parameters_a_text_is_sampled_as_the_models_maker_suggests() -> None:
    with LLM(device="cpu", slots=1, seed=4) as one, LLM(device="cpu", slots=1, seed=4) as other:
        said = SamplingParams(temperature=0.8, top_p=0.9)
        assert one.generate(PROMPTS[0]) == other.generate(PROMPTS[0], said)


def test_with_a_seed_the_same_calls_give_the_same_texts_and_no_two_prompts_share_theirs() -> None:
    prompts, params = [PROMPTS[0]] * 4, SamplingParams(max_tokens=12)
    results = list[list[list[str]]]()
    for slots in (1, 3):
        with LLM(device="cpu", slots=slots, seed=7) as model:
            results.append([texts_of(model.generate(prompts, params)) for _ in range(2)])
            own = texts_of(model.generate(prompts, SamplingParams(max_tokens=12, seed=5)))
            assert len(set(own)) == 1
    assert results[0] == results[1]
    (first, second), _ = results
    assert len({*first, *second}) == 8


def test_a_chat_is_written_by_the_models_template(model: LLM) -> None:
    conversation = [{"role": "user", "content": "What is the sun?"}]
    (output,) = model.chat(conversation, SamplingParams(temperature=0))
    assert output.prompt == "User: What is the sun?\n\nAssistant:"
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)
    assert "star" in output.outputs[0].text


def test_several_conversations_are_answered_in_their_order(model: LLM) -> None:
    questions = ["What is the sun?", "What is the moon?", "What is a dog?"]
    conversations = [[{"role": "user", "content": question}] for question in questions]
    outputs = model.chat(conversations, GREEDY)
    assert texts_of(outputs) == [texts_of(model.chat(one, GREEDY))[0] for one in conversations]
    assert len(set(texts_of(outputs))) == 3


def test_an_answer_does_not_begin_with_the_space_that_ends_its_prompt(model: LLM) -> None:
    (output,) = model.chat([{"role": "user", "content": "What is the sun?"}], GREEDY)
    completion = output.outputs[0]
    assert f" {completion.text}" == model.tokenizer.decode(completion.ids)


def test_the_stops_of_the_template_end_an_answer_besides_those_of_the_parameters(
    model: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate("User: {{ messages[0].content }}\n\nAssistant:", stops=("hot",))
    monkeypatch.setattr(model, "_texts", dataclasses.replace(model._texts, template=template))
    conversation = [{"role": "user", "content": "What is the sun?"}]
    (output,) = model.chat(conversation, SamplingParams(temperature=0))
    assert output.outputs[0].text == "The sun is a very big and "
    assert output.outputs[0].stop_reason is None
    (output,) = model.chat(conversation, SamplingParams(temperature=0, stop="big"))
    assert output.outputs[0].text == "The sun is a very "
    assert output.outputs[0].stop_reason == "big"
    (output,) = model.chat(conversation, SamplingParams(temperature=0, ignore_eos=True))
    assert "hot" in output.outputs[0].text


def test_the_parts_of_a_message_are_taken_together(model: LLM) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the sun?"}]
    (output,) = model.chat([{"role": "user", "content": parts}], GREEDY)
    assert output.prompt == "User: What is\nthe sun?\n\nAssistant:"


@pytest.mark.parametrize(
    "messages",
    [
        [[]],
        [{"role": "user"}],
        [{"role": "wizard", "content": "Hello"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ],
)
def test_what_is_no_conversation_is_refused(model: LLM, messages: list[object]) -> None:
    with pytest.raises(InvalidParameterError, match="messages"):
        model.chat(messages, GREEDY)  # type: ignore[arg-type]


def test_messages_that_the_template_refuses_are_refused(
    model: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate("{{ raise_exception('no') }}")
    monkeypatch.setattr(model, "_texts", dataclasses.replace(model._texts, template=template))
    with pytest.raises(TemplateError, match="no"):
        model.chat([{"role": "user", "content": "Hello"}], GREEDY)


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_prompt_is_refused_by_its_number(model: LLM, empty: str | list[int]) -> None:
    with pytest.raises(EmptyPromptError, match="prompt 1 is empty"):
        model.generate([PROMPTS[0], empty], GREEDY)


def test_an_id_that_the_model_lacks_is_an_error_and_others_go_on_afterwards(model: LLM) -> None:
    with pytest.raises(TokenOutOfRangeError):
        model.generate([[5], [2**31]], SamplingParams(max_tokens=1_000_000, ignore_eos=True))
    assert wait_until_idle(model._backend)
    assert model.generate([5], GREEDY)[0].outputs[0].ids


def test_text_that_cannot_be_made_is_an_error_and_frees_its_slot(
    model: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(self: ChoiceText) -> Piece:
        raise ZeroDivisionError

    monkeypatch.setattr(ChoiceText, "read", read)
    with pytest.raises(ZeroDivisionError):
        model.generate([[5]] * 3, SamplingParams(max_tokens=1_000_000, ignore_eos=True))
    assert wait_until_idle(model._backend)


@contextlib.contextmanager
def interrupting_bar(*_: object, **__: object) -> Iterator[Callable[[], None]]:
    yield lambda: signal.raise_signal(signal.SIGINT)


def test_ctrl_c_cancels_what_runs(model: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "progress_bar", interrupting_bar)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.generate([[5]] * 9, SamplingParams(max_tokens=1_000_000, ignore_eos=True))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert wait_until_idle(model._backend)


def test_threads_that_share_it_get_what_each_gets_alone(model: LLM) -> None:
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda one: model.generate(one, GREEDY), PROMPTS * 2))
    alone = [model.generate(prompt, GREEDY) for prompt in PROMPTS]
    assert results == alone * 2


async def test_it_works_inside_a_running_event_loop(model: LLM) -> None:
    outputs = model.generate(PROMPTS, GREEDY)
    assert all(texts_of(outputs))


def test_after_the_close_nothing_is_generated() -> None:
    model = LLM(device="cpu", slots=1)
    model.close()
    model.close()
    with pytest.raises(ClientClosedError):
        model.generate(PROMPTS[0], GREEDY)


def test_one_that_is_dropped_ends_its_engine() -> None:
    model = LLM(device="cpu", slots=1)
    thread = model._backend._thread
    del model
    gc.collect()
    assert not thread.is_alive()


def test_a_program_that_does_not_close_it_ends_quietly() -> None:
    program = (
        "from wkvm import LLM, SamplingParams\n"
        "model = LLM(device='cpu', slots=1)\n"
        "print(len(model.generate('The', SamplingParams(max_tokens=3))[0].outputs[0].ids))\n"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "3\n", "")


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        LLM(tmp_path / "none")


# --- a running server -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server"), "--slots", "2") as server:
        yield server.address


def test_a_server_gives_the_same_texts_as_this_process(
    model: LLM, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(seed=5, max_tokens=20)
    monkeypatch.setenv("WKVM_API_KEY", KEY)
    with LLM(address=address) as remote:
        assert remote.generate(PROMPTS, params) == model.generate(PROMPTS, params)


def test_a_wrong_key_is_an_error(address: str) -> None:
    with pytest.raises(UnauthenticatedError):
        LLM(address=address, api_key="wrong")


def test_a_tokenizer_that_is_not_the_servers_is_refused(address: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByteTokenizer"}')
    with pytest.raises(ConfigError, match="tokenizer: it is not that of"):
        LLM(address=address, api_key=KEY, tokenizer=tmp_path)


def test_settings_of_an_engine_are_refused_where_a_server_has_them() -> None:
    with pytest.raises(ConfigError, match="dtype: is the server's affair"):
        LLM(address="unix:///nowhere", dtype="float32")
    with pytest.raises(ConfigError, match="guest_tokens: is the server's affair"):
        LLM(address="unix:///nowhere", guest_tokens=64)


def test_an_engine_of_its_own_takes_the_settings_of_states_and_bits() -> None:
    with pytest.raises(ConfigError, match="deferred-writes: only a GPU"):
        LLM(device="cpu", deferred_writes=True)
    params = SamplingParams(seed=1, max_tokens=8, logprobs=0)
    with LLM(device="cpu", slots=3, state_dtype="float16", deterministic=True) as llm:
        assert llm.generate(PROMPTS, params) == [llm.generate(one, params)[0] for one in PROMPTS]


# --- the progress bar -------------------------------------------------------------------------


def test_in_a_terminal_a_bar_counts_the_prompts(
    model: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    model.generate(PROMPTS, GREEDY)
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/3" in err


def test_there_is_no_bar_if_none_is_wanted(
    model: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    model.generate(PROMPTS, GREEDY, use_progress=False)
    assert capsys.readouterr() == ("", "")


def test_there_is_no_bar_where_nobody_sees_it(
    model: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    assert not os.isatty(2) or sys.stderr is not sys.__stderr__
    model.generate(PROMPTS, GREEDY)
    assert capsys.readouterr() == ("", "")
