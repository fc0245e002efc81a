"""instructor against a real server: answers that are objects."""

from typing import Any

import pytest

from tests.clients_http.conftest import MODEL, QUESTION, Door
from tests.clients_http.outside import evaluation_python, results_of

pytestmark = pytest.mark.slow

MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")


@pytest.fixture(scope="module")
def results(door: Door, key: str) -> Any:
    arguments = (door.base_url, key, MODEL, QUESTION, *MODES)
    return results_of("instructor_calls.py", *arguments, python=evaluation_python())


@pytest.fixture(params=MODES)
def calls(request: pytest.FixtureRequest, results: Any) -> Any:
    return results[request.param]


def test_an_answer_is_an_object_of_the_type_with_its_usage(calls: Any) -> None:
    assert calls["one"].keys() == {"kind", "big", "note"}
    assert calls["n_output"] > 0


def test_a_streamed_object_ends_as_the_whole_one(calls: Any) -> None:
    assert calls["last_part"] == calls["one"]
    assert calls["n_parts"] >= 1


def test_a_list_has_as_many_objects_as_its_type_says(calls: Any) -> None:
    assert len(calls["several"]["suns"]) == 2


def test_an_answer_that_is_refused_is_asked_for_once_more_with_what_was_wrong(calls: Any) -> None:
    assert calls["n_asked_again"] == 2
    assert calls["again"].keys() == {"kind", "big", "note"}


def test_objects_asked_for_side_by_side_are_each_the_one_asked_for_alone(calls: Any) -> None:
    assert calls["at_once"] == [calls["one"]] * 8


def test_a_wrong_key_is_told_by_its_class(results: Any) -> None:
    assert "invalid_api_key" in results["error"]


def test_no_host_but_this_one_is_asked_for(results: Any) -> None:
    assert results["asked"] == []
