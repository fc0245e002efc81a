"""Distances of states: of tensors, layers and heads."""

import json
from dataclasses import replace

import pytest
import torch

from tests.state.random_images import HEAD, KINDS, N_HEADS, N_LAYERS, image
from wkvm.core.errors import InvalidParameterError, StateMismatchError, StateNotFiniteError
from wkvm.state.difference import Distance, difference
from wkvm.state.image import StateImage
from wkvm.state.mutations import Mutations

WKV, ATT, FFN = "rwkv7.wkv", "rwkv7.att_shift", "rwkv7.ffn_shift"
NONE = Distance(0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_family_a_state_has_no_distance_from_itself(kind: str) -> None:
    found = difference(image(kind=kind), image(kind=kind))
    assert found.equal
    assert all(one.whole == NONE for one in found.tensors)
    names = {spec.name for spec in image(kind=kind).layout.tensors} - {"guest.n_tokens"}
    assert {one.name for one in found.tensors} - {"guest.pages"} == names


def test_a_change_of_one_head_of_one_attention_layer_is_seen_there_alone() -> None:
    one, other = (image(kind="gdn+guest", n_computed=70) for _ in range(2))
    other.view("guest.pages")[1, 1, :, :6, 2] = 0
    *others, pages = difference(one, other).tensors
    assert pages.name == "guest.pages"
    assert all(distance.whole == NONE for distance in others)
    changed = one.view("guest.pages")[1, 1, :, :6, 2].double()
    of_head = one.view("guest.pages")[:, 1, :, :, 2].double()
    assert pages.layers[1].heads[2].relative == pytest.approx(
        float(changed.norm() / of_head.norm())
    )
    assert pages.layers[1].heads[2].max_abs == float(changed.abs().max())
    assert [layer.whole == NONE for layer in pages.layers] == [True, False]
    assert [head == NONE for head in pages.layers[1].heads] == [True, True, False]


@pytest.mark.parametrize("n_tokens", [1, 64, 70])
def test_pages_are_compared_as_far_as_both_states_have_tokens(n_tokens: int) -> None:
    one = image(kind="gdn+guest", n_computed=n_tokens)
    longer = image(kind="gdn+guest", n_computed=200)
    for page in range(len(one.view("guest.pages"))):
        n = min(64, n_tokens - 64 * page)
        one.view("guest.pages")[page, :, :, :n] = longer.view("guest.pages")[page, :, :, :n]
    found = difference(one, longer)
    assert not found.equal
    assert found.tensors[-1].whole == NONE
    longer.view("guest.pages")[(n_tokens - 1) // 64, 0, 0, (n_tokens - 1) % 64] += 1
    assert difference(longer, one).tensors[-1].whole != NONE


def test_without_tokens_there_are_no_pages_to_compare() -> None:
    empty = image(kind="gdn+guest", n_computed=0)
    assert [one.name for one in difference(empty, image(kind="gdn+guest")).tensors] == [
        "gdn.delta",
        "gdn.conv",
    ]


def test_pages_that_are_not_finite_are_refused() -> None:
    other = image(kind="gdn+guest")
    other.view("guest.pages")[0, 0, 0, 0] = torch.inf
    with pytest.raises(StateNotFiniteError, match=r"guest\.pages"):
        difference(image(kind="gdn+guest"), other)


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
