"""Operations of other packages: found by entry points, checked like wkvm's own."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.state.random_images import image
from wkvm.core.errors import (
    InvalidParameterError,
    MutationFailedError,
    StateNotFiniteError,
)
from wkvm.state.mutations import GROUP, Mutations
from wkvm.state.operations import Operation, Parameters, StateTensors

WKV = "rwkv7.wkv"


class Flip(Parameters, frozen=True, kw_only=True):
    times: int = 1


def flip(parameters: Flip, parents: Sequence[StateTensors]) -> StateTensors:
    return {WKV: parents[0][WKV].flip(-1) if parameters.times % 2 else parents[0][WKV]}


def write_into_the_parent(parameters: Flip, parents: Sequence[StateTensors]) -> StateTensors:
    return {WKV: parents[0][WKV].zero_()}


def returns(value: Any) -> Operation[Flip]:
    return Operation("flip", Flip, lambda parameters, parents: value)


def raises(parameters: Flip, parents: Sequence[StateTensors]) -> StateTensors:
    raise ZeroDivisionError("far inside")


FLIP = Operation("flip", Flip, flip)


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    module = ModuleType("plugin_of_the_tests")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def point(name: str, attribute: str = "operation") -> EntryPoint:
    return EntryPoint(name, f"plugin_of_the_tests:{attribute}", GROUP)


def installed(plugin: ModuleType, operation: object) -> Mutations:
    plugin.operation = operation  # type: ignore[attr-defined]
    return Mutations.installed([point("flip")])


def test_a_plugin_is_an_operation_like_any(plugin: ModuleType) -> None:
    mutations = installed(plugin, FLIP)
    done = mutations.apply("flip", {"times": 3}, [image()])
    assert torch.equal(done.image.view(WKV), image().view(WKV).flip(-1))
    assert done.provenance.parameters["times"] == 3
    again = mutations.replay(done.provenance, [image()])
    assert torch.equal(again.image.record, done.image.record)


def test_a_plugins_parameters_are_checked(plugin: ModuleType) -> None:
    with pytest.raises(InvalidParameterError, match="times"):
        installed(plugin, FLIP).apply("flip", {"times": "three"}, [image()])


def test_without_plugins_there_is_no_such_operation() -> None:
    with pytest.raises(InvalidParameterError, match="operation"):
        Mutations.installed([]).apply("flip", {}, [image()])


def test_a_plugin_that_cannot_be_imported_is_named_and_stops_no_other(plugin: ModuleType) -> None:
    plugin.operation = FLIP  # type: ignore[attr-defined]
    gone = EntryPoint("gone", "no_such_module_anywhere:operation", GROUP)
    mutations = Mutations.installed([gone, point("flip")])
    assert "no_such_module_anywhere" in mutations.broken["gone"]
    with pytest.raises(MutationFailedError, match=r"'gone'.*no_such_module_anywhere"):
        mutations.apply("gone", {}, [image()])
    mutations.apply("flip", {}, [image()])


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (flip, "not an Operation"),
        (Operation("flop", Flip, flip), "'flop'"),
        (Operation("flip", dict, flip), "no Parameters"),  # type: ignore[type-var, arg-type]
        (Operation("flip", Flip, flip, min_parents=2), "2 to 1"),
    ],
)
def test_what_is_no_operation_is_broken(plugin: ModuleType, operation: Any, why: str) -> None:
    mutations = installed(plugin, operation)
    assert why in mutations.broken["flip"]


def test_a_plugin_cannot_take_the_name_of_a_builtin_operation(plugin: ModuleType) -> None:
    plugin.operation = Operation("decay", Flip, flip)  # type: ignore[attr-defined]
    mutations = Mutations.installed([point("decay")])
    assert "exists already" in mutations.broken["plugin_of_the_tests:operation"]
    done = mutations.apply("decay", {"factor": 0}, [image()])
    assert not done.image.view(WKV).any()


def test_a_plugin_that_raises_is_named(plugin: ModuleType) -> None:
    mutations = installed(plugin, Operation("flip", Flip, raises))
    with pytest.raises(MutationFailedError, match=r"'flip'.*ZeroDivisionError: far inside"):
        mutations.apply("flip", {}, [image()])


def test_a_plugin_that_writes_does_not_reach_the_parent(plugin: ModuleType) -> None:
    parent = image()
    mutations = installed(plugin, Operation("flip", Flip, write_into_the_parent))
    assert not mutations.apply("flip", {}, [parent]).image.view(WKV).any()
    assert torch.equal(parent.record, image().record)


def test_a_plugins_result_that_is_not_finite_is_refused(plugin: ModuleType) -> None:
    bad = image().view(WKV) / 0
    with pytest.raises(StateNotFiniteError):
        installed(plugin, returns({WKV: bad})).apply("flip", {}, [image()])


@pytest.mark.parametrize(
    "value",
    [
        None,
        {WKV: 1.0},
        {WKV: torch.zeros(1)},
        {WKV: image().view(WKV).int()},
        {"rwkv7.ring": torch.zeros(3, 2, 7, 4, 4)},
        {"rwkv7.ring_fill": torch.zeros(1)},
        {"other": torch.zeros(1)},
    ],
)
def test_a_plugins_result_that_does_not_fit_is_refused(plugin: ModuleType, value: Any) -> None:
    with pytest.raises(MutationFailedError, match="'flip'"):
        installed(plugin, returns(value)).apply("flip", {}, [image(ring=True)])
