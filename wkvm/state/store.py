"""The store of durable states: handles with immutable versions, in tiers, behind one writer.

Synchronous: every method may wait for a disk, so it belongs in a thread that may wait. Threads
may call any method at the same time. A method that raises has changed nothing, unless it says
otherwise; one that returns has done what the record's ``ack`` says.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from wkvm.core.errors import (
    InvalidParameterError,
    StateNotFiniteError,
    StoreFailedError,
    StoreFullError,
)
from wkvm.core.limits import StoreLimits, check_provenance, check_tags
from wkvm.core.registry import (
    AckClass,
    Durability,
    Provenance,
    RandomKey,
    Ref,
    VersionRecord,
    canonical_json,
    check_name,
)
from wkvm.state import reading, upkeep
from wkvm.state.ballast import Ballast
from wkvm.state.catalogue import Catalogue
from wkvm.state.changes import Commit, Fork, Rollback
from wkvm.state.edits import Edit
from wkvm.state.handles import Handles
from wkvm.state.image import StateImage
from wkvm.state.io import IO, SystemIO, reason
from wkvm.state.lookup import as_ref
from wkvm.state.objects import ObjectTier
from wkvm.state.opening import DATABASE, Folders, forget_memory, open_folders
from wkvm.state.payloads import Payloads
from wkvm.state.shelf import Draft, Shelf
from wkvm.state.writer import Writer

N_THREADS = 4
"""That read and hash parts of a large file side by side."""


class Store(Handles):
    """An open store. Made by ``open``."""

    def __init__(
        self,
        io: IO,
        folders: Folders,
        catalogue: Catalogue,
        shelf: Shelf,
        threads: ThreadPoolExecutor,
        *,
        clock: Callable[[], float],
        limits: StoreLimits,
        engine: str,
    ) -> None:
        writer = Writer(io, folders.root, catalogue, shelf, clock=clock, limits=limits)
        super().__init__(catalogue, shelf, clock, writer, limits)
        self._io = io
        self._folders = folders
        self._threads = threads
        self._engine = engine

    @classmethod
    def open(
        cls,
        path: str,
        *,
        clock: Callable[[], float],
        io: IO | None = None,
        limits: StoreLimits | None = None,
        objects: ObjectTier | None = None,
        engine: str = "",
        pinned: bool = False,
        create: bool = True,
    ) -> "Store":
        """Open a store and repair what a crash left. About 20 ms, and 10 us a handle.

        Args:
            path: of its folder.
            clock: seconds since 1970.
            io: the file system; None takes the operating system's.
            limits: how much it takes.
            objects: the tier below the disk.
            engine: the version of wkvm, for provenance.
            pinned: load states into pinned memory, for a GPU.
            create: make it where there is none.

        Raises:
            BadStoreError: the folder is none that may be used.
            StoreLockedError: another process has it open.
            StoreFailedError, StoreFullError: the disk refused.
        """
        io = SystemIO() if io is None else io
        limits = StoreLimits() if limits is None else limits
        folders = open_folders(io, path, create=create)
        catalogue, threads = None, ThreadPoolExecutor(N_THREADS, thread_name_prefix="wkvm-store")
        try:
            database = io.database_path(folders.root, DATABASE)
            catalogue = Catalogue(database, io.fresh_id(), Ballast(io, folders.root))
            payloads = Payloads(
                io,
                folders.payloads,
                folders.quarantine,
                reserve=limits.disk_reserve,
                threads=threads,
                pinned=pinned,
            )
            shelf = Shelf(catalogue, payloads, objects, limits.host_bytes)
            store = cls(
                io,
                folders,
                catalogue,
                shelf,
                threads,
                clock=clock,
                limits=limits,
                engine=engine,
            )
            store._recover()
            return store
        except BaseException:
            if catalogue is not None:
                catalogue.close()
            threads.shutdown()
            folders.close(io)
            raise

    def close(self) -> None:
        """Close it. Versions in memory alone are gone; ``flush`` before saves them."""
        try:
            if not self._catalogue.is_failed and reading.has_memory(self._catalogue):
                self._writer.edit(lambda edit: forget_memory(edit, after_crash=False), frees=True)
        except (StoreFailedError, StoreFullError):
            pass  # the next one who opens it does that
        finally:
            self._catalogue.close()
            # What the database gives back now may be all that there is when it is opened again.
            self._writer.ballast.make()
            self._threads.shutdown()
            self._folders.close(self._io)

    def commit(
        self,
        tenant: str,
        name: str,
        image: StateImage,
        *,
        provenance: Provenance,
        expected_version: int | None = None,
        durability: Durability = Durability.DISK,
        tags: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        checkpoints: Iterable[StateImage] = (),
        keep: int | None = None,
        idempotency_key: str | None = None,
        check_finite: bool = True,
    ) -> VersionRecord:
        """Make an image the next version of a handle, which is made where it is missing.

        Args:
            image: belongs to the store from here on, and must not be written to.
            provenance: how it came to be. If the first parent is a version of this store, that is
                what ``rollback`` by position goes back along.
            expected_version: of the head; 0 for a handle that must be new; None for any.
            durability: whether it is on disk when this returns.
            tags: replace those of the handle; None leaves them.
            expires_at: replaces that of the handle; None leaves it.
            checkpoints: states on the way to it, at positions below its own.
            keep: remove all but so many of the newest versions.
            idempotency_key: a second call with it, and the same name and expectation, returns what
                the first one did.
            check_finite: look for NaN and infinity; False where the caller did.

        Raises:
            ValueError: an image's last page is not zero behind its last token.
            StaleVersionError: the head is elsewhere.
            StateNotFiniteError: a tensor holds NaN or infinity.
            KeyReusedError: the key stands for another operation.
            QuotaError, StoreFullError, HostTierFullError: there is no room.
            StoreFailedError: the disk failed. Only if the catalogue itself did, it may turn out
                when the store is opened again that the version is there.
        """
        check_name(name)
        provenance_text = check_provenance(provenance, self.limits)
        tag_text = None if tags is None else canonical_json(check_tags(tags, self.limits))
        images = (image, *checkpoints)
        if keep is not None and keep < 1:
            raise InvalidParameterError("keep", "at least 1")
        if check_finite:
            for one in images:
                tensor = one.first_non_finite()
                if tensor is not None:
                    raise StateNotFiniteError(tensor)
        commit = Commit(
            tenant=tenant,
            name=name,
            expected=expected_version,
            idempotency_key=idempotency_key,
            drafts=[],
            provenance=provenance,
            provenance_text=provenance_text,
            tag_text=tag_text,
            expires_at=expires_at,
            keep=keep,
        )
        now = self._clock()
        earlier = self._catalogue.view(lambda db: commit.look(Edit(db, now, self.limits)))
        if earlier is not None:
            return earlier
        drafts = [Draft(one, self._io.fresh_id()) for one in images]
        commit = replace(commit, drafts=drafts)
        writer = self._writer
        return writer.commit(
            tenant, drafts, lambda edit: commit.apply(edit, writer.put), durability
        )

    def fork(
        self,
        tenant: str,
        source: Ref | str,
        names: Sequence[str],
        *,
        keys: Sequence[RandomKey] | None = None,
        tags: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        durability: Durability = Durability.DISK,
        idempotency_key: str | None = None,
    ) -> list[VersionRecord]:
        """New handles on the bytes of one version. One transaction, and no bytes, for all.

        Args:
            source: the version.
            names: of the new handles.
            keys: what each draws its random numbers from; None leaves all of them at the
                parent's, so that they repeat what it would do.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
            StateExistsError: one of the names is taken.
            InvalidParameterError: there are no names, too many, or the same twice.
            KeyReusedError, QuotaError, StoreFullError, StoreFailedError: as for ``commit``.
        """
        source = as_ref(source)
        tag_text = canonical_json(check_tags(tags or {}, self.limits))
        if not 0 < len(names) <= self.limits.forks_at_once or len(set(names)) < len(names):
            raise InvalidParameterError(
                "names", f"1 to {self.limits.forks_at_once} different names"
            )
        if keys is not None and len(keys) != len(names):
            raise InvalidParameterError("keys", "one for each name")
        for name in names:
            check_name(name, "names")
        fork = Fork(
            tenant=tenant,
            source=source,
            names=names,
            keys=keys,
            tag_text=tag_text,
            expires_at=expires_at,
            idempotency_key=idempotency_key,
            engine=self._engine,
        )
        return self._writer.attach(fork.apply, durability)

    def rollback(
        self,
        tenant: str,
        name: str,
        *,
        version: int | None = None,
        position: int | None = None,
        expected_version: int | None = None,
        durability: Durability = Durability.DISK,
        idempotency_key: str | None = None,
    ) -> VersionRecord:
        """A new version with the bytes of an earlier one, or of a checkpoint before the head.

        It draws the random numbers that were to be drawn then.

        Args:
            version: to which to go back; or
            position: the number of tokens that the state had absorbed then.

        Raises:
            StateNotFoundError: there is no such version or checkpoint.
            StaleVersionError, KeyReusedError, QuotaError, StoreFullError, StoreFailedError: as for
                ``commit``.
        """
        if (version is None) == (position is None):
            raise InvalidParameterError("version", "either a version or a position")
        check_name(name)
        rollback = Rollback(
            tenant=tenant,
            name=name,
            version=version,
            position=position,
            expected=expected_version,
            idempotency_key=idempotency_key,
            engine=self._engine,
        )
        return self._writer.attach(rollback.apply, durability)

    def persist(self, tenant: str, ref: Ref | str) -> VersionRecord:
        """Put a version on disk that is in memory alone.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
            StoreFullError, StoreFailedError: as for ``commit``.
        """
        _, record, payload = self._find(tenant, as_ref(ref))
        if record.ack is not AckClass.DURABLE:
            self._shelf.save(payload)
            record = self.get(tenant, record.ref)
        return record

    def cool(self, tenant: str, ref: Ref | str) -> VersionRecord:
        """Put a version on disk, and let its bytes leave host memory once its file was verified.

        Raises:
            StateNotFoundError, StateDamagedError, StoreFullError, StoreFailedError: as for
                ``persist``.
        """
        record = self.persist(tenant, ref)
        _, _, payload = self._find(tenant, record.ref)
        self._shelf.cool(payload)
        return record

    def flush(self) -> int:
        """Put all on disk that is in memory alone. How many payloads that were.

        Raises:
            StoreFullError, StoreFailedError: as for ``commit``; some may be on disk by then.
        """
        payloads = reading.payloads_in_memory(self._catalogue)
        for payload in payloads:
            self._shelf.save(payload)
        return len(payloads)

    def demote(self, tenant: str, ref: Ref | str) -> VersionRecord:
        """Move a version's bytes to the object store. They leave when they are verified there.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
            StoreFailedError: there is no object store, or it refused.
        """
        record = self.cool(tenant, ref)
        _, _, payload = self._find(tenant, record.ref)
        if payload.object is None and not self._shelf.has_file(payload):
            self.load(tenant, record.ref)  # says what is wrong
        upkeep.demote(self._catalogue, self._shelf, payload, self._io.fresh_id())
        return self.get(tenant, record.ref)

    def check(self) -> upkeep.CheckReport:
        """Read and verify everything. What is damaged is put apart, as when it is loaded.

        Raises:
            StoreFailedError: the disk refused.
        """
        return upkeep.check(self._catalogue, self._shelf)

    def gc(self) -> upkeep.GcReport:
        """Remove what has expired, and what nobody needs.

        Raises:
            StoreFailedError: the disk refused.
        """
        return upkeep.collect(
            self._catalogue, self._shelf, lambda change: self._writer.edit(change, frees=True)
        )

    def stat(self) -> upkeep.StoreStat:
        """How much of what there is.

        Raises:
            StoreFailedError: the disk refused.
        """
        return upkeep.stat(self._catalogue, self._shelf, self._folders)

    def _recover(self) -> None:
        if reading.has_memory(self._catalogue):
            self._writer.edit(lambda edit: forget_memory(edit, after_crash=True), frees=True)
        self._shelf.payloads.sweep(
            lambda: reading.known_files(self._catalogue), self._catalogue.is_sound
        )
        self._writer.ballast.make()
        try:
            # SQLite's log has a name by now. SQLite syncs the folder too, but ignores what fails.
            self._folders.root.sync()
        except OSError as error:
            raise StoreFailedError("open the catalogue", reason(error)) from error
