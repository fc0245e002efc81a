"""A row's logits after the rules of its request: bias, ids that are out, grammar, penalties."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    BIAS,
    COUNTS,
    DECAY,
    FREQUENCY,
    IN_OUTPUT,
    IN_SEQUENCE,
    INFINITY,
    LARGEST,
    MIN_TOKENS,
    N_OUTPUT,
    N_STOPS,
    PENDING,
    PRESENCE,
    REPETITION,
    RULED,
    STOPS,
    floats_at,
    real,
)


@triton.jit  # type: ignore[untyped-decorator]
def penalized(x, ids, inside, record, counts, V, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The logits ``x`` of ``ids`` after the penalties.

    ``counts`` points to the row's; they take the id in that was fed in this step.
    """
    marks = (counts + V).to(tl.pointer_type(tl.uint8), bitcast=True) + ids
    counts += ids
    count = tl.load(counts, mask=inside, other=0.0)
    mark = tl.load(marks, mask=inside, other=0).to(tl.int32)
    pending = tl.load(record + PENDING)
    if pending >= 0:
        is_fed = ids == pending
        count = count * real(record, DECAY).to(tl.float32)
        count += tl.where(is_fed, 1.0, 0.0)
        mark = tl.where(is_fed, IN_SEQUENCE | IN_OUTPUT, mark)
        tl.store(counts, count, mask=inside)
        tl.store(marks, mark.to(tl.uint8), mask=inside & is_fed)
    repetition = tl.zeros([BLOCK], tl.float32) + real(record, REPETITION).to(tl.float32)
    divided = tl.minimum(tl.div_rn(x, repetition), LARGEST)
    lower = tl.where(x > 0, divided, x * repetition)
    lower -= tl.where(mark >= IN_OUTPUT, real(record, PRESENCE).to(tl.float32), 0.0)
    lower -= count * real(record, FREQUENCY).to(tl.float32)
    return tl.where(mark != 0, lower, x)


@triton.jit  # type: ignore[untyped-decorator]
def apply_rules(  # type: ignore[no-untyped-def]
    raw, logits, first, last, record, mask, is_masked, V, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    """Write the logits of ids from ``first`` to ``last`` after the rules.

    Args:
        raw: where the row starts, as the model gave it; it is written where its record says.
        logits: for ``floats_at``.
        mask: where the row of the grammar's masks starts.

    Returns:
        Whether all of ``raw`` are finite, 0 or 1.
    """
    is_finite = tl.arange(0, BLOCK) >= 0
    bias = tl.load(record + BIAS)
    counts = tl.load(record + COUNTS)
    bans = tl.load(record + N_OUTPUT) < tl.load(record + MIN_TOKENS)
    stops = tl.load(record + STOPS).to(tl.pointer_type(tl.int64))
    n_stops = tl.load(record + N_STOPS)
    into = floats_at(tl.load(record + RULED), logits, ALIGNED)
    for start in range(first, last, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        inside = ids < last
        x = tl.load(raw + ids, mask=inside, other=0.0)
        is_finite = is_finite & (tl.abs(x) <= LARGEST)
        if bias != 0:
            x += tl.load(floats_at(bias, logits, ALIGNED) + ids, mask=inside, other=0.0)
        if bans:
            for at in range(n_stops):
                x = tl.where(ids == tl.load(stops + at), -INFINITY, x)
        if is_masked:
            words = tl.load(mask + ids // 32, mask=inside, other=0)
            x = tl.where((words >> (ids % 32)) & 1 != 0, x, -INFINITY)
        if counts != 0:
            at_counts = floats_at(counts, logits, ALIGNED)
            x = penalized(x, ids, inside, record, at_counts, V, BLOCK)
        tl.store(into + ids, x, mask=inside)
    return tl.min(is_finite.to(tl.int32), 0)
