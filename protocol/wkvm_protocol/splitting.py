"""Cutting a Tokens or a Logprobs that is too long for one frame into several."""

from collections.abc import Sequence

from wkvm_protocol.codec import token_entries
from wkvm_protocol.messages import Logprobs, Tokens, pack_ids

_OVERHEAD = 128
"""More than tag, numbers and length prefixes of either message take."""


def split_tokens(message: Tokens, limit: int) -> Sequence[Tokens]:
    """Cut between ids so that each part encodes to at most ``limit`` bytes.

    Order is kept. The parts name choices and counts, whether the message did or not.
    """
    room = (limit - _OVERHEAD) // 4
    parts: list[Tokens] = []
    part = _Part()
    for lane, choice, ids in token_entries(message):
        while True:
            free = room - part.n_words - 3
            if free < min(len(ids), 1):
                parts.append(part.message())
                part = _Part()
                continue
            part.add(lane, choice, ids[:free])
            ids = ids[free:]
            if not ids:
                break
    parts.append(part.message())
    return parts


class _Part:
    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.choices: list[int] = []
        self.counts: list[int] = []
        self.ids: list[int] = []

    @property
    def n_words(self) -> int:
        return 3 * len(self.lanes) + len(self.ids)

    def add(self, lane: int, choice: int, ids: Sequence[int]) -> None:
        self.lanes.append(lane)
        self.choices.append(choice)
        self.counts.append(len(ids))
        self.ids.extend(ids)

    def message(self) -> Tokens:
        return Tokens(*map(pack_ids, (self.lanes, self.ids, self.choices, self.counts)))


def split_logprobs(message: Logprobs, limit: int) -> Sequence[Logprobs]:
    """Cut between positions so that each part encodes to at most ``limit`` bytes.

    One position must fit: ``n_top`` may be at most (limit - 140) / 8.
    """
    n_positions = len(message.ids) // 4
    n_each = max(1, (limit - _OVERHEAD) // (12 + 8 * message.n_top))
    parts: list[Logprobs] = []
    for start in range(0, n_positions, n_each):
        one = slice(4 * start, 4 * (start + n_each))
        top = slice(4 * start * message.n_top, 4 * (start + n_each) * message.n_top)
        parts.append(
            Logprobs(
                request_id=message.request_id,
                choice=message.choice,
                of_prompt=message.of_prompt,
                first=message.first + start,
                n_top=message.n_top,
                ids=message.ids[one],
                logprobs=message.logprobs[one],
                ranks=message.ranks[one],
                top_ids=message.top_ids[top],
                top_logprobs=message.top_logprobs[top],
            )
        )
    return parts
