"""The plans of deterministic decode steps: what all of them must have in common."""

from dataclasses import fields

import pytest

from tests.interpreter import needs_triton

pytestmark = needs_triton
BUCKETS = (1, 2, 4, 5, 8, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 257, 512, 513, 1024)
CUTS = ("first", "second", "output", "key", "value", "head")


@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize("is_quantised", [False, True])
def test_every_plan_cuts_sums_at_the_same_places(item_bytes: int, is_quantised: bool) -> None:
    from wkvm.kernels.rwkv7_decode import Blocks
    from wkvm.models.rwkv7_plans import plan_of

    plans = [
        plan_of(n, item_bytes, is_quantised=is_quantised, is_deterministic=True) for n in BUCKETS
    ]
    for name in CUTS:
        cuts = [getattr(plan, name) for plan in plans]
        assert all(isinstance(cut, Blocks) for cut in cuts)
        # Where there are parts, their ends depend on the terms of a block as well.
        assert len({(cut.n_splits, cut.k if cut.n_splits > 1 else None) for cut in cuts}) == 1


def test_every_plan_has_the_same_kernels_with_the_same_warps() -> None:
    from wkvm.models.rwkv7_plans import Plan, plan_of

    plans = [plan_of(n, is_deterministic=True) for n in BUCKETS]
    # When a launch begins, and what it brings into a cache, is not in any bit.
    free = {*CUTS, "pdl", "looks_ahead"}
    for field in fields(Plan):
        if field.name not in free:
            assert len({getattr(plan, field.name) for plan in plans}) == 1, field.name


def test_the_fast_plans_are_not_deterministic() -> None:
    from wkvm.models.rwkv7_plans import plan_of

    assert plan_of(1).fuses_norms != plan_of(256).fuses_norms
