"""Images of states with a guest, between a GPU's runner and its movers: what is on its way.

A record goes with the steps, as in models without a guest, and with it the page that is still
being written. Full pages nobody writes to: they go beside the steps, and come when they come.
"""

import logging
from collections.abc import Sequence

import torch

from wkvm.core.errors import StepFailedError, WkvmError
from wkvm.core.start import Grant, Save
from wkvm.engine.flights import Saving
from wkvm.engine.page_mover import Job, PageMover
from wkvm.engine.state_mover import StateMover
from wkvm.state.arena import Arena
from wkvm.state.guest import finished, to_fill
from wkvm.state.memory import host_memory

logger = logging.getLogger(__name__)

PATIENCE_S = 0.005
"""How long a step without rows waits for what is late, before another may be planned."""


class Images:
    """What goes between the slots of one arena and the host. Nothing here waits for the device.

    Args:
        mover: for records, and a page with each if there is a guest.
    """

    def __init__(self, arena: Arena, mover: StateMover) -> None:
        self._arena = arena
        self._mover = mover
        self._pages = None if arena.pool is None else PageMover(arena.pool)
        self._saving = dict[int, Saving]()
        self._loading = dict[int, Job]()
        self._failed = set[int]()

    # --- launch -----------------------------------------------------------------------------

    def save(self, save: Save) -> Saving:
        """Send a state to the host, as it is after what was launched before.

        Raises:
            RuntimeError, MemoryError: the host has no memory for it.
        """
        record, pool, pages = self._arena.records[save.slot], self._arena.pool, save.pages
        if pool is None or self._pages is None or not pages:
            return Saving(save.ticket, self._mover.down(record))
        *full, last = pages
        size, n_record = pool.spec.page_bytes, self._arena.layout.record_bytes
        if not full:
            return Saving(save.ticket, self._mover.down(record, pool.page_bytes[last]))
        with torch.inference_mode(mode=False):
            image = host_memory(n_record + len(pages) * size)
            target = image[n_record : n_record + len(full) * size]
        copy = self._mover.down(record, pool.page_bytes[last])

        def put_together() -> None:
            there = copy.wait()
            image[:n_record] = there[:n_record]
            image[-size:] = there[n_record:]

        job = self._pages.down(full, target, then=put_together)
        return Saving(save.ticket, copy, job=job, image=image)

    def grant(self, grants: Sequence[Grant]) -> None:
        """Tell the device of pages, and have them filled."""
        pool, layout = self._arena.pool, self._arena.layout
        if pool is None or self._pages is None:
            raise ValueError("pages are granted, and the model has no guest")
        awaited = {grant.ticket for grant in grants if grant.beside}
        try:
            for grant in grants:
                pool.grant(grant.slot, grant.pages)
                if grant.beside:
                    self._loading[grant.ticket] = self._pages.up(*to_fill(layout, grant))
        finally:
            self._failed |= awaited - self._loading.keys()

    # --- collect ----------------------------------------------------------------------------

    def hold(self, savings: Sequence[Saving]) -> frozenset[int]:
        """Take those that come late; their tickets."""
        late = {saving.ticket: saving for saving in savings if saving.job is not None}
        self._saving |= late
        return frozenset(late)

    def turn(self, *, waits: bool) -> None:
        """Give what is late its chance; ``waits``: some time, if nothing has come yet."""
        if self._pages is None:
            return
        self._pages.turn()
        jobs = [*self._loading.values(), *(one.job for one in self._saving.values() if one.job)]
        if waits and jobs and not any(job.is_over for job in jobs):
            jobs[0].wait(PATIENCE_S)

    def come(self) -> list[Saving]:
        """The savings that have come, or failed, since the last call."""
        come = [one for one in self._saving.values() if one.job is not None and one.job.is_over]
        for saving in come:
            del self._saving[saving.ticket]
        return come

    def image_of(self, saving: Saving) -> torch.Tensor:
        """The image of a saving. Waits for one that does not come late.

        Raises:
            StepFailedError: it could not be moved.
        """
        if saving.job is not None and saving.job.error is not None:
            raise StepFailedError from saving.job.error
        there = saving.copy.wait() if saving.image is None else saving.image
        return finished(self._arena.layout, there)

    def loaded(self) -> tuple[frozenset[int], dict[int, WkvmError]]:
        """Tickets of grants whose pages were filled since the last call, or could not be."""
        over = {ticket: job for ticket, job in self._loading.items() if job.is_over}
        for ticket in over:
            del self._loading[ticket]
        failed = {ticket for ticket, job in over.items() if job.error is not None} | self._failed
        self._failed = set()
        return frozenset(over.keys() - failed), {ticket: StepFailedError() for ticket in failed}
