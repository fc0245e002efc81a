"""Prompts that begin as others did: who goes on from which checkpoint, waits for one, leaves one.

One object beside the scheduler, which calls it where requests get slots, have rows and lose slots.
"""

from typing import Any

from wkvm.core.alike import comes, ids_of, owner_of, takes_part, will_pass
from wkvm.core.guests import Guests
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.marks import marks_of
from wkvm.core.prefixes import Budget, Checkpoint, Claim, Coming, Match, PrefixIndex, Tier
from wkvm.core.radix import ID_BYTES
from wkvm.core.saving import Savings
from wkvm.core.siblings import Siblings
from wkvm.core.slots import TenantSlots
from wkvm.core.start import Copy, Entry, Save
from wkvm.core.table import Request, slot_of
from wkvm.core.waiting import WaitingLine

PATIENT_PLANS = 16
"""So many plans may go by until a state is kept: a plan has room for few copies to the host. Then
the prompt goes on without."""


class Reuse:
    """The checkpoints of an engine's prompts, and the requests that have to do with them.

    A request is looked up when its turn for a slot comes. It goes on from the deepest checkpoint
    at or before the end of what its prompt has in common with others. If a deeper one is about to
    come, it is set aside until that is there, or will not come: then the first of those that
    waited computes it. None waits for a request of a lower priority, or for one that lost its slot.

    Args:
        waiting, slots, guests, savings: the scheduler's.

    Attributes:
        siblings: told of each request before it waits.
    """

    def __init__(
        self,
        budget: Budget,
        waiting: WaitingLine,
        slots: TenantSlots,
        guests: Guests | None,
        savings: Savings,
    ) -> None:
        self._budget = budget
        self._waiting = waiting
        self._slots = slots
        self._guests = guests
        self._savings = savings
        self._index = PrefixIndex(
            host_bytes=budget.host_bytes,
            device_bytes=budget.device_bytes,
            page_bytes=budget.page_bytes,
            release=self._release,
        )
        self.siblings = Siblings(self._index, is_on=budget.off_grid and guests is None)
        self._leading = dict[int, Request]()
        """Those that are to leave checkpoints."""
        self._fresh = dict[int, Request]()
        """Those that go on from checkpoints and have had no row."""
        self._coming = dict[int, Coming]()
        self._saves, self._copies = list[Save](), list[Copy]()
        self._n_saves_left = 0
        self.n_hits = self.n_misses = self.n_saved_tokens = 0
        if guests is not None:
            guests.reclaim = self._reclaim_pages

    # --- in -----------------------------------------------------------------------------------

    def look_up(self, request: Request) -> bool:
        """Find out what a request that is next in line begins from.

        Linear in its prompt, if anything has changed since the last time.

        Returns:
            Whether it may have a slot; else it is to be set aside.
        """
        if not takes_part(request) or request.looked_up == self._index.version:
            return True
        leader = self.siblings.leader_of(request)
        if leader is not None and self._is_worth(len(leader.prompt) - 1):
            self._lead(leader, self.siblings.claim(leader))
        match = self.siblings.find(request)
        if match is None:
            match = self._index.find(owner_of(request), ids_of(request))
        claim = self._to_wait_for(request, match) if request.is_patient else None
        if claim is not None:
            claim.waiters.append(request)
            request.prefix, request.awaits = None, claim
            return False
        request.prefix, request.looked_up = match.checkpoint, self._index.version
        return True

    def _to_wait_for(self, request: Request, match: Match) -> Claim | None:
        """What will spare a request more than it finds: perhaps a checkpoint made for it."""
        least = 0 if match.checkpoint is None else match.checkpoint.n_tokens
        coming = next((one for one in match.claims if comes(one, request)), None)
        if coming is not None:
            least = coming.n_tokens
        if match.n_common > least and self._is_worth(match.n_common):
            ids = ids_of(request)[: match.n_common * ID_BYTES]
            for leader in self._leading.values():
                if will_pass(leader, request, match.n_common, ids):
                    claim = self._claim(leader, ids)
                    if claim is not None:
                        return claim
        return coming

    def begin(self, request: Request) -> None:
        """A request gets a slot: it begins from what was found, and is to leave what is missing."""
        if not takes_part(request):
            return
        checkpoint, n_had = request.prefix, 0
        if checkpoint is None:
            self.n_misses += 1
        else:
            n_had = checkpoint.n_tokens
            self._index.use(checkpoint)
            self._fresh[request.request_id] = request
            if checkpoint.slot is not None:
                self._pin(checkpoint)
            request.entry = Entry(
                record=checkpoint.record,
                n_start=0,
                seen=frozenset(request.prompt[:n_had]) if request.params.has_penalties else (),
                slot=checkpoint.slot,
            )
            request.n_computed = request.n_cached = request.n_checked = n_had
            self.n_hits += 1
            self.n_saved_tokens += n_had
        every = self._budget.every
        if self._guests is not None and not self._index.has_room(
            Tier.DEVICE, self._budget.record_bytes
        ):
            every = 0  # each would be a copy of all pages before it
        marks = marks_of(len(request.prompt), request.spec.borders, every)
        ids = ids_of(request)
        if marks:
            # Where a prompt parts from another one, a third may do so, too.
            marks.add(self._index.find(owner_of(request), ids).n_common)
        for n_tokens in sorted(marks):
            if n_tokens > n_had and self._is_worth(n_tokens):
                self._claim(request, ids[: n_tokens * ID_BYTES])
        if self.siblings.begun(request) and self._is_worth(len(request.prompt) - 1):
            self._lead(request, self.siblings.claim(request))
        if not request.claims:
            request.ids = None

    def _claim(self, leader: Request, ids: bytes) -> Claim | None:
        return self._lead(leader, self._index.claim(owner_of(leader), ids, leader))

    def _lead(self, leader: Request, claim: Claim | None) -> Claim | None:
        if claim is not None:
            leader.claims[claim.n_tokens] = claim
            leader.marks = sorted(leader.claims, reverse=True)
            self._leading[leader.request_id] = leader
        return claim

    def _is_worth(self, n_tokens: int) -> bool:
        """Whether a state of so many tokens could be kept anywhere."""
        n_bytes = self._budget.state_bytes(n_tokens)
        return self._goes_to_host(n_tokens) or self._index.has_room(Tier.DEVICE, n_bytes)

    def _goes_to_host(self, n_tokens: int) -> bool:
        n_bytes = self._budget.state_bytes(n_tokens) + n_tokens * ID_BYTES
        return self._index.has_room(Tier.HOST, n_bytes)

    # --- a plan -------------------------------------------------------------------------------

    def capture(self, n_saves: int) -> None:
        """Have the states kept that are due before the rows of the next plan.

        Args:
            n_saves: how many copies to the host it has room for.
        """
        self._n_saves_left = n_saves
        for checkpoint in self.siblings.spent():
            self._index.drop(checkpoint)
        for victim in self._index.surplus(Tier.DEVICE):
            self._evict(victim)
        for request in list(self._leading.values()):
            if not request.marks or request.marks[-1] != request.n_computed:
                continue
            claim = request.claims[request.n_computed]
            is_wanted = self.siblings.is_wanted(claim)
            if is_wanted and (self._copy(request, claim) or self._save(request, claim)):
                self._passed(request, claim)
            elif (
                is_wanted
                and request.n_stalled < PATIENT_PLANS
                and self._goes_to_host(claim.n_tokens)
            ):
                request.n_stalled += 1
            else:
                self._passed(request, claim)
                self._wake(self._index.give_up(claim), are_patient=False)

    def _copy(self, request: Request, claim: Claim) -> bool:
        """Keep a state in a slot that nobody needs now, if there is one and it is within budget."""
        if not self._index.has_room(Tier.DEVICE, self._budget.state_bytes(claim.n_tokens)):
            return False
        if not self._slots.n_unused and (self._guests is not None or not self.reclaim_slot()):
            return False  # with pages, what is there would be lost, and this one can go to the host
        pages, slot, ticket = tuple[int, ...](), self._slots.lend(), self._savings.ticket()
        if self._guests is not None:
            pages = self._guests.keep(ticket, request, claim.n_tokens)
        checked = pages[request.n_checked // PAGE_TOKENS :]
        self._copies.append(Copy(slot_of(request), slot, ticket, checked))
        request.n_checked = claim.n_tokens
        self._coming[ticket] = Coming(claim, slot, pages)
        claim.is_planned = True
        return True

    def _save(self, request: Request, claim: Claim) -> bool:
        """Keep a state in host memory, if the plan has room for that."""
        if not self._n_saves_left or not self._goes_to_host(claim.n_tokens):
            return False
        ticket, pages = self._savings.ticket(), tuple[int, ...]()
        if self._guests is not None:
            pages = self._guests.keep(ticket, request, claim.n_tokens)
        n_checked = request.n_checked // PAGE_TOKENS
        self._to_host(claim, Save(slot_of(request), ticket, pages, n_checked))
        request.n_checked = claim.n_tokens
        return True

    def _to_host(self, claim: Claim, save: Save) -> None:
        self._n_saves_left -= 1
        self._saves.append(save)
        self._coming[save.ticket] = Coming(claim)
        claim.is_planned = True

    def take(self) -> tuple[tuple[Save, ...], tuple[Copy, ...]]:
        """The copies of the next plan, after all its requests have got their slots."""
        saves, copies = tuple(self._saves), tuple(self._copies)
        self._saves, self._copies = [], []
        return saves, copies

    def started(self) -> list[tuple[int, int]]:
        """Those that have had their first rows since the last call, and what they went on from."""
        if not self._fresh:
            return []
        begun = [request for request in self._fresh.values() if not request.is_fresh]
        for request in begun:
            self._unpin(request)
        return [(request.request_id, request.n_cached) for request in begun]

    def landed(self, ticket: int, record: Any) -> bool:
        """A copy to the host has come, or will not: then ``record`` is None.

        Returns:
            Whether it was one of these.
        """
        coming = self._coming.pop(ticket, None)
        if coming is None:
            return False
        claim = coming.claim
        if record is None:
            self._wake(self._index.give_up(claim), are_patient=False)
        else:
            n_bytes = self._budget.state_bytes(claim.n_tokens)
            self._wake(self._index.keep(claim, n_bytes=n_bytes, record=record))
        return True

    def copied(self, ticket: int, *, is_there: bool) -> None:
        """A copy within the device was made, or was not."""
        claim, slot, pages = self._coming.pop(ticket)
        if self._guests is not None:
            if is_there:
                self._guests.lend(pages)
            self._guests.let_go(ticket)
        if is_there:
            n_bytes = self._budget.record_bytes
            self._wake(self._index.keep(claim, n_bytes=n_bytes, slot=slot, pages=pages))
            self._slots.idle(1)
        elif slot is not None:
            self._slots.reclaim(slot)
            self._wake(self._index.give_up(claim), are_patient=False)

    # --- out ----------------------------------------------------------------------------------

    def left(self, request: Request) -> None:
        """A request lost its slot, or ended where it was: nobody waits for it, nor it for anybody.

        What is on its way of it comes all the same. One that has had no row begins anew.
        """
        self.siblings.left(request)
        if request.awaits is not None:
            request.awaits.waiters.remove(request)
            request.awaits = None
        if request.request_id in self._fresh:
            self._unpin(request)
            request.entry, request.n_computed, request.n_cached = None, 0, 0
            request.looked_up = -1
        if self._leading.pop(request.request_id, None) is not None:
            claims = list(request.claims.values())
            request.claims, request.marks, request.ids = {}, [], None
            for claim in claims:
                self._wake(self._index.give_up(claim))

    def _passed(self, request: Request, claim: Claim) -> None:
        request.n_stalled = 0
        request.marks.pop()
        del request.claims[claim.n_tokens]
        if not request.claims:
            del self._leading[request.request_id]
            request.ids = None

    def _wake(self, waiters: list[Any], *, are_patient: bool = True) -> None:
        """Let requests look again. They had their turn, so they come before others."""
        for request in reversed(waiters):
            request.awaits = None
            request.is_patient = are_patient
            self._waiting.bring_back(request)

    # --- room for requests ------------------------------------------------------------------

    def reclaim_slot(self) -> bool:
        """Free a slot that holds a checkpoint; whether there was one that nobody needs just now."""
        victim = self._index.victim(Tier.DEVICE)
        if victim is None:
            return False
        self._evict(victim)
        return True

    def take_over(self, request: Request) -> int:
        """The slot of what a request goes on from becomes its own: there is no other.

        Raises:
            ValueError: it goes on from nothing that is in a slot.
        """
        checkpoint = request.prefix
        if checkpoint is None or checkpoint.slot is None or checkpoint.n_pins != 1:
            raise ValueError(f"request {request.request_id} has no slot to take over")
        checkpoint.n_pins = 0
        self._index.evict(checkpoint, releases=False)
        self._slots.adopt(request.tenant)
        if self._guests is not None:
            self._guests.take_back(checkpoint.pages)
        return checkpoint.slot

    def _reclaim_pages(self, n_pages: int) -> None:
        """Free so many pages that only checkpoints have."""
        guests = self._guests
        if guests is None:
            return
        wanted = guests.n_unused + n_pages
        while guests.n_unused < wanted:
            victim = self._index.victim(Tier.DEVICE)
            if victim is None:
                return
            self._index.evict(victim)

    def _evict(self, victim: Checkpoint) -> None:
        """Let a checkpoint on the device go: to the host, if that costs nobody any time."""
        slot = victim.slot
        if (
            slot is None
            or victim.pages
            or not self._n_saves_left
            or not self._goes_to_host(victim.n_tokens)
        ):
            self._index.evict(victim)
            return
        # Copies to the host come first in a plan, so the slot is free for whoever gets it next.
        self._to_host(self._index.demote(victim), Save(slot, self._savings.ticket()))

    def _pin(self, checkpoint: Checkpoint) -> None:
        checkpoint.n_pins += 1
        if checkpoint.n_pins == 1:
            self._slots.idle(-1)

    def _unpin(self, request: Request) -> None:
        del self._fresh[request.request_id]
        checkpoint, request.prefix = request.prefix, None
        if checkpoint is not None and checkpoint.n_pins:
            checkpoint.n_pins -= 1
            if not checkpoint.n_pins:
                self._slots.idle(1)

    def _release(self, checkpoint: Checkpoint) -> None:
        """A checkpoint on the device is gone."""
        if checkpoint.slot is not None:
            self._slots.idle(-1)
            self._slots.reclaim(checkpoint.slot)
        if self._guests is not None:
            self._guests.take_back(checkpoint.pages)

    def by_name(self) -> dict[str, int]:
        """Counts and gauges; names as in ``docs/protocol.md``."""
        return {
            **self._index.by_name(),
            "n_prefix_waiting": self._waiting.n_aside,
            "prefix_hits_total": self.n_hits,
            "prefix_misses_total": self.n_misses,
            "prefix_tokens_total": self.n_saved_tokens,
        }
