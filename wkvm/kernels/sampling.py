"""Logits to ids, and to log probabilities.

All functions take ``[B, V]`` float32 logits and parameters by row. What comes out for a row
depends on that row alone, to the bit: what ids weigh is turned into integers before it is added
up, so that a sum does not depend on the order in which a device, a batch size or a partial sort
adds. Nothing here reads the parameters of requests; ``wkvm.engine.sampler`` does.
"""

import math

import torch
from torch import Tensor

MASS = 2.0**31
"""The mass of the most likely id; others' are integers in proportion, rounded down. Those of 2^22
ids add up to 2^53 at most: exact in float64."""

LOG2_E = math.log2(math.e)

CANDIDATES = (64, 1024)
"""How many of the most likely ids the filters look at, before all are sorted for those rows
where that was too few."""

CPU_BLOCK = 2**18
"""Logits that are worked on at a time on a CPU, so that they stay in its cache: four times as
quick for many rows."""

LOGPROB_BLOCK = 256
"""Rows of logits whose log probabilities are computed at a time, to bound the memory."""

LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def scales(temperature: Tensor) -> Tensor:
    """What logits are multiplied by before ``exp2``, ``[B]`` float32, for positive temperatures."""
    return temperature.clamp(min=SMALLEST).reciprocal() * LOG2_E


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


def keep_only(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Rule out, in some rows, all ids whose bit is not set, in place.

    Args:
        logits: ``[B, V]`` float32.
        rows: ``[n]`` int64, distinct.
        masks: ``[n, ceil(V / 8)]`` uint8: id i is bit ``i % 8`` of byte ``i // 8``.
    """
    # A table of bytes and an addition: on a CPU ten times as quick as shifts and a fill.
    values = torch.arange(256, device=masks.device)[:, None]
    bits = values >> torch.arange(8, device=masks.device) & 1
    table = torch.where(bits == 1, 0.0, -torch.inf)
    penalties = table.index_select(0, masks.flatten().to(torch.int32)).view(len(masks), -1)
    logits.index_add_(0, rows, penalties[:, : logits.shape[-1]])


def ban(row: Tensor, ids: Tensor) -> None:
    """Rule out ``ids`` in one row ``[V]``, in place."""
    row[ids] = -torch.inf


def penalize(
    logits: Tensor,
    rows: Tensor,
    ids: Tensor,
    counts: Tensor,
    in_output: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Make ids less likely that came before: ``n`` pairs of row and id, distinct, in place.

    Args:
        logits: ``[B, V]`` float32; -inf for ids that are ruled out.
        rows, ids: ``[n]`` int64.
        counts: ``[n]`` float32: occurrences in the output, older ones perhaps faded.
        in_output: ``[n]`` bool: whether the id occurs in the output, not just in the prompt.
        repetition: ``[n]`` float32: divides a positive logit, multiplies a negative one. Ones
            too small for float32 act like the smallest.
        presence: ``[n]`` float32: subtracted once from ids in the output.
        frequency: ``[n]`` float32: subtracted ``counts`` times.
    """
    old = logits[rows, ids]
    # A repetition penalty near 0 must make neither an infinity of a finite logit nor, as 0 times
    # -inf would, NaN of an id that is ruled out.
    repetition = repetition.clamp(min=SMALLEST)
    new = torch.where(old > 0, (old / repetition).clamp_(max=LARGEST), old * repetition)
    logits[rows, ids] = new - in_output * presence - counts * frequency


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
    lower ones are kept. The id is then the first one, in the order of ids, with which the mass of
    those that are left exceeds ``uniform`` times the whole of it.

    Args:
        logits: ``[B, V]`` float32; -inf for ids that are ruled out, not for all of a row.
        temperature: ``[B]`` float32. Ones too small for float32 act like the smallest.
        uniform: ``[B]`` float64 in [0, 1).
        top_k: ``[B]`` int64 in [1, V]; V is off. None is off for all rows, as with the others.
        top_p: ``[B]`` float64 in (0, 1]; 1 is off.
        min_p: ``[B]`` float64 in [0, 1]; 0 is off.

    Returns:
        ``[B]`` int64. Anything, but in [0, V), for rows that hold NaN.

    Cost: waits for the device up to five times if a filter is given.
    """
    n_rows, vocab_size = logits.shape
    n_fit = max(1, CPU_BLOCK // vocab_size)
    if n_rows > n_fit and logits.device.type == "cpu":
        parts = list[Tensor]()
        for start in range(0, n_rows, n_fit):
            block = slice(start, start + n_fit)
            part = choose(
                logits[block],
                temperature[block],
                uniform[block],
                top_k=None if top_k is None else top_k[block],
                top_p=None if top_p is None else top_p[block],
                min_p=None if min_p is None else min_p[block],
            )
            parts.append(part)
        return torch.cat(parts)
    masses = _masses(logits, temperature)
    if top_k is None and top_p is None and min_p is None:
        return _draw(masses, uniform)
    is_plain = torch.ones_like(uniform, dtype=torch.bool)
    if top_k is not None:
        is_plain &= top_k == vocab_size
    if top_p is not None:
        is_plain &= top_p == 1
    if min_p is not None:
        is_plain &= min_p == 0
    chosen = torch.empty_like(uniform, dtype=torch.int64)
    left = is_plain.nonzero()[:, 0]
    if len(left):
        chosen[left] = _draw(masses[left], uniform[left])
    left = (~is_plain).nonzero()[:, 0]
    for n_seen in (*(n for n in CANDIDATES if n < vocab_size), vocab_size):
        if not len(left):
            break
        chosen[left], is_open = _draw_likeliest(
            _some(logits, left),
            _some(masses, left),
            _some(uniform, left),
            None if top_k is None else _some(top_k, left),
            None if top_p is None else _some(top_p, left),
            None if min_p is None else _some(min_p, left),
            n_seen,
        )
        left = left[is_open]
    return chosen


def _masses(logits: Tensor, temperature: Tensor) -> Tensor:
    """What each id weighs, ``[B, V]`` int64: ``MASS`` the most likely one."""
    # The largest logit is taken off first: no temperature makes an infinity of it.
    scaled = logits - logits.amax(-1, keepdim=True)
    scaled *= scales(temperature)[:, None]
    return scaled.exp2_().mul_(MASS).to(torch.int64)


def _some(tensor: Tensor, rows: Tensor) -> Tensor:
    """The given rows, which are all of them in order if they are as many."""
    return tensor if len(tensor) == len(rows) else tensor[rows]


def _draw(masses: Tensor, uniform: Tensor) -> Tensor:
    """Draw from all ids, in their order."""
    return _index_at(masses.cumsum(-1), uniform)


def _draw_likeliest(
    logits: Tensor,
    masses: Tensor,
    uniform: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    n_seen: int,
) -> tuple[Tensor, Tensor]:
    """Draw from the ids that the filters keep, seeing the ``n_seen`` most likely ids.

    Returns:
        ``[B]`` ids, and ``[B]`` bool: whether more would have to be seen to be sure. The ids
        of the other rows do not depend on ``n_seen``.
    """
    vocab_size = logits.shape[-1]
    values, ids = _likeliest(logits, n_seen)
    mass = masses.gather(-1, ids)
    # How many to keep. Each filter can only lower it; vocab_size keeps all.
    n_kept = torch.full_like(ids[:, 0], vocab_size) if top_k is None else top_k
    if top_p is not None:
        cumulative = mass.cumsum(-1)
        of_k = cumulative.gather(-1, n_kept.clamp(max=n_seen)[:, None] - 1)[:, 0]
        goal = _share(torch.where(n_kept < vocab_size, of_k, masses.sum(-1)), top_p)
        n_reaching = (cumulative < goal[:, None]).sum(-1) + 1
        n_kept = torch.where(top_p < 1, torch.minimum(n_kept, n_reaching), n_kept)
    if min_p is not None:
        n_likely = (mass >= _share(mass[:, 0], min_p)[:, None]).sum(-1)
        n_kept = torch.where(min_p > 0, torch.minimum(n_kept, n_likely), n_kept)
    if n_seen < vocab_size:
        # Of the ids as likely as the last one seen, not the lowest may have been seen.
        is_open = n_kept > (values > values[:, -1:]).sum(-1)
        if top_k is not None:
            is_open |= (top_k > n_seen) & (top_k < vocab_size)
    else:
        is_open = torch.zeros_like(n_kept, dtype=torch.bool)
    is_kept = torch.arange(n_seen, device=ids.device) < n_kept[:, None]
    kept = mass * is_kept
    if n_seen == vocab_size:
        # Back to where they came from, which is quicker than another sort.
        return _draw(torch.empty_like(kept).scatter_(-1, ids, kept), uniform), is_open
    ids, by_id = ids.sort(-1)
    cumulative = kept.gather(-1, by_id).cumsum(-1)
    return ids.gather(-1, _index_at(cumulative, uniform)[:, None])[:, 0], is_open


def _index_at(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative mass exceeds ``uniform`` of the total."""
    total = cumulative[:, -1]
    point = torch.minimum((total * uniform).to(torch.int64), total - 1)
    index = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]
    return index.clamp_(max=cumulative.shape[-1] - 1)


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
    """``[B, n_top]``: the most likely ids, best first, the lower of equals first.

    Does not wait for the device: a logit and its id become one integer, and no two are equal.
    """
    vocab_size = logits.shape[-1]
    bits = (logits + 0.0).view(torch.int32)  # adding zero leaves one zero, the positive one
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    keys = ordered.mul_(vocab_size).sub_(torch.arange(vocab_size, device=logits.device))
    return -keys.topk(n_top).values % vocab_size


def _likeliest(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The ``n`` largest logits of each row and their ids, the lower of equals first.

    Of ids equal to the last one, any may have been taken unless ``n`` is V.
    """
    if n == logits.shape[-1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    # topk promises nothing about equals: neither their order nor which of them it takes.
    values, ids = logits.topk(n)
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, by_value)
