"""States that are kept only if they are finite: which of a plan's they are."""

from collections.abc import Sequence
from typing import NamedTuple

from wkvm.core.errors import StateNotFiniteError
from wkvm.core.plan import StepPlan


class Suspect(NamedTuple):
    """A state to look at: what ``Arena.is_finite`` takes, and the ticket of its copy."""

    ticket: int
    slot: int
    pages: Sequence[int]


def suspects(plan: StepPlan) -> list[Suspect]:
    """The states to look at before anything of a plan is carried out."""
    if not (plan.saves or plan.copies):
        return []
    found = [
        Suspect(save.ticket, save.slot, save.pages[save.check_from :])
        for save in plan.saves
        if save.check_from is not None
    ]
    found += [Suspect(copy.ticket, copy.source, copy.pages) for copy in plan.copies]
    return found


def not_finite() -> StateNotFiniteError:
    """Why such a state is not kept."""
    return StateNotFiniteError("the state")
