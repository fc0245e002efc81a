"""The plans of steps with quantised weights: products that can widen them, at every size."""

import pytest

from tests.interpreter import needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize("width", [2048, 4096])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_quantised_matrices_go_through_products_that_widen_them(
    width: int, is_deterministic: bool
) -> None:
    from wkvm.kernels.rwkv7_decode import Blocks
    from wkvm.models.rwkv7_plans import Gemv, plan_of

    for n_rows in (1, 2, 4, 5, 16, 17, 64, 65, 128, 129, 256, 512, 513, 1024, 4096):
        plan = plan_of(n_rows, width=width, is_quantised=True, is_deterministic=is_deterministic)
        for cut in (plan.first, plan.output, plan.key, plan.value):
            assert isinstance(cut, Blocks | Gemv), (n_rows, cut)
        # What the first product does not make would have to come from the library's side stream.
        assert plan.hidden is None
