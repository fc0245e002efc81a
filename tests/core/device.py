"""A device that runs plans as one with graphs does: ids stay on it, and rows that ended freeze.

It knows nothing of requests but what the rows say. Of each slot it keeps the log of the tokens
that the state has absorbed; the id that follows a log is ``next_id_of``. A record is a log, too.
Where slots have pages the log is in these, and in them alone: a page that was lost, shared by who
writes to it, or filled with another's tokens changes what comes after.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.plan import RowPlan, StepPlan
from wkvm.core.start import Grant, SavedRecord


def next_id_of(key: int, log: Sequence[int], vocab_size: int) -> int:
    """The id that is sampled after a log, with the random numbers of a key: seed plus branch."""
    return hash((key, tuple(log))) % vocab_size


def continuation(
    key: int,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    min_tokens: int,
    stops: frozenset[int] | set[int],
    vocab_size: int,
) -> tuple[list[int], int | None]:
    """What a request gives that runs alone and undisturbed: its output, and its stop id."""
    log = list(prompt)
    while len(log) < len(prompt) + max_tokens:
        token_id = next_id_of(key, log, vocab_size)
        if token_id in stops and len(log) - len(prompt) >= min_tokens:
            return log[len(prompt) :], token_id
        log.append(token_id)
    return log[len(prompt) :], None


@dataclass
class Slot:
    """What the device keeps of a slot.

    Attributes:
        log: the tokens that its state has absorbed.
        first: the row that started it.
        next_id: the id that was sampled last.
        n_output: how many ids were sampled, without a stop id.
        done: whether the request is over: its rows are skipped.
    """

    first: RowPlan
    log: list[int] = field(default_factory=list[int])
    next_id: int | None = None
    n_output: int = 0
    done: bool = False


class FakeDevice:
    """Runs plans in order.

    Attributes:
        saved: what the last plan was to save, by ticket.
        table: the pages of each slot, as they were granted last.
        pages: what each page holds, one entry a token.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.slots = dict[int, Slot]()
        self.saved = dict[int, SavedRecord]()
        self.table = dict[int, tuple[int, ...]]()
        self.pages = dict[int, list[int | None]]()

    def run(self, plan: StepPlan) -> list[int | None]:
        """The sampled id of each row; None for one that samples none or is frozen."""
        self.saved = {
            save.ticket: SavedRecord(tuple(self._log(save.slot, save.pages))) for save in plan.saves
        }
        for slot in plan.freed:
            self.slots.pop(slot, None)
        for page in plan.freed_pages:
            self.pages[page] = [None] * PAGE_TOKENS
        for copy in plan.copies:
            source = self.slots[copy.source]
            self.slots[copy.target] = Slot(source.first, list(self._log(copy.source)))
            self.table.pop(copy.target, None)
        for grant in plan.grants:
            assert len(set(grant.pages)) == len(grant.pages)
            self.table[grant.slot] = grant.pages
            if not grant.beside:
                self.load(grant)
        return [self._run_row(row) for row in plan.rows]

    def load(self, grant: Grant) -> None:
        """Put what a grant names into its pages."""
        log = grant.record or ()
        for at, page in enumerate(grant.pages):
            there = log[at * PAGE_TOKENS : (at + 1) * PAGE_TOKENS]
            if at >= grant.n_shared:
                self.pages[page] = [*there, *[None] * (PAGE_TOKENS - len(there))]
            assert self.pages[page][: len(there)] == list(there), "it shares what is not there"

    def _log(self, slot: int, pages: Sequence[int] | None = None) -> list[int]:
        """The tokens of a slot, from its pages if it has any."""
        log = self.slots[slot].log
        if slot not in self.table:
            return log
        pages = self.table[slot] if pages is None else pages
        held = [token_id for page in pages for token_id in self.pages[page]][: len(log)]
        assert held == log, "a page is not its own"
        return log

    def _write(self, slot: int, ids: Sequence[int], at: int) -> None:
        for place, token_id in enumerate(ids, start=at):
            page = self.table[slot][place // PAGE_TOKENS]
            self.pages[page][place % PAGE_TOKENS] = token_id

    def _run_row(self, row: RowPlan) -> int | None:
        if row.fresh:
            self._begin(row)
        else:
            assert row.entry is None
        slot = self.slots[row.slot]
        if slot.done:
            return None
        ids = row.ids
        if row.position >= row.n_prompt:
            assert slot.next_id is not None
            assert ids in ((), (slot.next_id,)), "the host and the device know different ids"
            ids = (slot.next_id,)
        self._log(row.slot)
        if row.slot in self.table:
            self._write(row.slot, ids, len(slot.log))
        slot.log += ids
        if not row.samples:
            return None
        key = slot.first.seed + slot.first.branch
        token_id = next_id_of(key, slot.log, self._vocab_size)
        params, slot.next_id = slot.first.params, token_id
        if token_id in slot.first.stops and slot.n_output >= params.min_tokens:
            slot.done = True
        else:
            slot.n_output += 1
            slot.done = slot.n_output == params.max_tokens
        return token_id

    def _begin(self, row: RowPlan) -> None:
        kept = dict(self.slots)
        slot = self.slots[row.slot] = Slot(row, n_output=row.n_output)
        if row.entry is not None:
            source = row.entry.slot
            slot.log += row.entry.record if source is None else kept[source].log
            assert len(slot.log) == row.entry.n_start + row.position
        else:
            assert row.position == 0
        if row.position >= row.n_prompt:
            (slot.next_id,) = row.ids
