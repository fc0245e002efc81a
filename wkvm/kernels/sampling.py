"""Logits to ids, and to log probabilities.

All functions take ``[B, V]`` float32 logits and parameters by row. What comes out for a row
depends on that row alone, to the bit: probabilities are turned into integers before they are
added up, so that a sum does not depend on the order in which a device, a batch size or a
partial sort adds. Nothing here reads the parameters of requests; ``wkvm.engine.sampler`` does.
"""

import torch
from torch import Tensor

MASS = 2.0**52
"""The integer that stands for probability 1. Sums of a row stay below 2^53: exact in float64."""

CANDIDATES = 512
"""How many of the most likely ids are looked at before all of them are sorted."""

LOGPROB_BLOCK = 256
"""Rows of logits whose log probabilities are computed at a time, to bound the memory."""

LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def finite_rows(logits: Tensor) -> Tensor:
    """``[B]`` bool: whether a row holds neither NaN nor an infinity of either sign.

    A model never rules an id out with -inf; where one turns up, its state is broken.
    """
    return (logits * 0).sum(-1) == 0


def add_bias(row: Tensor, ids: Tensor, bias: Tensor) -> None:
    """Add ``bias[i]`` to the logit of ``ids[i]`` in one row ``[V]``, in place; ids distinct."""
    row[ids] += bias


def allow_only(row: Tensor, ids: Tensor) -> None:
    """Rule out all ids of one row ``[V]`` but ``ids``, in place."""
    allowed = row[ids]
    row.fill_(-torch.inf)
    row[ids] = allowed


def ban(row: Tensor, ids: Tensor) -> None:
    """Rule out ``ids`` in one row ``[V]``, in place."""
    row[ids] = -torch.inf


def penalize(
    logits: Tensor,
    in_prompt: Tensor,
    in_output: Tensor,
    counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Make ids less likely that came before.

    Args:
        logits: ``[B, V]`` float32; -inf for ids that are ruled out.
        in_prompt, in_output: ``[B, V]`` bool: whether the id occurs there.
        counts: ``[B, V]`` float32: occurrences in the output, older ones perhaps faded.
        repetition: ``[B]`` float32: divides positive logits of ids in either, multiplies
            negative ones.
        presence: ``[B]`` float32: subtracted once from ids in the output.
        frequency: ``[B]`` float32: subtracted ``counts`` times.

    Returns:
        ``[B, V]`` float32, a new tensor.
    """
    factor = repetition[:, None]
    repeated = torch.where(logits > 0, (logits / factor).clamp_(max=LARGEST), logits * factor)
    penalized = torch.where(in_prompt | in_output, repeated, logits)
    return penalized - in_output * presence[:, None] - counts * frequency[:, None]


def choose_likeliest(logits: Tensor) -> Tensor:
    """``[B]`` int64: the most likely id of each row, the lowest one of equals."""
    return logits.argmax(-1)


def choose(
    logits: Tensor,
    temperature: Tensor,
    uniform: Tensor,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Draw one id for each row.

    Each filter works on what the one before it left: top-k keeps the k most likely ids,
    top-p the smallest set of most likely ones that holds at least its share of the mass,
    min-p those at least so likely relative to the most likely one. Of equally likely ids the
    lower ones are kept. The id is then the first whose cumulative mass, in the order of
    ids, exceeds ``uniform`` times the mass that is left.

    Args:
        logits: ``[B, V]`` float32; -inf for ids that are ruled out, not for all of a row.
        temperature: ``[B]`` float32. Ones too small for float32 act like the smallest.
        uniform: ``[B]`` float64 in [0, 1).
        top_k: ``[B]`` int64 in [1, V]; V is off. None is off for all rows, as with the others.
        top_p: ``[B]`` float64 in (0, 1]; 1 is off.
        min_p: ``[B]`` float64 in [0, 1]; 0 is off.

    Returns:
        ``[B]`` int64. Anything, but in [0, V), for rows that hold NaN.

    Cost: waits for the device once if top-k or top-p is given.
    """
    # The largest logit is taken off first: no temperature makes an infinity of it.
    scaled = logits - logits.amax(-1, keepdim=True)
    scaled /= temperature[:, None].clamp(min=SMALLEST)
    mass = (torch.softmax(scaled, -1) * MASS).to(torch.int64)
    if top_k is not None or top_p is not None:
        mass.masked_fill_(~_likeliest(scaled, mass, top_k, top_p), 0)
    if min_p is not None:
        least = _share(mass.amax(-1), min_p)
        mass.masked_fill_(mass < least[:, None], 0)
    cumulative = mass.cumsum(-1)
    total = cumulative[:, -1]
    point = torch.minimum((total * uniform).to(torch.int64), total - 1)
    ids = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]
    return ids.clamp_(max=logits.shape[-1] - 1)


def _likeliest(scaled: Tensor, mass: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """``[B, V]`` bool: the ids that top-k and top-p keep. ``scaled`` orders them."""
    n_rows, vocab_size = scaled.shape
    if top_k is None:
        top_k = torch.full((n_rows,), vocab_size, dtype=torch.int64, device=scaled.device)
    has_k = top_k < vocab_size
    filtered = has_k if top_p is None else has_k | (top_p < 1)
    n_sorted = min(CANDIDATES, vocab_size)
    values, n_kept, is_open = _cut(scaled, mass, top_k, top_p, n_sorted)
    if n_sorted < vocab_size and bool((is_open & filtered).any()):
        values, n_kept, _ = _cut(scaled, mass, top_k, top_p, vocab_size)
    last = values.gather(-1, n_kept[:, None] - 1)
    n_equal = n_kept[:, None] - (values > last).sum(-1, keepdim=True)
    equal = scaled == last
    kept = (scaled > last) | (equal & (equal.cumsum(-1) <= n_equal))
    return kept | ~filtered[:, None]


def _cut(
    scaled: Tensor, mass: Tensor, top_k: Tensor, top_p: Tensor | None, n_sorted: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Where top-k and top-p cut, seen from the ``n_sorted`` most likely ids of each row.

    Returns:
        ``[B, n_sorted]`` their values, the largest first; ``[B]`` how many of them to keep,
        at least 1; ``[B]`` bool, whether more would have to be seen to know.
    """
    vocab_size = scaled.shape[-1]
    # Which of equals come first does not matter: their masses are equal too.
    values, ids = scaled.sort(descending=True) if n_sorted == vocab_size else scaled.topk(n_sorted)
    cumulative = mass.gather(-1, ids).cumsum(-1)
    within_k = top_k.clamp(max=n_sorted)
    mass_of_k = cumulative.gather(-1, within_k[:, None] - 1)[:, 0]
    has_k = top_k < vocab_size
    goal = torch.where(has_k, mass_of_k, mass.sum(-1))
    if top_p is not None:
        goal = _share(goal, top_p)
    n_kept = (cumulative < goal[:, None]).sum(-1) + 1
    is_open = torch.where(has_k, top_k, n_kept) > n_sorted
    return values, torch.minimum(n_kept, within_k), is_open


def _share(mass: Tensor, share: Tensor) -> Tensor:
    """The least integer that is at least ``share`` of an integer mass."""
    return (mass * share).ceil().to(torch.int64)


def logprobs(logits: Tensor, ids: Tensor, n_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log probabilities of given ids and of the most likely ones.

    Args:
        logits: ``[B, V]`` float32, as the model gave them.
        ids: ``[B]`` int64.
        n_top: how many of the most likely ids to report, at most V.

    Returns:
        The log probability of ``ids``, ``[B]`` float32, in nats; their ranks, ``[B]`` int64,
        1 for the most likely; the most likely ids, ``[B, n_top]`` int64, best first; and
        their log probabilities, ``[B, n_top]`` float32. Of equals the lower id is first.
    """
    parts = list[tuple[Tensor, Tensor, Tensor, Tensor]]()
    for start in range(0, len(ids), LOGPROB_BLOCK):
        block = slice(start, start + LOGPROB_BLOCK)
        parts.append(_logprobs_block(logits[block], ids[block], n_top))
    of_ids, ranks, top_ids, of_top = zip(*parts, strict=True)
    return torch.cat(of_ids), torch.cat(ranks), torch.cat(top_ids), torch.cat(of_top)


def _logprobs_block(
    logits: Tensor, ids: Tensor, n_top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    normalized = torch.log_softmax(logits, -1)
    column = ids[:, None]
    own = logits.gather(-1, column)
    lower = torch.arange(logits.shape[-1], device=logits.device) < column
    ranks = ((logits > own) | ((logits == own) & lower)).sum(-1) + 1
    top_ids = _top_ids(logits, n_top)
    return (
        normalized.gather(-1, column)[:, 0],
        ranks,
        top_ids,
        normalized.gather(-1, top_ids),
    )


def _top_ids(logits: Tensor, n_top: int) -> Tensor:
    """``[B, n_top]``: the most likely ids, best first, the lower of equals first."""
    if n_top == 0:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    # topk promises nothing about equals: neither their order nor which of them it takes.
    values, ids = logits.topk(n_top)
    ids, order = ids.sort(dim=-1)
    order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
    ids = ids.gather(-1, order)
    torn = (logits >= values[:, -1:]).sum(-1) > n_top
    if bool(torn.any()):
        every = logits[torn].sort(dim=-1, descending=True, stable=True).indices
        ids[torn] = every[:, :n_top]
    return ids
