"""The kernel that finds how far down the filters of a row keep ids, and where the draw lands."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

from wkvm.kernels.device_sampling.common import (
    ANY_ALIGNMENT,
    CURSOR,
    INFINITY,
    LOWEST,
    MASS,
    MIN_P,
    SCALE,
    TOP_K,
    TOP_P,
    WORDS,
    add_and_bound,
    add_three,
    add_two,
    follow,
    is_filtered,
    mass_of_key,
    masses,
    ordered,
    point_of,
    real,
    share_of,
    start_of,
    uniform,
)

FOUND = tl.constexpr(6)
"""Numbers that are found out of a row; see ``resolve_kernel``."""

HIGHEST = tl.constexpr(2**31 - 1)
"""Above the number of each logit."""


@triton.jit
def between(low, high, held_low, held_high, goal, guesses):  # type: ignore[no-untyped-def]
    """A level above ``low`` and below ``high``: in the middle, or where the goal seems to lie."""
    middle = (low + high) >> 1
    if guesses:
        share = (held_low - goal).to(tl.float32) / (held_low - held_high).to(tl.float32)
        middle = low + (share * (high - low).to(tl.float32)).to(tl.int64)
        middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
    return middle


@triton.jit
def level_in_list(goal, above, keys, weights, is_listed):  # type: ignore[no-untyped-def]
    """The highest level so that what is above the list and its ids from there up hold ``goal``.

    The list holds enough for that, and what is above it does not.

    Returns:
        The level, and what ids above it hold.
    """
    bounds = (weights.to(tl.int64), tl.where(is_listed, keys, HIGHEST), keys)
    held_low, low, high = tl.reduce(bounds, 0, add_and_bound)
    held_low += above
    held_high = above
    low = low.to(tl.int64)
    high = high.to(tl.int64) + 1
    guesses = True
    while high - low > 1:
        middle = between(low, high, held_low, held_high, goal, guesses)
        guesses = not guesses
        is_in = keys >= middle.to(tl.int32)
        held = tl.where(is_in, weights, 0).to(tl.int64)
        bounds = (held, tl.where(is_in, keys, HIGHEST), tl.where(is_in, LOWEST, keys))
        held, up, down = tl.reduce(bounds, 0, add_and_bound)
        held += above
        # Both ends are at ids of the list, so that they meet as soon as no other is between.
        if held >= goal:
            low = up.to(tl.int64)
            held_low = held
        else:
            high = down.to(tl.int64) + 1
            held_high = held
    return low, held_high


# Not inlined: the code that rows seldom need would be most of the kernel.
@triton.jit(noinline=True)  # type: ignore[untyped-decorator]
def held_from(  # type: ignore[no-untyped-def]
    level, logits, largest, scale, V, by_count, BLOCK: tl.constexpr
):
    """What the ids of a row from ``level`` up hold: how many they are, or their mass.

    Returns:
        That; the lowest level of these ids, and the highest of all others.
    """
    column = tl.arange(0, BLOCK // 8)
    at = tl.arange(0, 8)[:, None] * (BLOCK // 8) + column[None, :]
    held = column.to(tl.int64) * 0
    lowest_in = column * 0 + HIGHEST
    highest_out = column * 0 + LOWEST
    for start in range(0, V, BLOCK):
        ids = start + at
        inside = ids < V
        x = tl.load(logits + ids, mask=inside, other=-INFINITY)
        key = ordered(x)
        is_in = (key >= level.to(tl.int32)) & inside
        mass = tl.where(by_count, 1, masses(x, largest, scale))
        held += tl.sum(tl.where(is_in, mass, 0).to(tl.int64), 0)
        lowest_in = tl.minimum(lowest_in, tl.min(tl.where(is_in, key, HIGHEST), 0))
        out_key = tl.where(is_in | (ids >= V), LOWEST, key)
        highest_out = tl.maximum(highest_out, tl.max(out_key, 0))
    held, up, down = tl.reduce((held, lowest_in, highest_out), 0, add_and_bound)
    return held, up.to(tl.int64), down.to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def level_in_row(  # type: ignore[no-untyped-def]
    goal, total, logits, largest, scale, V, by_count, BLOCK: tl.constexpr
):
    """Like ``level_in_list``, over a whole row: slow, for the rows whose guess was wrong.

    ``total`` is what all ids hold.
    """
    low = goal * 0 + LOWEST
    high = tl.max(ordered(tl.zeros([1], tl.float32) + largest).to(tl.int64), 0) + 1
    held_low = goal * 0 + total
    held_high = goal * 0
    guesses = False
    while high - low > 1:
        middle = between(low, high, held_low, held_high, goal, guesses)
        guesses = not guesses
        held, up, down = held_from(middle, logits, largest, scale, V, by_count, BLOCK)
        if held >= goal:
            low = up
            held_low = held
        else:
            high = down + 1
            held_high = held
    return low, held_high


@triton.jit(do_not_specialize_on_alignment=ANY_ALIGNMENT)  # type: ignore[untyped-decorator]
def resolve_kernel(  # type: ignore[no-untyped-def]
    logits,
    slots,
    records,
    maxima,
    totals,
    above,
    heavy,
    n_above,
    listed,
    n_listed,
    found,
    V,
    row_stride,
    n_parts,
    n_chunks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PARTS: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    PDL: tl.constexpr,
):
    """What the filters leave of each row that has any, and where in it the draw lands.

    One program a row. The list holds the ids around the cut, unless the guess was wrong.

    Args:
        maxima: as ``scan_kernel`` left them; the others as ``weigh_kernel`` left them.
        found: ``[B, FOUND]`` int64; written for rows with filters: a level, as ``ordered``
            numbers logits; how many ids on it are kept, the lowest ones, beside all above it;
            the least mass of an id that is kept; the chunk where the draw lands, how far into
            its mass, and how many ids on the level are before it.
    """
    follow(PDL)
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot >= 0:
        record = records + slot.to(tl.int64) * WORDS
        scale = real(record, SCALE).to(tl.float32)
        parts = tl.arange(0, PARTS)
        tops = tl.load(maxima + row * n_parts + parts, mask=parts < n_parts, other=-INFINITY)
        largest = tl.max(tops, 0)
        if (scale != 0) & is_filtered(record, V) & (largest > -INFINITY):
            logits = start_of(logits, record, row, row_stride, ALIGNED)
            every = tl.arange(0, CHUNKS)
            at = row * n_chunks + every
            is_chunk = every < n_chunks
            base = tl.load(above + at, mask=is_chunk, other=0)
            of_chunk = tl.load(totals + at, mask=is_chunk, other=0)
            count = tl.load(n_above + at, mask=is_chunk, other=0).to(tl.int64)
            total, mass_above, count_above = tl.reduce((of_chunk, base, count), 0, add_three)
            n = tl.load(n_listed + row * CURSOR).to(tl.int64)
            top_k = tl.load(record + TOP_K)
            top_p = real(record, TOP_P)
            min_p = real(record, MIN_P)

            places = tl.arange(0, LIST)
            is_listed = places < n
            at_list = listed + row.to(tl.int64) * (2 * LIST) + places
            keys = tl.load(at_list, mask=is_listed, other=LOWEST)
            weights = tl.where(is_listed, mass_of_key(keys, largest, scale), 0).to(tl.uint32)
            level = total * 0 + LOWEST
            n_level = total * 0
            is_solved = n >= 0
            # Top-k first, which counts ids; then top-p, which weighs what that leaves.
            for stage in range(2):
                by_count = stage == 0
                if (by_count & (top_k < V)) | ((stage == 1) & (top_p < 1)):
                    goal = tl.where(by_count, top_k, share_of(total, top_p))
                    over = tl.where(by_count, count_above, mass_above)
                    loads = tl.where(by_count, is_listed.to(tl.uint32), weights)
                    in_list = tl.sum(loads.to(tl.int64), 0)
                    is_solved = (n <= LIST) & (over < goal) & (over + in_list >= goal)
                    if is_solved:
                        level, held = level_in_list(goal, over, keys, loads, is_listed)
                    else:
                        whole = tl.where(by_count, total * 0 + V, total)
                        level, held = level_in_row(
                            goal, whole, logits, largest, scale, V, by_count, BLOCK
                        )
                    each = mass_of_key(level, largest, scale).to(tl.int64)
                    if by_count:
                        n_level = goal - held
                        if is_solved:
                            is_over = keys > level.to(tl.int32)
                            total = tl.sum(tl.where(is_over, weights, 0).to(tl.int64), 0)
                            total += mass_above
                        else:
                            total, _, _ = held_from(
                                level + 1, logits, largest, scale, V, not by_count, BLOCK
                            )
                        total += n_level * each
                    else:
                        n_level = (goal - held + each - 1) // tl.maximum(each, 1)

            floor = total * 0
            if min_p > 0:
                floor = share_of(total * 0 + MASS, min_p)
            each = mass_of_key(level, largest, scale).to(tl.int64)
            out = found + row * FOUND
            if each < floor:
                # Min-p cuts higher than the others.
                level = level * 0 + LOWEST
                n_level = n_level * 0
                each = each * 0
                base = tl.load(heavy + at, mask=is_chunk, other=0)
                is_solved = n >= 0
                keys = keys * 0 + LOWEST
            if is_solved:
                # Not read before, so that they are in nobody's way there.
                chunks = tl.load(at_list + LIST, mask=is_listed, other=0) // CHUNK
                over = tl.where(keys > level.to(tl.int32), weights, 0).to(tl.uint32)
                is_on = (keys == level.to(tl.int32)) & is_listed
                whole = tl.sum(base, 0) + tl.sum(over.to(tl.int64), 0) + n_level * each
                point = point_of(whole, uniform(record))
                # The first chunk with which the mass exceeds the point.
                lower = n_chunks * 0
                upper = n_chunks - 1
                before = total * 0
                n_before = total * 0
                while lower < upper:
                    middle = (lower + upper) >> 1
                    n_on = (is_on & (chunks <= middle)).to(tl.int64)
                    mass = tl.where(chunks <= middle, over, 0).to(tl.int64)
                    n_on, mass = tl.reduce((n_on, mass), 0, add_two)
                    mass += tl.sum(tl.where(every <= middle, base, 0), 0)
                    mass += tl.minimum(n_on, n_level) * each
                    if mass > point:
                        upper = middle
                    else:
                        lower = middle + 1
                        before = mass
                        n_before = n_on
                tl.store(out + 3, lower.to(tl.int64))
                tl.store(out + 4, point - before)
                tl.store(out + 5, n_before)
            else:
                whole, _, _ = held_from(level + 1, logits, largest, scale, V, n < 0, BLOCK)
                point = point_of(whole + n_level * each, uniform(record))
                n_before = total * 0
                is_found = total * 0
                for start in range(0, V, CHUNK):
                    if is_found == 0:
                        ids = start + tl.arange(0, CHUNK)
                        inside = ids < V
                        x = tl.load(logits + ids, mask=inside, other=-INFINITY)
                        key = ordered(x).to(tl.int64)
                        mass = masses(x, largest, scale).to(tl.int64)
                        mass = tl.sum(tl.where(key > level, mass, 0), 0)
                        n_on = tl.sum(((key == level) & inside).to(tl.int32), 0).to(tl.int64)
                        taken = tl.minimum(tl.maximum(n_level - n_before, 0), n_on)
                        mass += taken * each
                        if mass > point:
                            is_found += 1
                            tl.store(out + 3, total * 0 + start // CHUNK)
                            tl.store(out + 4, point)
                            tl.store(out + 5, n_before)
                        point -= mass
                        n_before += n_on
            tl.store(out, level)
            tl.store(out + 1, n_level)
            tl.store(out + 2, floor)
