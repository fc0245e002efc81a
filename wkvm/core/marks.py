"""Where the state of a prompt is kept on the way."""

from collections.abc import Sequence

from wkvm.core.config import CUT_MULTIPLE

LEAST_TOKENS = 2 * CUT_MULTIPLE
"""Prompts up to here leave nothing: one that does takes a step more, and little would be spared."""

MOST_BORDERS = 16
"""Borders of messages in one prompt at which its state is kept: the first few and the last ones."""

FIRST_BORDERS = 4
"""Of these, how many are the first ones: instructions and tools, which other prompts have, too."""

MOST_STRIDES = 16
"""Places of one prompt at which its state is kept for its length alone."""


def marks_of(n_tokens: int, borders: Sequence[int], every: int) -> set[int]:
    """After how many tokens the state of a prompt is kept: multiples of ``CUT_MULTIPLE``.

    These are the last place where it is cut, so that at least one token is left; of each border the
    last one at or before it; and one each ``every`` tokens, or where that would be too many, in as
    many equal parts as may be.

    Args:
        n_tokens: of the prompt.
        borders: after how many tokens messages end, in any order; what is not within is ignored.
        every: 0 for none.
    """
    if n_tokens <= LEAST_TOKENS:
        return set()
    last = _cut(n_tokens - 1)
    inner = sorted({_cut(border) for border in borders if 0 < border < n_tokens})
    if len(inner) > MOST_BORDERS:
        inner = inner[:FIRST_BORDERS] + inner[FIRST_BORDERS - MOST_BORDERS :]
    marks = {last, *inner}
    if every:
        stride = max(_cut(every), _cut(-(-last // MOST_STRIDES) + CUT_MULTIPLE - 1), CUT_MULTIPLE)
        marks.update(range(stride, last, stride))
    marks.discard(0)
    return marks


def _cut(n_tokens: int) -> int:
    return n_tokens // CUT_MULTIPLE * CUT_MULTIPLE
