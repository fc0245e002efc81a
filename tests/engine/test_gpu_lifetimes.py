"""On a GPU: what graphs read by its address alone lies in no memory that is free. Needs a GPU."""

import random

import pytest
import torch
from torch import Tensor

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Outcome
from tests.engine.fake_gpu import AheadDriver
from tests.engine.test_exactness import text_ids
from wkvm.core.config import EngineConfig
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.registry import load_model

pytestmark = pytest.mark.gpu

N_ROWS = 130
"""Enough for kernels of a few rows, of tens and of hundreds."""


def fill_free_memory() -> int:
    """Overwrite all that torch's allocator holds for reuse; how many bytes that was.

    As numbers it is what no address, offset, or slot may be.
    """
    torch.cuda.synchronize()
    taken = list[Tensor]()
    n_reserved = torch.cuda.memory_reserved()
    # Large blocks first: small tensors would be cut from them.
    for n_bytes in [1 << shift for shift in range(30, 8, -1)]:
        while True:
            tensor = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
            if torch.cuda.memory_reserved() > n_reserved:
                # It is new memory, so nothing of this size is free any more.
                n_reserved = torch.cuda.memory_reserved()
                break
            taken.append(tensor.fill_(0x55))
    torch.cuda.synchronize()
    return sum(tensor.nbytes for tensor in taken)


def run(engine: Engine) -> list[Outcome]:
    """Requests that begin one after another and end one after another: every bucket is replayed."""
    rng, text = random.Random(5), text_ids()
    driver = AheadDriver(engine)
    for at in range(N_ROWS):
        start, n = rng.randrange(len(text) - 300), rng.choice((1, 7, 64, 65, 300))
        params = SamplingParams(
            top_p=rng.choice((0.9, 1.0)),
            frequency_penalty=rng.choice((0.0, 0.5)),
            max_tokens=8 + at // 4,
            ignore_eos=True,
            seed=at,
        )
        driver.submit(tuple(text[start : start + n]), params)
    while not driver.is_idle:
        driver.step()
    driver.land()
    return list(driver.outcomes.values())


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_ids_are_the_same_when_all_free_memory_was_overwritten(quantization: str) -> None:
    model = load_model(BUNDLED, device="cuda", dtype="bfloat16", quantization=quantization)
    engine = Engine(model, EngineConfig(n_slots=N_ROWS))
    before = run(engine)
    assert fill_free_memory() > 0
    after = run(engine)
    assert [one.ids for one in after] == [one.ids for one in before]
    assert all(len(one.ids) >= 8 for one in after)
