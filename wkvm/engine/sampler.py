"""The rows of a step and their logits to sampled ids: reads the parameters of requests.

Work that no row of a step needs is not done: where all rows are greedy and plain, what is left
is one argmax. The arithmetic is in ``wkvm.kernels.sampling``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from wkvm.core.plan import RowPlan
from wkvm.core.sampling import SamplingParams
from wkvm.engine.memory import PenaltyMemory
from wkvm.kernels.philox import philox_uniform, uniform
from wkvm.kernels.sampling import add_bias, allow_only, ban, choose, choose_likeliest, keep_only

FEW_ROWS = 24
"""Up to here, random numbers from Python integers are quicker than those from tensors."""

NO_MASKS: Mapping[int, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Rules:
    """What of a request's parameters needs work beyond temperature and filters.

    Attributes:
        bias_ids, bias: as tensors, ids distinct; None without bias.
        allowed: ids, as a tensor; None if all are.
        is_plain: there is no such work.
        n_start: tokens that the state had absorbed before the request.
    """

    bias_ids: Tensor | None
    bias: Tensor | None
    allowed: Tensor | None
    has_penalties: bool
    is_plain: bool
    n_start: int


class Sampler:
    """Chooses ids. Remembers, per slot, what depends on the request and its token log.

    ``feed`` comes before ``choose`` in every step; together they see each id once, in order.
    """

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._rules = dict[int, _Rules]()
        self._memory = PenaltyMemory(device)

    @property
    def n_remembered(self) -> int:
        """How many slots hold penalty counts."""
        return self._memory.n_slots

    def forget(self, slots: Iterable[int]) -> None:
        """Drop what is remembered of slots that were freed."""
        for slot in slots:
            self._rules.pop(slot, None)
            self._memory.drop(slot)

    def remembered(self, slot: int) -> tuple[tuple[tuple[int, float], ...], frozenset[int]]:
        """The penalty counts of a slot: see ``SavedRecord``. A copy."""
        return self._memory.copy(slot)

    def feed(self, rows: Sequence[RowPlan]) -> None:
        """Take note of the ids that a step feeds, and of the requests that begin in it."""
        for row in rows:
            if row.fresh:
                self._begin(row)
            if self._rules[row.slot].has_penalties:
                self._memory.feed(row)

    def choose(
        self, rows: Sequence[RowPlan], logits: Tensor, masks: Mapping[int, bytes] = NO_MASKS
    ) -> Tensor:
        """Sample one id for each row.

        Args:
            rows: ``B`` rows that were fed before.
            logits: ``[B, V]`` float32, as the model gave them; left as they were.
            masks: by row, the ids that its constraint allows, as it gives them.

        Returns:
            ``[B]`` int64. Any ids for rows that are not finite.
        """
        logits = self._ruled(rows, logits, masks)
        greedy = [row.params.temperature == 0 for row in rows]
        if all(greedy):
            return choose_likeliest(logits)
        drawn = self._draw(rows, logits)
        if not any(greedy):
            return drawn
        return torch.where(self._tensor(greedy), choose_likeliest(logits), drawn)

    def _draw(self, rows: Sequence[RowPlan], logits: Tensor) -> Tensor:
        size = self._vocab_size
        # Greedy rows take part, and their draw is thrown away.
        temperature = [row.params.temperature or 1.0 for row in rows]
        top_k = [min(row.params.top_k or size, size) for row in rows]
        top_p = [row.params.top_p for row in rows]
        min_p = [row.params.min_p for row in rows]
        return choose(
            logits,
            self._tensor(temperature, torch.float32),
            self._uniforms(rows),
            top_k=self._tensor(top_k) if min(top_k) < size else None,
            top_p=self._tensor(top_p, torch.float64) if min(top_p) < 1 else None,
            min_p=self._tensor(min_p, torch.float64) if max(min_p) > 0 else None,
        )

    def _uniforms(self, rows: Sequence[RowPlan]) -> Tensor:
        keys = [
            (row.seed, row.branch, self._rules[row.slot].n_start + row.position + len(row.ids))
            for row in rows
        ]
        if len(rows) <= FEW_ROWS:
            return self._tensor([uniform(*key) for key in keys], torch.float64)
        # On a GPU this would be a hundred launches; the numbers are few, so they come from here.
        signed = [[word - ((word >> 63) << 64) for word in key] for key in keys]
        seed, branch, position = torch.tensor(signed, dtype=torch.int64).unbind(1)
        return philox_uniform(seed, branch, position).to(self._device)

    def _ruled(self, rows: Sequence[RowPlan], logits: Tensor, masks: Mapping[int, bytes]) -> Tensor:
        """The logits after bias, allowed and banned ids, constraints and penalties."""
        rules = [self._rules[row.slot] for row in rows]
        if (
            not masks
            and all(rule.is_plain for rule in rules)
            and not any(row.banned_ids for row in rows)
        ):
            return logits
        logits = logits.clone()
        for at, (row, rule) in enumerate(zip(rows, rules, strict=True)):
            if rule.bias_ids is not None and rule.bias is not None:
                add_bias(logits[at], rule.bias_ids, rule.bias)
            if rule.allowed is not None:
                allow_only(logits[at], rule.allowed)
            if row.banned_ids:
                ban(logits[at], self._tensor(row.banned_ids))
        if masks:
            packed = torch.frombuffer(bytearray(b"".join(masks.values())), dtype=torch.uint8)
            packed = packed.view(len(masks), -1).to(self._device)
            keep_only(logits, self._tensor(list(masks)), packed)
        penalized = [at for at, rule in enumerate(rules) if rule.has_penalties]
        if penalized:
            self._memory.penalize(logits, penalized, [rows[at] for at in penalized])
        return logits

    def _begin(self, row: RowPlan) -> None:
        params, entry = row.params, row.entry
        self._rules[row.slot] = self._rules_of(params, 0 if entry is None else entry.n_start)
        if params.has_penalties:
            self._memory.start(row.slot, entry, decay=params.penalty_decay)
        else:
            self._memory.drop(row.slot)

    def _rules_of(self, params: SamplingParams, n_start: int) -> _Rules:
        bias = dict[int, float]()
        for token_id, value in params.logit_bias:
            bias[token_id] = bias.get(token_id, 0.0) + value
        return _Rules(
            bias_ids=self._tensor(list(bias)) if bias else None,
            bias=self._tensor(list(bias.values()), torch.float32) if bias else None,
            allowed=None if params.allowed_ids is None else self._tensor(params.allowed_ids),
            has_penalties=params.has_penalties,
            is_plain=not (bias or params.allowed_ids is not None or params.has_penalties),
            n_start=n_start,
        )

    def _tensor(
        self,
        values: Sequence[int] | Sequence[float] | Sequence[bool],
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
