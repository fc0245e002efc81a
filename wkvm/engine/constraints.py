"""What the constraints of a step's rows leave to choose from, and what the choice does to them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from wkvm.core.errors import InvalidParameterError, RequestError
from wkvm.core.plan import RowPlan


@dataclass(frozen=True, slots=True)
class Choices:
    """What rows with constraints may choose from. Rows are named by their index.

    Attributes:
        masks: for each row that has a choice, its ids, as ``Constraint.next_ids`` gives them.
        complete: rows that have none, and whose output is complete.
        unmet: why the other rows have none.
    """

    masks: dict[int, bytes] = field(default_factory=dict[int, bytes])
    complete: set[int] = field(default_factory=set[int])
    unmet: dict[int, RequestError] = field(default_factory=dict[int, RequestError])

    def advance(self, rows: Sequence[RowPlan], chosen: dict[int, int]) -> None:
        """Take note of what was chosen, by row: some outputs are complete with it."""
        for at in self.masks:
            constraint = rows[at].constraint
            if constraint is None or at not in chosen:
                continue
            try:
                if constraint.advance(chosen[at]):
                    self.complete.add(at)
            except InvalidParameterError as error:
                self.unmet[at] = error


def constrained(rows: Sequence[RowPlan]) -> Choices:
    """Ask the constraints of rows that sample."""
    choices = Choices()
    for at, row in enumerate(rows):
        constraint = row.constraint
        if constraint is None:
            continue
        try:
            mask = constraint.next_ids(may_stop=not row.banned_ids)
        except InvalidParameterError as error:
            choices.unmet[at] = error
            continue
        if mask.count(0) < len(mask):
            choices.masks[at] = mask
        elif constraint.may_end:
            choices.complete.add(at)
        else:
            choices.unmet[at] = InvalidParameterError("grammar", "no id that may come next is left")
    return choices
