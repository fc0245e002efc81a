"""``LLM`` on named states, over the bundled model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from wkvm_client.errors import StateExistsError, StateNotFoundError

from tests.state.stores import opened
from wkvm.core.errors import ConfigError, InvalidParameterError, StoreLockedError
from wkvm.llm import LLM, SamplingParams

STORY = "Once upon a time, there was a girl named Lily."
GREEDY = SamplingParams(max_tokens=12, temperature=0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", slots=4, threads=1) as llm:
        yield llm


def text_of(llm: LLM, prompt: str, **keywords: str) -> str:
    return llm.generate(prompt, GREEDY, use_progress=False, **keywords)[0].outputs[0].text


def test_a_text_goes_on_from_a_state_as_from_its_own_prompt(llm: LLM) -> None:
    whole = text_of(llm, STORY)
    llm.states.create("begun", STORY)
    assert text_of(llm, "", state="begun") == whole


def test_what_is_saved_goes_on(llm: LLM) -> None:
    longer = SamplingParams(max_tokens=24, temperature=0)
    whole = llm.generate(STORY, longer, use_progress=False)[0].outputs[0].text
    first = text_of(llm, STORY, save_as="saved")
    second = text_of(llm, "", state="saved", save_as="saved")
    assert first + second == whole
    assert llm.states.get("saved").version == 2


def test_a_state_ends_before_the_stop_string(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=0, stop=".")
    output = llm.generate(STORY, params, save_as="stopped", use_progress=False)[0].outputs[0]
    assert output.stop_reason == "."
    assert output.state is not None
    log = [*llm.tokenizer.encode(STORY), *llm.tokenizer.encode(output.text)]
    assert llm.states.get("stopped").n_tokens == len(log)
    assert llm.states.get("stopped").tail[-3:] == tuple(log[-3:])


def test_several_prompts_go_on_from_one_state_or_each_from_its_own(llm: LLM) -> None:
    llm.states.create("a", STORY)
    llm.states.fork("a", ["b"])
    both = llm.generate([" She", " He"], GREEDY, state="a", save_as=["x", "y"], use_progress=False)
    again = llm.generate([" She", " He"], GREEDY, state=["b", "a"], use_progress=False)
    assert [one.outputs[0].ids for one in both] == [one.outputs[0].ids for one in again]
    assert {one.name for one in llm.states.list().states} >= {"x", "y"}


def test_names_are_checked_before_anything_is_generated(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="save_as"):
        llm.generate(["a", "b"], GREEDY, save_as="one", use_progress=False)
    with pytest.raises(InvalidParameterError, match="n: "):
        llm.generate("a", SamplingParams(n=2), save_as="one", use_progress=False)
    with pytest.raises(StateNotFoundError):
        llm.generate("a", GREEDY, state="never-was", use_progress=False)


def test_states_without_a_folder_are_in_memory(llm: LLM) -> None:
    assert llm.states.create("kept", STORY).ack == "visible"
    with pytest.raises(StateExistsError):
        llm.states.create("kept", STORY)


def test_a_state_goes_to_a_file_and_comes_back(llm: LLM, tmp_path: Path) -> None:
    llm.states.create("out", STORY)
    llm.states.export_to("out", tmp_path / "state.safetensors")
    info = llm.states.import_from("in", tmp_path / "state.safetensors")
    assert info.content_id == llm.states.get("out").content_id
    assert llm.states.difference("out", "in").equal


def test_states_in_a_folder_outlive_the_llm(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with LLM(device="cpu", slots=2, threads=1, state_dir=folder) as llm:
        assert llm.states.create("kept", STORY).ack == "durable"
        whole = text_of(llm, STORY)
    with LLM(device="cpu", slots=2, threads=1, state_dir=folder) as llm:
        assert text_of(llm, "", state="kept") == whole


def test_a_folder_in_use_is_named_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm.assembly.engine.load_model", lambda *a, **k: pytest.fail("loaded"))
    with opened(tmp_path / "store"), pytest.raises(StoreLockedError):
        LLM(device="cpu", state_dir=tmp_path / "store")


def test_where_the_server_keeps_states_is_its_own_affair(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="state_dir"):
        LLM(address="tcp://127.0.0.1:1", state_dir=tmp_path)
