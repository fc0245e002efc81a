"""Every exception has a code, and no message carries what a client must not see."""

import logging
from collections.abc import Iterator

import pytest
from wkvm_protocol.errors import ErrorCode

from wkvm.core import errors as core
from wkvm.core.errors import WkvmError
from wkvm.server.errors import CODES, code_of, failed

EXAMPLES: tuple[WkvmError, ...] = (
    core.InvalidParameterError("top_p", "2 is not in (0, 1]"),
    core.TokenOutOfRangeError("prompt", 4711, 64),
    core.EmptyPromptError(),
    core.PromptTooLongError(7, 2, 8),
    core.OutOfSlotsError(2, 1),
    core.QueueFullError(3, "requests"),
    core.OverloadedError("too many wait"),
    core.RateLimitedError(100, "forks", 0.5),
    core.DrainingError(),
    core.NonFiniteError(5),
    core.StalledError(60.0),
    core.StepFailedError(),
    core.StepMemoryError(),
    core.EngineFailedError(),
    core.ModelNotFoundError("/secret/path", "why"),
    core.CorruptCheckpointError("/secret/path", "why"),
    core.UnsupportedModelError("/secret/path", "why"),
    core.ConfigError("host", "/secret/path"),
    core.MissingExtraError("engine", "torch"),
    core.StoreLockedError("/secret/path"),
    core.BadStoreError("/secret/path", "why"),
    core.StateNotFoundError("name@3"),
    core.StateExistsError("name"),
    core.StaleVersionError("name", 2, 3),
    core.StateMismatchError("model_digest", "a" * 64, "b" * 64),
    core.BadStateFileError("too short"),
    core.StateNotFiniteError("rwkv7.wkv"),
    core.KeyReusedError(),
    core.StateMovedError("name", "tcp://host:1", "name@4"),
    core.RequestOverError("timed_out"),
    core.QuotaError("handles", 10),
    core.StoreFullError(10, 5),
    core.HostTierFullError(10),
    core.MutationFailedError("flip", "raised"),
    core.StateDamagedError("name@3", "its digest differs"),
    core.StoreFailedError("write", "an input or output error"),
)


def classes(root: type[WkvmError] = WkvmError) -> Iterator[type[WkvmError]]:
    for child in root.__subclasses__():
        yield child
        yield from classes(child)


def own_classes() -> list[type[WkvmError]]:
    return [one for one in classes() if one.__module__ == core.__name__]


def test_every_exception_of_the_tree_has_a_code() -> None:
    for one in own_classes():
        assert any(base in CODES for base in one.__mro__), one


def test_every_leaf_that_can_reach_a_client_has_a_code_of_its_own() -> None:
    branches = (core.RequestError, core.CapacityError, core.ExecutionError)
    leaves = [type(example) for example in EXAMPLES if isinstance(example, branches)]
    codes = [CODES[leaf] for leaf in leaves]
    assert len(set(codes)) == len(codes) == len(leaves)


def test_every_leaf_has_an_example_here() -> None:
    leaves = {one for one in own_classes() if not one.__subclasses__()}
    assert leaves == {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_the_code_of_a_leaf_matches_its_branch(error: WkvmError) -> None:
    code = code_of(error)
    match error:
        case core.RequestError():
            assert 200 <= code < 300
            assert not code.retryable
        case core.CapacityError():
            assert 300 <= code < 400
            assert code.retryable
        case core.ExecutionError():
            assert 500 < code < 600
        case _:
            assert code is ErrorCode.INTERNAL
    message = failed(7, error)
    assert (message.request_id, message.code, message.retryable) == (7, code, code.retryable)
    assert (message.retry_after_ms > 0) == isinstance(error, core.CapacityError)
    assert "secret" not in message.message
    assert "4711" not in message.message


def test_a_refusal_says_when_to_try_again_if_that_is_known() -> None:
    assert failed(7, core.QueueFullError(3, "requests", 2.5)).retry_after_ms == 2500
    assert failed(7, core.OverloadedError("many wait", 0.0014)).retry_after_ms == 2
    assert failed(7, core.QueueFullError(3, "requests")).retry_after_ms == 1000


@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError("secret"), MemoryError()])
def test_the_cause_of_an_unexpected_error_is_in_the_log_and_nowhere_else(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="wkvm.server"):
        message = failed(7, error)
    assert message.code == ErrorCode.INTERNAL
    assert "secret" not in message.message
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_subclass_made_elsewhere_has_the_code_of_its_base() -> None:
    class OtherError(core.QueueFullError):
        pass

    assert code_of(OtherError(1, "requests")) is ErrorCode.QUEUE_FULL
