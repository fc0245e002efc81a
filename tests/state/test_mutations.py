"""Each operation gives the state that the documentation says, or raises and gives none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.state.random_images import HEAD, KINDS, N_HEADS, N_LAYERS, image
from wkvm.core.errors import InvalidParameterError, StateMismatchError, StateNotFiniteError
from wkvm.core.registry import Parent
from wkvm.state.arithmetic import noise, not_finite, squares
from wkvm.state.image import StateImage
from wkvm.state.mutations import Mutations
from wkvm.state.operations import BUILTIN

WKV, ATT, FFN = "rwkv7.wkv", "rwkv7.att_shift", "rwkv7.ffn_shift"

MUTATIONS = Mutations()

EXAMPLES: dict[str, tuple[dict[str, Any], int]] = {
    "decay": ({"factor": 0.5}, 1),
    "scale": ({"factor": -2}, 1),
    "blend": ({"weights": [0.25, 0.75]}, 2),
    "add": ({"weight": 0.5}, 2),
    "subtract": ({}, 2),
    "reset": ({"layers": [1]}, 1),
    "transplant": ({"layers": [0, 2]}, 2),
    "noise": ({"deviation": 0.1, "seed": 7}, 1),
    "clip": ({"max_abs": 0.5, "max_norm": 1.0}, 1),
    "cast": ({"dtype": "bfloat16"}, 1),
}
"""Of each operation: parameters, and how many parents."""


def mutated(name: str, parameters: Mapping[str, Any], *parents: StateImage) -> dict[str, Tensor]:
    return MUTATIONS.apply(name, parameters, parents or [image()]).image.views()


def of(seed: int = 0) -> dict[str, Tensor]:
    return image(seed).views()


def test_every_operation_has_an_example_here() -> None:
    assert EXAMPLES.keys() == {one.name for one in BUILTIN}


def parents_of(name: str, kind: str, dtype: str = "float32") -> list[StateImage]:
    """As many as the example takes, of any memory. Their attention layers keep the same."""
    return [image(seed, dtype, kind=kind, pages=9) for seed in range(EXAMPLES[name][1])]


EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@EVERY_KIND
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_parents_are_not_changed(name: str, kind: str) -> None:
    parents = parents_of(name, kind)
    MUTATIONS.apply(name, EXAMPLES[name][0], parents)
    for parent, before in zip(parents, parents_of(name, kind), strict=True):
        assert torch.equal(parent.record, before.record)


@EVERY_KIND
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_travels_beside_the_tensors_is_the_first_parents(name: str, kind: str) -> None:
    parents = parents_of(name, kind)
    result = MUTATIONS.apply(name, EXAMPLES[name][0], parents).image
    first = parents[0]
    assert result.token_ids == first.token_ids
    assert result.carried == first.carried
    assert result.identity == first.identity


@EVERY_KIND
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_operation_changes_the_memory_of_every_family(name: str, kind: str) -> None:
    parents = parents_of(name, kind)
    result = MUTATIONS.apply(name, EXAMPLES[name][0], parents).image
    memory = result.layout.tensors[0].name
    assert not torch.equal(result.view(memory), parents[0].view(memory))


@EVERY_KIND
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replay_of_the_record_has_the_same_bytes(name: str, dtype: str, kind: str) -> None:
    parameters, parents = EXAMPLES[name][0], parents_of(name, kind, dtype)
    once = MUTATIONS.apply(name, parameters, parents)
    again = MUTATIONS.replay(once.provenance, parents)
    assert torch.equal(again.image.record, once.image.record)
    assert again.provenance == once.provenance


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_do_not_depend_on_the_number_of_threads(name: str) -> None:
    parameters, n_parents = EXAMPLES[name]
    parents = [image(seed) for seed in range(n_parents)]
    before = torch.get_num_threads()
    try:
        results = list[Tensor]()
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            results.append(MUTATIONS.apply(name, parameters, parents).image.record)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_attention_layers_keep_is_carried_unchanged(name: str) -> None:
    parents = parents_of(name, "gdn+guest")
    result = MUTATIONS.apply(name, EXAMPLES[name][0], parents).image
    for tensor in ("guest.pages", "guest.n_tokens"):
        assert torch.equal(result.view(tensor), parents[0].view(tensor))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("tensor", ["guest", "pages", "guest.pages", "guest.n_tokens"])
def test_what_attention_layers_keep_is_not_to_be_changed(name: str, tensor: str) -> None:
    parameters = {**EXAMPLES[name][0], "tensors": ["matrices", tensor]}
    with pytest.raises(InvalidParameterError, match="rollback") as caught:
        MUTATIONS.apply(name, parameters, parents_of(name, "gdn+guest"))
    assert caught.value.field == "tensors"


@pytest.mark.parametrize("name", ["blend", "add", "subtract"])
def test_two_histories_of_attention_layers_are_not_joined(name: str) -> None:
    first = image(0, kind="gdn+guest", pages=9)
    others = image(1, kind="gdn+guest", pages=8), image(1, kind="gdn+guest", pages=9, n_computed=6)
    for other in others:
        with pytest.raises(InvalidParameterError, match="no mean of two histories") as caught:
            MUTATIONS.apply(name, EXAMPLES[name][0], [first, other])
        assert caught.value.field == "parents"


def test_layers_of_the_recurrence_are_transplanted_between_two_histories() -> None:
    first, second = (image(seed, kind="gdn+guest") for seed in (0, 1))
    result = MUTATIONS.apply("transplant", {"layers": [1]}, [first, second]).image
    assert torch.equal(result.view("gdn.delta")[1], second.view("gdn.delta")[1])
    assert torch.equal(result.view("gdn.delta")[0], first.view("gdn.delta")[0])
    assert torch.equal(result.view("guest.pages"), first.view("guest.pages"))


def test_a_family_is_named_like_its_tensors() -> None:
    for kind in KINDS:
        family = kind.partition("+")[0]
        result = MUTATIONS.apply("reset", {"tensors": [family]}, [image(kind=kind)]).image.views()
        empty = {name.partition(".")[0] for name, view in result.items() if not view.any()}
        assert empty == {family}


def test_a_record_has_all_parameters_parents_and_the_seed() -> None:
    refs = [Parent(ref="story@3", content_id="ab")]
    done = MUTATIONS.apply("noise", {"deviation": 1, "seed": 7}, [image()], refs=refs).provenance
    assert done.operation == "noise"
    assert done.parameters == {
        "tensors": ["matrices"],
        "layers": None,
        "deviation": 1.0,
        "seed": 7,
        "relative": True,
        "revision": 1,
    }
    assert done.parents == tuple(refs)
    assert (done.seed, done.n_before, done.n_after) == (7, 5, 5)


def test_a_record_of_another_revision_is_not_replayed() -> None:
    done = MUTATIONS.apply("decay", {"factor": 0.5}, [image()]).provenance
    old = replace(done, parameters={**done.parameters, "revision": 0})
    with pytest.raises(InvalidParameterError, match="revision 0"):
        MUTATIONS.replay(old, [image()])


def test_decay_takes_the_matrices_and_leaves_the_shifts() -> None:
    after, before = mutated("decay", {"factor": 0.5}), of()
    assert torch.equal(after[WKV], before[WKV] * 0.5)
    assert torch.equal(after[ATT], before[ATT])
    assert torch.equal(after[FFN], before[FFN])


def test_decay_of_selected_layers_leaves_the_others() -> None:
    after, before = mutated("decay", {"factor": [0.5, 0], "layers": [2, 0]}), of()
    assert torch.equal(after[WKV][2], before[WKV][2] * 0.5)
    assert not after[WKV][0].any()
    assert torch.equal(after[WKV][1], before[WKV][1])


def test_decay_of_selected_heads_leaves_the_others() -> None:
    factors: list[Any] = [1, [1, 0.25], 1]
    after, before = mutated("decay", {"factor": factors}), of()
    before[WKV][1, 1] *= 0.25
    assert torch.equal(after[WKV], before[WKV])


def test_shifts_are_changed_where_they_are_named() -> None:
    after, before = mutated("scale", {"factor": 3, "tensors": ["shifts"]}), of()
    assert torch.equal(after[ATT], before[ATT] * 3)
    assert torch.equal(after[WKV], before[WKV])


def test_a_blend_is_the_weighted_mean() -> None:
    parents = [image(seed) for seed in range(3)]
    after = mutated("blend", {"weights": [0.5, 0.25, 0.25]}, *parents)
    expected = of(0)[WKV] * 0.5 + of(1)[WKV] * 0.25 + of(2)[WKV] * 0.25
    assert torch.equal(after[WKV], expected)
    assert torch.equal(after[ATT], of(0)[ATT])


def test_subtract_undoes_add() -> None:
    total = MUTATIONS.apply("add", {"weight": 0.5}, [image(0), image(1)]).image
    after = mutated("subtract", {"weight": 0.5}, total, image(1))
    assert torch.allclose(after[WKV], of(0)[WKV], atol=1e-6)


def test_reset_of_all_is_the_empty_state_with_its_log() -> None:
    result = MUTATIONS.apply("reset", {}, [image()]).image
    assert not result.record.any()
    assert result.token_ids == image().token_ids


def test_reset_by_family_is_reset_of_its_tensors() -> None:
    assert not any(tensor.any() for tensor in mutated("reset", {"tensors": ["rwkv7"]}).values())


def test_a_transplanted_layer_is_whole() -> None:
    after = mutated("transplant", {"layers": [1]}, image(0), image(1))
    for name, tensor in after.items():
        assert torch.equal(tensor[1], of(1)[name][1])
        assert torch.equal(tensor[0], of(0)[name][0])


def test_noise_of_a_seed_is_these_numbers() -> None:
    numbers = noise(7, WKV, 1, 4)
    assert numbers.tolist() == pytest.approx(NUMBERS, abs=1e-7)


NUMBERS = [-1.6098510026931763, 0.652178168296814, -0.4292849004268646, 0.3019440174102783]


def test_noise_has_mean_0_and_deviation_1() -> None:
    numbers = noise(3, WKV, 0, 200_000)
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01


def test_noise_of_a_layer_does_not_depend_on_which_others_get_some() -> None:
    parameters = {"deviation": 0.5, "seed": 1}
    alone = mutated("noise", {**parameters, "layers": [2]})
    together = mutated("noise", parameters)
    assert torch.equal(alone[WKV][2], together[WKV][2])
    assert not torch.equal(together[WKV][1] - of()[WKV][1], together[WKV][2] - of()[WKV][2])


def test_relative_noise_is_as_large_as_the_matrix_it_is_for() -> None:
    large = MUTATIONS.apply("scale", {"factor": 100}, [image()]).image
    parameters = {"deviation": 0.1, "seed": 1}
    added = mutated("noise", parameters, large)[WKV] - large.views()[WKV]
    assert torch.allclose(added, 100 * (mutated("noise", parameters)[WKV] - of()[WKV]), atol=1e-3)


def test_clip_bounds_elements_and_norms() -> None:
    assert mutated("clip", {"max_abs": 0.5})[WKV].abs().max() == 0.5
    norms = mutated("clip", {"max_norm": 2})[WKV].flatten(2).norm(dim=2)
    assert (norms < 2 + 1e-5).all()


def test_clip_leaves_what_is_small_enough() -> None:
    after = mutated("clip", {"max_abs": 100, "max_norm": 100})
    assert torch.equal(after[WKV], of()[WKV])


def test_a_cast_that_keeps_the_layout_rounds() -> None:
    after = mutated("cast", {"dtype": "float16"})[WKV]
    assert after.dtype is torch.float32
    assert torch.equal(after, of()[WKV].half().float())


def test_a_cast_to_another_layout_says_so_in_the_identity() -> None:
    result = MUTATIONS.apply("cast", {"dtype": "float16", "keep_layout": False}, [image()]).image
    assert result.views()[WKV].dtype is torch.float16
    assert result.views()[ATT].dtype is torch.float32
    assert torch.equal(result.views()[WKV], of()[WKV].half())
    assert result.identity.fingerprint == result.layout.fingerprint != image().layout.fingerprint


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("decay", {"factor": float("nan")}, "factor"),
    ("decay", {"factor": float("inf")}, "factor"),
    ("decay", {"factor": 1.01}, "factor"),
    ("decay", {"factor": -1e-9}, "factor"),
    ("decay", {"factor": True}, "factor"),
    ("decay", {"factor": "1"}, "factor"),
    ("decay", {}, "parameters"),
    ("decay", {"factor": [0.5]}, "factor"),
    ("decay", {"factor": [[0.5], [1, 1], 1]}, "factor"),
    ("decay", {"factor": [[float("nan"), 1], 1, 1]}, "factor"),
    ("decay", {"factor": [[0.5, 1], 1, 1], "tensors": ["shifts"]}, "factor"),
    ("decay", {"factor": 0.5, "layers": [N_LAYERS]}, "layers"),
    ("decay", {"factor": 0.5, "layers": [-1]}, "layers"),
    ("decay", {"factor": 0.5, "layers": [0, 0]}, "layers"),
    ("decay", {"factor": 0.5, "layers": []}, "layers"),
    ("decay", {"factor": 0.5, "layers": [2**70]}, "layers"),
    ("decay", {"factor": 0.5, "tensors": ["mamba2"]}, "tensors"),
    ("decay", {"factor": 0.5, "tensors": ["rwkv7.ring"]}, "tensors"),
    ("decay", {"factor": 0.5, "tensors": []}, "tensors"),
    ("decay", {"factor": 0.5, "extra": 1}, "parameters"),
    ("scale", {"factor": 1e308}, "factor"),
    ("noise", {"deviation": 1.0}, "parameters"),
    ("noise", {"deviation": -1.0, "seed": 1}, "deviation"),
    ("noise", {"deviation": 1.0, "seed": -1}, "seed"),
    ("noise", {"deviation": 1.0, "seed": 2**63}, "seed"),
    ("clip", {}, "max_abs"),
    ("clip", {"max_abs": 0}, "max_abs"),
    ("cast", {"dtype": "int8"}, "dtype"),
    ("cast", {"dtype": "float16", "keep_layout": False, "layers": [0]}, "keep_layout"),
    ("evaporate", {}, "operation"),
]


@pytest.mark.parametrize(("name", "parameters", "field"), BAD)
def test_bad_parameters_are_refused_by_field(
    name: str, parameters: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidParameterError) as raised:
        MUTATIONS.apply(name, parameters, [image(ring=True)])
    assert raised.value.field == field


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1]])
def test_weights_that_are_no_shares_are_refused(weights: Sequence[float]) -> None:
    with pytest.raises(InvalidParameterError, match="weights"):
        MUTATIONS.apply("blend", {"weights": weights}, [image(0), image(1)])


def test_a_transplant_of_no_layers_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="layers"):
        MUTATIONS.apply("transplant", {}, [image(0), image(1)])


@pytest.mark.parametrize("n_parents", [0, 2])
def test_another_number_of_parents_is_refused(n_parents: int) -> None:
    with pytest.raises(InvalidParameterError, match="parents"):
        MUTATIONS.apply("decay", {"factor": 1}, [image()] * n_parents)


@pytest.mark.parametrize("other", [image(1, "float16"), image(1, model="cc")])
def test_parents_of_different_models_or_layouts_are_refused(other: StateImage) -> None:
    with pytest.raises(StateMismatchError):
        MUTATIONS.apply("add", {}, [image(0), other])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [WKV, ATT])
def test_a_result_that_is_not_finite_is_refused(bad: float, name: str) -> None:
    parent = image()
    parent.views()[name].view(-1)[-1] = bad
    with pytest.raises(StateNotFiniteError):
        MUTATIONS.apply("decay", {"factor": 0.5}, [parent])


def test_a_result_that_overflows_its_dtype_is_refused() -> None:
    parent = image(dtype="float16")
    parent.views()[WKV].view(-1)[0] = 6e4
    with pytest.raises(StateNotFiniteError):
        MUTATIONS.apply("scale", {"factor": 2}, [parent])


def test_subnormal_numbers_are_finite() -> None:
    assert not_finite({"x": torch.tensor([1e-45, -1e-45])}) is None


def test_squares_are_summed_in_float64_over_any_length() -> None:
    for n in range(1, 20):
        x = torch.arange(1, n + 1, dtype=torch.float32).expand(2, n)
        assert squares(x).tolist() == [sum(i * i for i in range(1, n + 1))] * 2


def test_tokens_in_the_ring_are_folded_first_and_the_ring_is_left_empty() -> None:
    parent = image(ring=True, waiting=3)

    def fold(one: StateImage) -> StateImage:
        whole = replace(one, record=image(9, ring=True).record)
        whole.views()["rwkv7.ring"].zero_()
        return whole

    after = MUTATIONS.apply("decay", {"factor": 0.5}, [parent], fold=fold).image.views()
    assert torch.equal(after[WKV], of(9)[WKV] * 0.5)
    assert not after["rwkv7.ring_fill"].any()
    assert not after["rwkv7.ring"].any()


def test_every_parent_with_tokens_in_its_ring_is_folded() -> None:
    folds = list[StateImage]()

    def fold(one: StateImage) -> StateImage:
        folds.append(one)
        return image(9, ring=True)

    parents = [image(0, ring=True), image(1, ring=True, waiting=1)]
    MUTATIONS.apply("add", {}, parents, fold=fold)
    assert folds == [parents[1]]


def test_tokens_in_the_ring_are_never_forgotten() -> None:
    with pytest.raises(InvalidParameterError, match="3 tokens wait"):
        MUTATIONS.apply("decay", {"factor": 0.5}, [image(ring=True, waiting=3)])


def test_what_lies_in_an_empty_ring_does_not_get_into_the_result() -> None:
    after = MUTATIONS.apply("decay", {"factor": 1}, [image(ring=True)]).image.views()
    assert not after["rwkv7.ring"].any()


def test_the_example_state_has_the_sizes_of_the_tests() -> None:
    assert of()[WKV].shape == (N_LAYERS, N_HEADS, HEAD, HEAD)
