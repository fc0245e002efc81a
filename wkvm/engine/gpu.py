"""A GPU's runner, ready to serve: graphs captured, kernels compiled, every path run once.

Imports Triton, which takes seconds, so import this late.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from wkvm.core.config import EngineConfig
from wkvm.core.layout import PAGE_TOKENS, pages_for
from wkvm.core.plan import RowPlan, StepPlan
from wkvm.core.sampling import SamplingParams
from wkvm.engine.gpu_runner import GpuRunner
from wkvm.engine.graphs import DecodeGraphs, buckets_for
from wkvm.engine.slot_table import SlotTable
from wkvm.models.base import Batch, Model
from wkvm.state.arena import Arena

logger = logging.getLogger(__name__)

WARM_UP_LENGTHS = (1, 3, 64, 65)
"""Prompts of the warm-up: one token, a few, a whole chunk and more than one."""

N_WARM_UP_SLOTS = len(WARM_UP_LENGTHS)

PROMPT_LENGTHS = (64, 512, 2048)
"""Tokens of prompts that kernels are compiled for."""


def make_gpu_runner(model: Model, arena: Arena, config: EngineConfig) -> GpuRunner:
    """The runner of an engine on a GPU. Progress goes to the log."""
    began = time.monotonic()
    n_rows = buckets_for(config.n_slots)[-1]
    sampler = SlotTable(config.n_slots, model.info.vocab_size, model.info.device, max_rows=n_rows)
    graphs = DecodeGraphs(model, arena.views, sampler, n_slots=config.n_slots)
    n_tokens = lend_pages(arena, config.max_prompt_tokens)

    def progress(n_done: int, n: int) -> None:
        logger.info(
            "kernels: %d of %d kinds are ready after %.1f s",
            n_done,
            n,
            time.monotonic() - began,
        )

    with torch.inference_mode():
        graphs.capture(progress, beside=_prompts(model, arena, n_tokens))
        model.capture_prompts(arena.views)
    runner = GpuRunner(model, arena, sampler, graphs, poison_freed=config.poison_freed_slots)
    captured_s = time.monotonic() - began
    warm_up(runner, n_slots=config.n_slots, n_tokens=n_tokens)
    take_pages(arena)
    logger.info(
        "%d graphs of 1 to %d rows captured after %.1f s, prompts warm after %.1f s",
        len(graphs.buckets),
        graphs.buckets[-1],
        captured_s,
        time.monotonic() - began,
    )
    return runner


def lend_pages(arena: Arena, n_tokens: int) -> int:
    """Give the slots of a warm-up the first pages of a guest, all of them the same.

    What they write there and read is of no use. Nothing is done without a guest.

    Args:
        n_tokens: how long prompts may be.

    Returns:
        How long they may be in a warm-up: each is followed by a decode step.
    """
    pool = arena.pool
    if pool is None:
        return n_tokens
    n_pages = min(pool.table.shape[1], pages_for(n_tokens + 1))
    for slot in range(min(arena.n_slots, N_WARM_UP_SLOTS)):
        pool.grant(slot, range(n_pages))
    return min(n_tokens, n_pages * PAGE_TOKENS - 1)


def take_pages(arena: Arena) -> None:
    """Leave the slots without pages, as they were before ``lend_pages``."""
    if arena.pool is not None:
        for slot in range(min(arena.n_slots, N_WARM_UP_SLOTS)):
            arena.pool.grant(slot, ())


def _prompts(model: Model, arena: Arena, most_tokens: int) -> list[Callable[[], None]]:
    """Forward passes of prompts that take different kernels, each over a slot of its own."""

    def forward(slot: int, n_tokens: int) -> None:
        arena.zero([slot])
        device = model.info.device
        batch = Batch(
            token_ids=torch.zeros(n_tokens, dtype=torch.int64, device=device),
            slots=torch.full((1,), slot, dtype=torch.int32, device=device),
            lengths=(n_tokens,),
            slot_list=(slot,),
            logit_rows=torch.full((1,), n_tokens - 1, device=device),
        )
        with torch.inference_mode():
            model.forward(batch, arena.views)

    lengths = sorted({min(n, most_tokens) for n in PROMPT_LENGTHS})
    return [partial(forward, at % arena.n_slots, n) for at, n in enumerate(lengths)]


def warm_up(runner: GpuRunner, *, n_slots: int, n_tokens: int) -> None:
    """Run steps that compile what prompts need and have the allocator keep their memory.

    The slots are not clean afterwards; those of requests are zeroed when they begin.
    """
    lengths = [min(length, n_tokens) for length in WARM_UP_LENGTHS[:n_slots]]
    rows = tuple(_warm_up_row(slot, length) for slot, length in enumerate(lengths))
    decodes = tuple(
        row._replace(ids=(), position=row.n_prompt, fresh=False, n_output=1) for row in rows
    )
    for plan in (rows, decodes, (_warm_up_row(0, n_tokens),)):
        step = StepPlan(plan)
        runner.launch(step)
        runner.collect(step)


def _warm_up_row(slot: int, length: int) -> RowPlan:
    params = SamplingParams(top_p=0.9, logprobs=1, max_tokens=4)
    return RowPlan(0, slot, (0,) * length, 0, length, True, True, 0, params, 0, 0)
