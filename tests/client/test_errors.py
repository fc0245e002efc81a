"""The exception tree: total over the codes, and true to its own drawing."""

import inspect

import pytest
from wkvm_client import errors
from wkvm_client.errors import (
    BY_CODE,
    CapacityError,
    ClientError,
    ConnectTimeoutError,
    ExecutionError,
    LinkError,
    PlaintextKeyError,
    QueueFullError,
    RequestError,
    RequestTooLargeError,
    UnknownServerError,
    error_of,
)
from wkvm_protocol.errors import ErrorCode

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, ClientError)
]
BRANCHES = {1: LinkError, 2: RequestError, 3: CapacityError, 5: ExecutionError}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_leaf_in_its_branch(code: ErrorCode) -> None:
    error = error_of(code, "why", retryable=code.retryable)
    assert type(error) is BY_CODE[code]
    assert not type(error).__subclasses__(), "a branch, not a leaf"
    assert isinstance(error, BRANCHES[code // 100])
    assert type(error).default_code is code
    assert type(error).default_retryable is code.retryable
    assert str(error) == "why"


def test_no_leaf_stands_for_two_codes() -> None:
    assert len(set(BY_CODE.values())) == len(BY_CODE) == len(ErrorCode)


def test_a_leaf_with_a_code_is_in_the_table() -> None:
    coded = {leaf for leaf in CLASSES if leaf.default_code is not None}
    assert coded == set(BY_CODE.values())


def test_the_drawing_shows_every_class_below_its_parent() -> None:
    drawing = errors.__doc__ or ""
    parents = ["ClientError"]
    drawn: dict[str, str] = {}
    for line in drawing.splitlines():
        if "── " not in line:
            continue
        depth = line.index("── ") // 4 + 1
        name = line.split("── ")[1].split()[0]
        drawn[name] = parents[depth - 1]
        parents[depth:] = [name]
    assert drawn == {
        leaf.__name__: leaf.__mro__[1].__name__ for leaf in CLASSES if leaf is not ClientError
    }


def test_the_servers_word_on_retrying_counts() -> None:
    assert error_of(ErrorCode.INTERNAL, "", retryable=True).retryable
    assert not error_of(ErrorCode.QUEUE_FULL, "", retryable=False).retryable


def test_a_code_of_a_later_server_keeps_its_number() -> None:
    error = error_of(777, "new", retryable=True)
    assert type(error) is UnknownServerError
    assert error.code == 777
    assert error.retryable


@pytest.mark.parametrize(
    "error",
    [
        error_of(ErrorCode.QUEUE_FULL, "full", retryable=True, field="x", retry_after_ms=5),
        PlaintextKeyError("example.org"),
        RequestTooLargeError(5, 4),
        ConnectTimeoutError(1.5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_to_raise_says_the_same(error: ClientError) -> None:
    error.__cause__ = OSError("why")
    twin = error.again()
    assert twin is not error
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
    assert twin.__cause__ is error.__cause__
    assert twin.__traceback__ is None


def test_facts_of_a_failure_are_attributes() -> None:
    error = error_of(ErrorCode.QUEUE_FULL, "full", retryable=True, field="x", retry_after_ms=5)
    assert isinstance(error, QueueFullError)
    assert (error.code, error.field, error.retry_after_ms) == (301, "x", 5)
