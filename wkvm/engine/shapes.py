"""What steps were made of, for who has to find out why the engine failed: counts, no ids."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from wkvm.core.plan import RowPlan, StepPlan

MAX_ROWS = 256
"""Of a step that is told row by row."""
MAX_PAST = 64
"""Steps that are over."""


class Past(NamedTuple):
    """A step that is over.

    Attributes:
        at: when it was committed, on the loop's clock.
        n_rows, n_saves, n_grants, n_copies: of its plan.
    """

    at: float
    n_rows: int
    n_saves: int
    n_grants: int
    n_copies: int


class History:
    """The last steps of an engine, and the one that failed last. Costs a microsecond a step."""

    def __init__(self) -> None:
        self._past = deque[Past](maxlen=MAX_PAST)
        self._failed: dict[str, object] | None = None

    def ended(self, plan: StepPlan, at: float) -> None:
        """A step is over, and was committed."""
        past = Past(at, len(plan.rows), len(plan.saves), len(plan.grants), len(plan.copies))
        self._past.append(past)

    def failed(self, plan: StepPlan) -> None:
        """A step raised."""
        self._failed = shape_of(plan)

    def told(self, in_flight: Iterable[StepPlan], now: float) -> dict[str, object]:
        """All of it, as JSON can hold it. May be called from any thread."""
        return {
            "in_flight": [shape_of(one) for one in in_flight],
            "failed_last": self._failed,
            "over": [
                {"age_s": round(now - one.at, 3), **one._asdict(), "at": round(one.at, 3)}
                for one in list(self._past)
            ],
        }


def shape_of(plan: StepPlan) -> dict[str, object]:
    """What a plan is made of, as JSON can hold it. No ids, of tokens or of requests."""
    return {
        "n_rows": len(plan.rows),
        "n_tokens": plan.n_tokens,
        "n_saves": len(plan.saves),
        "n_grants": len(plan.grants),
        "n_copies": len(plan.copies),
        "n_freed": len(plan.freed),
        "rows": [_row(one) for one in plan.rows[:MAX_ROWS]],
    }


def _row(row: RowPlan) -> dict[str, object]:
    return {
        "slot": row.slot,
        "n_ids": row.n_ids,
        "position": row.position,
        "n_prompt": row.n_prompt,
        "n_output": row.n_output,
        "fresh": row.fresh,
        "samples": row.samples,
        "from_state": row.entry is not None,
        "grammar": row.constraint is not None,
        "logprobs": row.params.logprobs is not None,
    }
