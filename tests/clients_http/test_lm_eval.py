"""lm-eval against a real server: it comes to the numbers of the model scored directly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients_http.conftest import MODEL, Door
from tests.clients_http.outside import evaluation_python
from tools.evaluation import (
    Scores,
    expected_texts,
    largest_difference,
    run_lm_eval,
    score_by_forward,
    score_by_llm,
    score_directly,
)
from tools.evaluation_tasks import CHATS, CHOICES, OPENINGS, TEXTS, write_tasks
from wkvm import LLM
from wkvm.assembly.models import BUNDLED
from wkvm.models.registry import load_model

pytestmark = pytest.mark.slow

FIRST_ID = 0
DIGITS = 1e-9
"""What adding up in another order may change."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    with LLM() as llm:
        answers, replies = expected_texts(llm)
    assert len(set(answers)) > 3
    write_tasks(folder, answers=answers, replies=replies)
    return folder


@pytest.fixture(scope="module")
def by_llm() -> Scores:
    with LLM() as llm:
        return score_directly(score_by_llm(llm), llm.tokenizer.encode, FIRST_ID)


@pytest.fixture(scope="module")
def by_forward() -> Scores:
    with LLM() as llm:
        encode = llm.tokenizer.encode
    return score_directly(score_by_forward(load_model(BUNDLED)), encode, FIRST_ID)


@pytest.fixture(scope="module")
def ask(folder: Path, door: Door, key: str) -> Callable[..., Scores]:
    def ask(**settings: Any) -> Scores:
        given: dict[str, Any] = {"model": MODEL, "api_key": key, "first_id": FIRST_ID} | settings
        return run_lm_eval(evaluation_python(), door.url, folder, **given)

    return ask


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_concurrent": 1}, id="one at a time"),
        pytest.param({"num_concurrent": 8}, id="eight at a time"),
        pytest.param({"num_concurrent": 1, "batch_size": 6}, id="six in a request"),
        pytest.param({"num_concurrent": 2, "tokenized_requests": False}, id="as texts"),
    ],
)
def test_the_numbers_are_those_of_the_model_scored_directly(
    ask: Callable[..., Scores], by_llm: Scores, by_forward: Scores, settings: dict[str, Any]
) -> None:
    scores = ask(**settings)
    assert largest_difference(scores, by_llm) < DIGITS
    assert largest_difference(scores, by_forward) < DIGITS
    for task in (CHOICES, TEXTS):
        assert scores.metrics[task] == pytest.approx(by_llm.metrics[task], rel=DIGITS)
        assert scores.metrics[task] == pytest.approx(by_forward.metrics[task], rel=DIGITS)
    # Every text is the one that comes of it in this process.
    assert scores.metrics[OPENINGS] == {"exact_match": 1.0}


def test_chats_are_those_of_the_model_in_this_process(ask: Callable[..., Scores]) -> None:
    assert ask(chats=True, num_concurrent=4).metrics == {CHATS: {"exact_match": 1.0}}


def test_a_wrong_answer_would_be_seen(by_llm: Scores, by_forward: Scores) -> None:
    assert 0 < by_llm.metrics[CHOICES]["acc"] < 1
    assert largest_difference(by_llm, by_forward) < DIGITS
    assert len(set(by_llm.likelihoods[CHOICES])) == len(by_llm.likelihoods[CHOICES])
