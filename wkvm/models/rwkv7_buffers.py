"""Buffers one after another in one allocation; those of decode steps, which share one."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from wkvm.models.rwkv7_packed import Rwkv7Decode
from wkvm.models.rwkv7_plans import Plan, parts_of

ALIGNMENT = 256
"""Bytes; of every buffer, as an allocation of its own would have it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor that a step writes before it reads it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Without what aligns the next one."""
        return prod(self.shape) * self.dtype.itemsize


def buffers_of(model: Rwkv7Decode, n_rows: int, plan: Plan) -> dict[str, Buffer]:
    """By name: those of one step, inputs and outputs with them."""
    C, F, dtype = model.shape.width, model.shape.ffn_width, model.dtype
    # Few rows cost nothing in float32; more are operands of matrix units, or much to read.
    first_dtype = torch.float32 if plan.second is None else dtype
    buffers = {
        "token_ids": Buffer((n_rows,), torch.int64),
        "slots": Buffer((n_rows,), torch.int32),
        "logits": Buffer((n_rows, model.shape.vocab_size), torch.float32),
        "residual": Buffer((n_rows, C), torch.float32),
        # The first layer's are kept through the step: its v is the residual of the others.
        "firsts": Buffer((2, n_rows * (3 * C + sum(model.ranks))), first_dtype),
        "y": Buffer((n_rows, C), dtype),
        "hidden": Buffer((n_rows, F), dtype),
    }
    if plan.fuses_norms:
        buffers["normed"] = Buffer((2, n_rows, C), dtype)
    else:
        buffers["mixed"] = Buffer((6, n_rows, C), dtype)
        buffers["ffn_mixed"] = Buffer((1, n_rows, C), dtype)
        for name, cut in (("outputs", plan.output), ("values", plan.value)):
            buffers[name] = Buffer((parts_of(cut), n_rows, C), torch.float32)
    if plan.second is not None:
        buffers["second"] = Buffer((n_rows, 4 * C), dtype)
    return buffers


def memory_bytes(buffers: Iterable[Buffer]) -> int:
    """Of these, each aligned."""
    return sum(-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers)


def step_bytes(model: Rwkv7Decode, max_rows: int) -> int:
    """Of memory in which any step of up to ``max_rows`` rows, as planned, has its buffers."""
    return max(
        memory_bytes(buffers_of(model, n, model.plan_of(n)).values())
        for n in range(1, max_rows + 1)
    )


def views_of(memory: Tensor, buffers: dict[str, Buffer]) -> dict[str, Tensor]:
    """The buffers one after another in ``memory``, ``[n_bytes]`` uint8.

    Raises:
        ValueError: they do not fit.
    """
    needed = memory_bytes(buffers.values())
    if memory.numel() < needed:
        raise ValueError(f"{needed} bytes of buffers do not fit {memory.numel()}")
    views, at = dict[str, Tensor](), 0
    for name, buffer in buffers.items():
        views[name] = memory[at : at + buffer.nbytes].view(buffer.dtype).view(buffer.shape)
        at += memory_bytes([buffer])
    return views
