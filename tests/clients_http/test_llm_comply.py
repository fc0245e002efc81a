"""The tests of the package ``llm-comply``, each run by its own runner."""

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import llm_comply
import pytest
from llm_comply.config import ComplianceConfig
from llm_comply.http import close_client
from llm_comply.result import TestStatus as Status
from llm_comply.runner import TestRunner as Runner
from llm_comply.schema import SpecLoader
from llm_comply.test_case import TestCase as Case
from llm_comply.tests import get_tests

from tests.clients_http.conftest import MODEL, Door

pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

SPECIFICATIONS = Path(llm_comply.__file__).parent / "specs"
SUITES = {
    "openai-chat": "openai_chat.json",
    "anthropic": "anthropic.json",
    "open-responses": "openresponses.json",
}
"""The file of the specification, by the name of the tests."""
CASES: dict[tuple[str, str], Case] = {
    (suite, case.id): case for suite in SUITES for case in get_tests(suite)
}
WARNED = {"chat-reasoning-summary", "anth-thinking-display", "compact-response"}
"""Warnings belong to these: the model does not think, and there is no route to make less of a
conversation, which the test takes for an answer."""


@pytest.fixture(scope="module")
def runners(door: Door, key: str) -> Iterator[dict[str, Runner]]:
    # Without this package, answers would not be held against the specification at all.
    assert importlib.util.find_spec("jsonschema") is not None
    config = ComplianceConfig(door.base_url, key, model=MODEL)
    yield {
        suite: Runner(config, get_tests(suite), SpecLoader(str(SPECIFICATIONS / name)))
        for suite, name in SUITES.items()
    }
    close_client()


@pytest.mark.parametrize(("suite", "name"), CASES)
def test_an_answer_complies(runners: dict[str, Runner], suite: str, name: str) -> None:
    # Some are for models that think alone, which the package goes by a model's name for.
    case = dataclasses.replace(CASES[suite, name], skip_reason=None)
    result = runners[suite].run_one(case)
    assert result.errors == []
    assert bool(result.warnings) == (name in WARNED)
    assert result.status is Status.PASSED


@pytest.mark.parametrize("suite", SUITES)
def test_there_are_cases_of_every_kind(suite: str) -> None:
    assert {case.category.value for kind, case in CASES.items() if kind[0] == suite} == {
        *("basic", "tools", "streaming", "multimodal", "error")
    }


def test_keys_come_in_the_header_of_anthropic_too(door: Door, key: str) -> None:
    config = ComplianceConfig(
        door.base_url, key, model=MODEL, auth_header="x-api-key", use_bearer_prefix=False
    )
    runner = Runner(
        config, get_tests("anthropic"), SpecLoader(str(SPECIFICATIONS / "anthropic.json"))
    )
    result = runner.run_one(CASES["anthropic", "anth-basic-response"])
    assert (result.status, result.errors) == (Status.PASSED, [])
