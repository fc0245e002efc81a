"""On a GPU: pages go down and come up with the same bits, in the order asked for, beside others."""

import pytest
import torch

from tests.engine.test_gpu_states import no_waiting
from wkvm.core.layout import GuestSpec
from wkvm.engine.page_mover import BLOCK_BYTES, PageMover
from wkvm.state.guest import GuestPool

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("head_dim", [8, 256 * 1024])
def test_pages_that_went_down_and_up_have_the_same_bits(head_dim: int) -> None:
    """Pages far smaller than a block, and larger ones."""
    spec = GuestSpec(n_layers=1, n_parts=1, n_heads=1, head_dim=head_dim, dtype="bfloat16")
    pool = GuestPool(spec, 9, 1, "cuda")
    pool.page_bytes.copy_(torch.randint(0, 256, pool.page_bytes.shape, dtype=torch.uint8))
    before = pool.page_bytes.cpu()
    host = torch.empty(4 * spec.page_bytes, dtype=torch.uint8)
    mover = PageMover(pool)
    with no_waiting():
        down = mover.down((5, 6, 1, 8), host)
    down.wait(60)
    assert down.error is None
    assert torch.equal(host.view(4, -1), before[[5, 6, 1, 8]])
    with no_waiting():
        up = mover.up((0, 2, 3, 4), host)
    up.wait(60)
    assert up.error is None
    after = pool.page_bytes.cpu()
    assert torch.equal(after[[0, 2, 3, 4]], before[[5, 6, 1, 8]])
    assert torch.equal(after[[1, 5, 6, 7, 8]], before[[1, 5, 6, 7, 8]])
    assert (spec.page_bytes > BLOCK_BYTES) == (head_dim > 8)
