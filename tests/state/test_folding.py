"""States with tokens in a ring: folded on the host."""

import torch

from tests.state.random_images import HEAD, N_HEADS, N_LAYERS, image
from wkvm.kernels.ring import fold as ring_fold
from wkvm.state.difference import difference
from wkvm.state.folding import fold_with, n_waiting
from wkvm.state.mutations import Mutations

VECTORS = torch.randn(N_LAYERS, 8, N_HEADS * HEAD, generator=torch.Generator().manual_seed(1))
FOLD = fold_with(VECTORS)


def test_a_folded_image_has_an_empty_ring_and_the_matrices_of_the_kernel() -> None:
    given = image(4, ring=True, waiting=3)
    folded = FOLD(given)
    expected = given.view("rwkv7.wkv")[None].clone()
    ring, fill = (given.view(name)[None].clone() for name in ("rwkv7.ring", "rwkv7.ring_fill"))
    ring_fold(expected, ring, fill, VECTORS, torch.tensor([0]))
    assert torch.equal(folded.view("rwkv7.wkv"), expected[0])
    assert not torch.equal(folded.view("rwkv7.wkv"), given.view("rwkv7.wkv"))
    assert n_waiting(folded) == 0
    assert not folded.view("rwkv7.ring").any()


def test_the_image_that_is_folded_is_not_changed() -> None:
    given = image(4, ring=True, waiting=3)
    FOLD(given)
    assert given.record.equal(image(4, ring=True, waiting=3).record)
    assert n_waiting(given) == 3


def test_what_is_carried_stays() -> None:
    given = image(4, ring=True, waiting=3)
    folded = FOLD(given)
    assert (folded.carried, folded.token_ids) == (given.carried, given.token_ids)


def test_a_state_and_its_fold_have_no_distance() -> None:
    given = image(4, ring=True, waiting=3)
    found = difference(given, FOLD(given), fold=FOLD)
    assert all(one.whole.max_abs == 0 for one in found.tensors)


def test_a_mutation_of_a_ring_is_one_of_the_folded_state() -> None:
    given = image(4, ring=True, waiting=3)
    mutations = Mutations()
    of_ring = mutations.apply("decay", {"factor": 0.5}, [given], fold=FOLD)
    of_folded = mutations.apply("decay", {"factor": 0.5}, [FOLD(given)])
    assert torch.equal(of_ring.image.record, of_folded.image.record)
