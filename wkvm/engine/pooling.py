"""What embeddings are made of, from the forward passes that absorb their texts.

A prompt that wants one is absorbed like any other, in the same passes. What is done besides is
done with its own rows alone: nothing of it is in a step without such a prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wkvm.core.kinds import KEY_AXES, TensorKind, of_kind
from wkvm.core.layout import StateLayout
from wkvm.core.plan import POOLED_UNIT, RowPlan
from wkvm.core.sampling import Pooling
from wkvm.models.base import Model, StateViews

BLOCK = 256
"""Tokens whose hidden states are held at a time, to bound the memory."""
MOST = 2.0**30
"""What a hidden state may come to in a sum: of so much, 2^9 million tokens fit 64 bits."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Tokens of a row, among all that are packed.

    Attributes:
        at: index of the row.
        is_sum: whether all of them count, or the last one alone.
    """

    at: int
    start: int
    end: int
    is_sum: bool


class Pooled:
    """Takes what the rows of one forward pass add to embeddings. See ``HiddenSink``.

    Args:
        rows: of the pass, in the order in which they are packed.
        model: that runs it.
    """

    def __init__(self, rows: Sequence[RowPlan], model: Model) -> None:
        self._layout = model.layout
        self._spans = list[_Span]()
        self._states = list[tuple[int, int]]()
        start = 0
        for at, row in enumerate(rows):
            end = start + row.n_ids
            is_last = row.position + row.n_ids == row.n_prompt
            match row.params.pooling:
                case Pooling.MEAN:
                    self._spans.append(_Span(at, start, end, is_sum=True))
                case Pooling.LAST if is_last:
                    self._spans.append(_Span(at, end - 1, end, is_sum=False))
                case Pooling.STATE if is_last:
                    self._states.append((at, row.slot))
                case _:
                    pass
            start = end
        n, width, device = len(self._spans), model.info.width, model.info.device
        self._sums = torch.zeros(n, width, dtype=torch.int64, device=device)
        self._lasts = torch.zeros(n, width, dtype=torch.float32, device=device)
        self._finite = torch.ones(n, dtype=torch.bool, device=device)

    def take(self, residual: Tensor, norm: Callable[[Tensor], Tensor], first: int = 0) -> None:
        """See ``HiddenSink.take``."""
        last = first + len(residual)
        for place, span in enumerate(self._spans):
            for start in range(max(span.start, first), min(span.end, last), BLOCK):
                end = min(start + BLOCK, span.end, last)
                hidden = norm(residual[start - first : end - first]).float()
                if span.is_sum:
                    # Whole numbers: their sum does not depend on its order, or on the blocks.
                    self._finite[place] &= (hidden.abs() < MOST).all()
                    counted = (hidden.double() / POOLED_UNIT).round().to(torch.int64)
                    self._sums[place] += counted.sum(dim=0)
                else:
                    self._lasts[place] = hidden[-1]

    def finish(self, states: StateViews, down: Callable[[Tensor], Tensor]) -> "PooledOnTheWay":
        """Send all to the host, after the pass.

        Args:
            states: where the rows' slots are.
            down: copies a tensor to the host; it may be complete later.
        """
        vectors = [down(state_vector(self._layout, states, slot)) for _, slot in self._states]
        return PooledOnTheWay(
            spans=self._spans,
            sums=down(self._sums),
            lasts=down(self._lasts),
            finite=down(self._finite),
            of_states=[(at, vector) for (at, _), vector in zip(self._states, vectors, strict=True)],
        )


@dataclass(frozen=True, slots=True)
class PooledOnTheWay:
    """What ``Pooled`` has found, on its way to the host."""

    spans: list[_Span]
    sums: Tensor
    lasts: Tensor
    finite: Tensor
    of_states: list[tuple[int, Tensor]]

    def read(self, places: Sequence[int]) -> tuple[dict[int, tuple[bytes, ...]], set[int]]:
        """All of it, once it is there.

        Args:
            places: of the pass's rows in their plan.

        Returns:
            What ``StepResult.pooled`` holds, and the rows with NaN or infinity.
        """
        pooled, broken = dict[int, tuple[bytes, ...]](), set[int]()
        finite = self.finite.tolist()
        for place, span in enumerate(self.spans):
            values = self.sums[place] if span.is_sum else self.lasts[place]
            if finite[place] and (span.is_sum or bool(values.isfinite().all())):
                pooled[places[span.at]] = (values.numpy().tobytes(),)
            else:
                broken.add(places[span.at])
        for at, values in self.of_states:
            if bool(values.isfinite().all()):
                pooled[places[at]] = (values.numpy().tobytes(),)
            else:
                broken.add(places[at])
        return pooled, broken


def pooled_of(rows: Sequence[RowPlan], model: Model) -> Pooled | None:
    """What takes the embeddings of a pass; None if none of its rows wants one."""
    if all(row.params.pooling is None for row in rows):
        return None
    return Pooled(rows, model)


def has_matrices(layout: StateLayout) -> bool:
    """Whether states have the matrices of a recurrence."""
    return bool(of_kind(layout, TensorKind.MATRIX))


def state_vector(layout: StateLayout, states: StateViews, slot: int) -> Tensor:
    """The matrices of the last recurrent layer, averaged over their keys: float32, flat.

    It is what a query that asks for all keys alike would be told. The states have such matrices.
    """
    name = of_kind(layout, TensorKind.MATRIX)[0].name
    return states[name][slot, -1].float().mean(dim=KEY_AXES[name]).flatten()
