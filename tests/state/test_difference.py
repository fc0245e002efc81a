"""Distances of states: of tensors, layers and heads."""

import json
from dataclasses import replace

import pytest
import torch

from tests.state.random_images import HEAD, N_HEADS, N_LAYERS, image
from wkvm.core.errors import InvalidParameterError, StateMismatchError, StateNotFiniteError
from wkvm.state.difference import Distance, difference
from wkvm.state.image import StateImage
from wkvm.state.mutations import Mutations

WKV, ATT, FFN = "rwkv7.wkv", "rwkv7.att_shift", "rwkv7.ffn_shift"
NONE = Distance(0.0, 0.0)


def test_a_state_has_no_distance_from_itself() -> None:
    found = difference(image(), image())
    assert found.equal
    assert found.n_common == 5
    assert [one.name for one in found.tensors] == [WKV, ATT, FFN]
    assert all(one.whole == NONE for one in found.tensors)


def test_a_change_of_one_head_is_seen_there_and_in_its_layer_alone() -> None:
    other = image()
    other.view(WKV)[1, 1] = 0
    matrices, *shifts = difference(image(), other).tensors
    assert matrices.layers[1].heads[0] == NONE
    assert matrices.layers[1].heads[1].relative == 1.0
    assert matrices.layers[1].heads[1].max_abs == float(image().view(WKV)[1, 1].abs().max())
    assert 0 < matrices.whole.relative < matrices.layers[1].whole.relative < 1
    assert [layer.whole == NONE for layer in matrices.layers] == [True, False, True]
    assert all(one.whole == NONE for one in shifts)


def test_distances_are_those_of_norms() -> None:
    a, b = image(0).view(WKV).double(), image(1).view(WKV).double()
    found = difference(image(0), image(1)).tensors[0]
    expected = float((a - b).norm() / max(a.norm(), b.norm()))
    assert found.whole.relative == pytest.approx(expected, rel=1e-12)
    assert found.whole.max_abs == float((a - b).abs().max())
    assert (len(found.layers), len(found.layers[0].heads)) == (N_LAYERS, N_HEADS)
    assert a.shape[-1] == HEAD


def test_the_order_of_two_states_does_not_matter() -> None:
    forth, back = difference(image(0), image(1)), difference(image(1), image(0))
    assert forth == back


def test_opposite_states_have_distance_two() -> None:
    other = Mutations().apply("scale", {"factor": -1}, [image()]).image
    assert difference(image(), other).tensors[0].whole.relative == 2.0


def test_empty_states_have_no_distance() -> None:
    empty = Mutations().apply("reset", {}, [image()]).image
    assert difference(empty, empty).tensors[0].whole == NONE


def test_logs_are_compared_from_their_start() -> None:
    ids = torch.tensor([0, 1, 7, 3, 4], dtype=torch.int32).numpy().tobytes()
    assert difference(image(), replace(image(), token_ids=ids)).n_common == 2
    assert difference(image(), image(n_computed=3)).n_common == 3


def test_numbers_are_plain() -> None:
    found = difference(image(0), image(1)).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))


@pytest.mark.parametrize("other", [image(1, "float16"), image(1, model="cc")])
def test_a_foreign_state_is_refused(other: StateImage) -> None:
    with pytest.raises(StateMismatchError):
        difference(image(), other)


def test_a_state_that_is_not_finite_is_refused() -> None:
    other = image()
    other.view(ATT)[0, 0] = torch.nan
    with pytest.raises(StateNotFiniteError):
        difference(image(), other)


def test_rings_are_taken_in_before_states_are_compared() -> None:
    waiting, folded = image(0, ring=True, waiting=2), image(9, ring=True)
    found = difference(waiting, folded, fold=lambda one: folded)
    assert found.tensors[0].whole == NONE
    assert not found.equal
    with pytest.raises(InvalidParameterError, match="2 tokens wait"):
        difference(waiting, folded)
