"""A log of JSON lines has always the same fields, and nothing that a client sent."""

import json
import logging
import sys
from typing import Any

import pytest

from wkvm.server.log import JsonFormatter

SECRET = "what a client sent"


def line(record: logging.LogRecord) -> Any:
    return json.loads(JsonFormatter("serve").format(record))


def record(message: str, *arguments: object, name: str = "wkvm.test") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, None)


def raised(error: Exception) -> logging.LogRecord:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError:
            raise error from None
    except Exception:
        found = sys.exc_info()
    return logging.LogRecord("wkvm.test", logging.ERROR, __file__, 1, "no", (), found)


def test_the_fields_are_these_in_this_order() -> None:
    told = line(record("%d rows", 3))
    assert list(told) == ["time", "level", "logger", "process", "pid", "message"]
    assert (told["level"], told["logger"], told["process"]) == ("error", "wkvm.test", "serve")
    assert told["message"] == "3 rows"
    assert str(told["time"]).endswith("Z")


def test_an_exception_is_its_type_and_where_it_came_from() -> None:
    told = line(raised(RuntimeError(SECRET)))
    (error,) = told["errors"]
    assert error["type"] == "builtins.RuntimeError"
    assert "test_log.py" in error["stack"][-1]
    assert SECRET not in json.dumps(told)


def test_an_exception_in_a_message_is_its_type() -> None:
    told = line(record("it was not kept: %s", KeyError(SECRET)))
    assert told["message"] == "it was not kept: KeyError"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/srv/anna/states: no room", "PATH: no room"),
        ("could not read '/a b/c'", "could not read 'PATH b/c'"),
        ("1,200 ids/s and 3 GB/s", "1,200 ids/s and 3 GB/s"),
    ],
)
def test_a_path_is_no_path(said: str, expected: str) -> None:
    assert line(record("%s", said))["message"] == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Task exception was never retrieved\nfuture: <Task ...>", "Task exception was never"),
        (f"Exception in callback f({SECRET!r})", "Exception in callback f"),
    ],
)
def test_of_other_peoples_messages_the_first_words_are_told(said: str, expected: str) -> None:
    told = line(record(said, name="asyncio"))
    assert str(told["message"]).startswith(expected)
    assert SECRET not in json.dumps(told)
