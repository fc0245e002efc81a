"""Which rows of a step decode, which bring prompts, and which need more than that.

In most steps every row decodes and nothing else is to be done. So all rows are looked at in C: a
loop in Python over 256 of them takes longer than all that is left of a launch.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from operator import ge, itemgetter, not_
from typing import Any, NamedTuple

from wkvm.core.plan import RowPlan


def _field(name: str) -> "itemgetter[object]":
    return itemgetter(RowPlan._fields.index(name))


_SLOT, _POSITION, _N_PROMPT = map(_field, ("slot", "position", "n_prompt"))
_FRESH, _CONSTRAINT, _SAMPLES = map(_field, ("fresh", "constraint", "samples"))


class RowKinds(NamedTuple):
    """Indices of a plan's rows, in order.

    Attributes:
        decodes: rows that absorb an id of the output.
        prompts: all others.
        fresh: rows with which a request begins.
        held: rows whose next id is subject to a grammar.
    """

    decodes: Sequence[int]
    prompts: Sequence[int]
    fresh: Sequence[int]
    held: Sequence[int]

    def without(self, failed: Collection[int]) -> "RowKinds":
        """The rows that are left if some have failed."""
        return RowKinds(*([at for at in kind if at not in failed] for kind in self))


def row_kinds(rows: Sequence[RowPlan]) -> RowKinds:
    """Sort the rows of a plan."""
    places = range(len(rows))
    fresh: Sequence[int] = ()
    held: Sequence[int] = ()
    if any(map(_FRESH, rows)):
        fresh = tuple(compress(places, map(_FRESH, rows)))
    if any(map(_CONSTRAINT, rows)):
        held = [at for at in compress(places, map(_CONSTRAINT, rows)) if rows[at].samples]
    is_decode = list(map(ge, map(_POSITION, rows), map(_N_PROMPT, rows)))
    if all(is_decode):
        return RowKinds(places, (), fresh, held)
    decodes = tuple(compress(places, is_decode))
    return RowKinds(decodes, tuple(compress(places, map(not_, is_decode))), fresh, held)


def slots_of(rows: Sequence[RowPlan], places: Sequence[int]) -> tuple[int, ...]:
    """The slots of the rows at ``places``."""
    if len(places) == len(rows):
        return tuple(map(_SLOT, rows))
    return tuple(rows[at].slot for at in places)


class FreshSlots(NamedTuple):
    """The slots of fresh rows.

    Attributes:
        blank: those that start from zero.
        entries: records on the host, and the slots that start from each. They are told apart as
            objects, not by what they hold.
        copies: slots with records, and those that start from each.
    """

    blank: list[int]
    entries: list[tuple[Any, list[int]]]
    copies: list[tuple[int, list[int]]]


def fresh_slots(rows: Iterable[RowPlan]) -> FreshSlots:
    """Sort the slots of fresh rows by what they start from."""
    blank, entries = list[int](), dict[int, tuple[Any, list[int]]]()
    copies = dict[int, list[int]]()
    for row in rows:
        entry = row.entry
        if entry is None:
            if row.fresh:
                blank.append(row.slot)
        elif entry.slot is not None:
            copies.setdefault(entry.slot, []).append(row.slot)
        else:
            entries.setdefault(id(entry.record), (entry.record, []))[1].append(row.slot)
    return FreshSlots(blank, list(entries.values()), list(copies.items()))
