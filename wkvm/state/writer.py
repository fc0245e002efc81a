"""Transactions of the store: what goes to which tier first, and what happens when one fails."""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from wkvm.core.errors import QuotaError, StoreFailedError
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import Durability
from wkvm.state import reading
from wkvm.state.ballast import Ballast
from wkvm.state.catalogue import Catalogue
from wkvm.state.edits import RESERVED_AT_ONCE, Edit, ReservationError
from wkvm.state.io import IO, Folder
from wkvm.state.ledger import TierError
from wkvm.state.opening import reserve_numbers
from wkvm.state.shelf import Draft, Shelf
from wkvm.state.tables import PayloadRow

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NoRoomError(Exception):
    """Host memory has no room for what would be in it alone."""


class Writer:
    """Runs changes. Threads may call any method at the same time.

    Args:
        clock: seconds since 1970.
    """

    def __init__(
        self,
        io: IO,
        root: Folder,
        catalogue: Catalogue,
        shelf: Shelf,
        *,
        clock: Callable[[], float],
        limits: StoreLimits,
    ) -> None:
        self.ballast = Ballast(io, root)
        self._catalogue = catalogue
        self._shelf = shelf
        self._clock = clock
        self._limits = limits
        self._reserved = 0

    def edit(self, change: Callable[[Edit], T], *, durable: bool = True, frees: bool = False) -> T:
        """Run a change in a transaction, then remove what it freed.

        Args:
            durable: see ``Catalogue.write``.
            frees: likewise.

        Raises:
            StoreFullError, StoreFailedError: see ``Catalogue.write``.
        """
        now, edits = self._clock(), list[Edit]()

        def run(db: sqlite3.Connection) -> T:
            edit = Edit(db, now, self._limits, durable=durable, reserved=self._reserved)
            edits.append(edit)
            return change(edit)

        result = self._catalogue.write(run, durable=durable, frees=frees)
        for file in edits[-1].files:
            self._shelf.payloads.remove(file)
        for uid in edits[-1].uids:
            self._shelf.host.drop(uid)
        if edits[-1].files:
            self.ballast.make()
        return result

    def commit(
        self,
        tenant: str,
        drafts: Sequence[Draft],
        change: Callable[[Edit], T],
        durability: Durability,
    ) -> T:
        """Run a change that puts drafts into the store, by ``put``.

        On disk their files come first. There too goes what is larger than all memory for states,
        though memory was asked for: the record's ``ack`` says so. A transaction that fails leaves
        no file, unless the catalogue failed: then it may have the version after all, and the next
        opening knows.

        Raises:
            HostTierFullError, StoreFullError, StoreFailedError: there is no room.
            QuotaError: the tenant has as much in host memory as it may have.
        """
        n_bytes = sum(draft.image.nbytes for draft in drafts)
        durable = durability is Durability.DISK or n_bytes > self._shelf.host.limit
        try:
            result = self._commit(tenant, drafts, change, durable=durable)
        except BaseException:
            self._drop(drafts)
            if not self._catalogue.is_failed:
                self._discard(drafts)
            raise
        for draft in drafts:
            self._conclude(draft)
        return result

    def put(self, edit: Edit, tenant: str, draft: Draft) -> PayloadRow:
        """The payload of a draft, within a change that ``commit`` runs."""
        payload = edit.put_payload(tenant, draft.uid, draft.content, draft.file)
        edit.check_tier(payload)
        if edit.durable:
            return payload
        host, most = self._shelf.host, self._limits.host_bytes_per_tenant
        n_bytes = 0 if host.has(payload.uid) else draft.image.nbytes
        if most and n_bytes and host.n_only_bytes(tenant) + n_bytes > most:
            raise QuotaError("bytes of states in host memory", most)
        if not host.admit(payload.uid, draft.image, is_only_copy=True, tenant=tenant):
            raise NoRoomError
        return payload

    def attach(self, change: Callable[[Edit], T], durability: Durability) -> T:
        """Run a change that gives bytes of the store to more versions.

        Raises:
            StoreFullError, StoreFailedError: see ``Catalogue.write``.
        """
        durable = True
        while True:
            try:
                return self.edit(change, durable=durable)
            except ReservationError as error:
                self._reserve(error.version)
            except TierError as error:
                if error.payload.is_durable:
                    durable = True
                elif durability is Durability.DISK:
                    self._shelf.save(error.payload)
                else:
                    durable = False

    def _commit(
        self, tenant: str, drafts: Sequence[Draft], change: Callable[[Edit], T], *, durable: bool
    ) -> T:
        needs_files = False
        while True:
            if durable:
                for draft in drafts:
                    if needs_files or self._is_missing(tenant, draft):
                        self._shelf.write(draft)
            try:
                return self.edit(change, durable=durable)
            except ReservationError as error:
                self._reserve(error.version)
            except TierError:
                # What has these bytes went to another tier, or was deleted, meanwhile; or this
                # transaction itself deletes it, since it has expired.
                durable = needs_files = True
                self._drop(drafts)
            except NoRoomError:
                self._drop(drafts)
                self._shelf.make_room()

    def _is_missing(self, tenant: str, draft: Draft) -> bool:
        payload = reading.payload_of(self._catalogue, tenant, draft.encoded.content_id)
        # Of bytes that are said to be there it is not promised that they are, unseen.
        return payload is None or not self._shelf.has_file(payload)

    def _conclude(self, draft: Draft) -> None:
        if draft.file is None:
            return
        try:
            uid = reading.uid_of_file(self._catalogue, draft.file)
        except StoreFailedError:
            # What was committed stands, whatever is wrong now. A sweep asks again.
            logger.warning("a file is left to the next sweep", exc_info=True)
            self._shelf.payloads.settle(draft.file)
            return
        if uid is None:
            self._shelf.discard(draft)  # the same bytes had a file already
            return
        self._shelf.payloads.settle(draft.file)
        self._shelf.host.admit(uid, draft.image, is_only_copy=False)
        self._shelf.host.settle(uid)

    def _drop(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self._shelf.host.drop(draft.uid)

    def _discard(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self._shelf.discard(draft)

    def _reserve(self, version: int) -> None:
        self._reserved = self._catalogue.write(
            lambda db: reserve_numbers(db, self._limits, version, RESERVED_AT_ONCE)
        )
