"""Where the messages of a prompt end in its text."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from wkvm.gateway.errors import TemplateError

Messages: TypeAlias = Sequence[Mapping[str, object]]

LONG_PROMPT = 256
"""Characters from which on it is of use to know where messages end."""

FIRST_BORDERS, LAST_BORDERS = 2, 3
"""Of so many messages, the first and the last ones, it is found out: each is a rendering more."""


def borders_of(text: str, messages: Messages, render: Callable[[Messages], str]) -> list[int]:
    """Where the first messages end, which other conversations share, and the last ones.

    Those between were the last ones once, when the conversation was shorter.

    Args:
        text: of the whole prompt.
        render: the text of a part of the conversation. A template may refuse one.

    Returns:
        Places in ``text``; none of a short one.
    """
    n, borders = len(messages), list[int]()
    if len(text) < LONG_PROMPT:
        return borders
    ends = {*range(1, min(FIRST_BORDERS, n) + 1), *range(max(n - LAST_BORDERS, 0) + 1, n + 1)}
    for end in sorted(ends):
        with contextlib.suppress(TemplateError):
            borders.append(n_shared(text, render(messages[:end])))
    return borders


def n_shared(one: str, other: str) -> int:
    """How many characters two texts have in common from their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
