"""The tests of the package ``llm-comply`` for OpenAI's chats, each run by its own runner."""

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
from llm_comply.tests import get_tests

from tests.clients_http.conftest import MODEL, Door

pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

CASES = {case.id: case for case in get_tests("openai-chat")}
SPECIFICATION = Path(llm_comply.__file__).parent / "specs" / "openai_chat.json"


@pytest.fixture(scope="module")
def runner(door: Door, key: str) -> Iterator[Runner]:
    # Without this package, answers would not be held against the specification at all.
    assert importlib.util.find_spec("jsonschema") is not None
    config = ComplianceConfig(door.base_url, key, model=MODEL)
    yield Runner(config, list(CASES.values()), SpecLoader(str(SPECIFICATION)))
    close_client()


@pytest.mark.parametrize("name", CASES)
def test_an_answer_complies(runner: Runner, name: str) -> None:
    result = runner.run_one(CASES[name])
    if result.status is Status.SKIPPED:
        # What only OpenAI's reasoning models are asked, by their names.
        assert name == "chat-reasoning-summary"
        pytest.skip(result.errors[0])
    assert (result.errors, result.warnings) == ([], [])
    assert result.status is Status.PASSED


def test_there_are_cases_of_every_kind() -> None:
    assert {case.category.value for case in CASES.values()} == {
        *("basic", "tools", "streaming", "multimodal", "error")
    }
