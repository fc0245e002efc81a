"""Which tokens of a step's rows need logits, whose they are, and what is told of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wkvm.core.plan import RowPlan
from wkvm.core.request import Logprobs, TopLogprob


@dataclass(frozen=True, slots=True)
class LogitRows:
    """Which tokens of packed rows need logits, and whose they are.

    Attributes:
        tokens: index into the packed tokens, for each row of the logits.
        owners: index of the row, for each row of the logits.
        sampling: the rows that sample, in order.
        sampled: the row of the logits of each of these.
        scoring: rows of the logits that score an id of the prompt.
        scored_ids: these ids.
    """

    tokens: list[int]
    owners: list[int]
    sampling: list[int]
    sampled: list[int]
    scoring: list[int]
    scored_ids: list[int]


def logit_rows(rows: Sequence[RowPlan]) -> LogitRows:
    """What rows need that are packed one after the other."""
    wanted = LogitRows([], [], [], [], [], [])
    start = 0
    for at, row in enumerate(rows):
        for offset, token_id in enumerate(_scored_ids(row)):
            wanted.scoring.append(len(wanted.tokens))
            wanted.scored_ids.append(token_id)
            wanted.tokens.append(start + offset)
            wanted.owners.append(at)
        start += row.n_ids
        if row.samples:
            wanted.sampling.append(at)
            wanted.sampled.append(len(wanted.tokens))
            wanted.tokens.append(start - 1)
            wanted.owners.append(at)
    return wanted


def _scored_ids(row: RowPlan) -> tuple[int, ...]:
    """The prompt ids that the logits after the row's first, second, ... token score."""
    n_scored = row.n_prompt - 1 - row.position
    if row.params.prompt_logprobs is None or n_scored <= 0:
        return ()
    following = row.ids[1:] if row.next_id is None else (*row.ids[1:], row.next_id)
    return following[:n_scored]


def to_logprobs(
    token_ids: Sequence[int],
    n_top: Sequence[int],
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
) -> list[Logprobs]:
    """What ``wkvm.kernels.sampling.logprobs`` found, for the requests that asked.

    Args:
        token_ids: the ids that were scored.
        n_top: how many of the most likely ids each wants told, at most as many as were found.
        tensors: as found, on the host.
    """
    of_ids, ranks, top_ids, of_top = (tensor.tolist() for tensor in tensors)
    return [
        Logprobs(
            token_id=token_id,
            logprob=of_ids[i],
            rank=ranks[i],
            top=tuple(map(TopLogprob, top_ids[i][:n], of_top[i][:n])),
        )
        for i, (token_id, n) in enumerate(zip(token_ids, n_top, strict=True))
    ]
