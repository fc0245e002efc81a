"""What a store can be asked without changing it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from wkvm.core.errors import BadStateFileError, StateDamagedError, StateNotFoundError
from wkvm.core.registry import (
    HandleRecord,
    Identity,
    RandomKey,
    Ref,
    SamplerMemory,
    VersionRecord,
    check_name,
    parse_ref,
)
from wkvm.core.states import LineagePage, Tier
from wkvm.state import reading
from wkvm.state.catalogue import Catalogue
from wkvm.state.condition import Refusal
from wkvm.state.image import StateImage, check_same
from wkvm.state.notices import Notices
from wkvm.state.reading import Lineage, find_version
from wkvm.state.shelf import Shelf
from wkvm.state.tables import HandleRow, PayloadRow


class Loaded(NamedTuple):
    """A version and its bytes."""

    record: VersionRecord
    image: StateImage


class Lookup:
    """The half of a store that changes nothing, but for putting apart what is damaged.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, catalogue: Catalogue, shelf: Shelf, clock: Callable[[], float]) -> None:
        self._catalogue = catalogue
        self._shelf = shelf
        self._clock = clock

    def get(self, tenant: str, ref: Ref | str) -> VersionRecord:
        """What is known of a version, of the head by default. About 5 us.

        Raises:
            StateNotFoundError: the tenant has none such; the same for what never was.
            StateDamagedError: its row is not what was written.
        """
        return self._find(tenant, as_ref(ref))[1]

    def refusal(self, n_bytes: int) -> Refusal:
        """Why no durable version of so many bytes would be taken now.

        About 5 us; but it waits for the disk if that has refused the last one.
        """
        if self._catalogue.is_failed:
            return Refusal.FAILED
        return self._shelf.payloads.refusal(n_bytes)

    def handle(self, tenant: str, name: str) -> HandleRecord:
        """What is known of a handle.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
        """
        return reading.get_handle(self._catalogue, tenant, check_name(name), self._clock())

    def handles(
        self,
        tenant: str,
        *,
        prefix: str = "",
        tags: Mapping[str, str] | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[HandleRecord]:
        """Handles by name, a page at a time.

        Args:
            prefix: of names.
            tags: that a handle must have, with these values.
            after: the name that the last page ended with.
            limit: how many at most.
        """
        return reading.list_handles(
            self._catalogue,
            tenant,
            self._clock(),
            prefix=prefix,
            tags=tags or {},
            after=after,
            limit=limit,
        )

    @property
    def notices(self) -> Notices:
        """Told of each handle that changes, and of each payload that changes its tier."""
        return self._catalogue.index.notices

    @property
    def in_memory(self) -> tuple[int, int, int]:
        """How many states host memory has, how many bytes they take, and how many they may."""
        host = self._shelf.host
        return host.n_images, host.n_bytes, host.limit

    @property
    def on_disk(self) -> tuple[int, int]:
        """How many states the disk has, and how many bytes their files have. It is not looked at.

        Bytes that versions share count once.
        """
        return self._catalogue.on_disk.now

    @property
    def now(self) -> float:
        """Seconds since 1970, by the clock that handles expire by."""
        return self._clock()

    def headed_by(self, uids: Iterable[str]) -> list[tuple[str, str]]:
        """Tenant and name of the handles whose heads are these payloads."""
        return reading.list_heads_of(self._catalogue, uids)

    def tagged(self, tag: str) -> list[tuple[str, str, str]]:
        """Tenant, name and the tag's value of the handles of all tenants that have a tag."""
        return reading.list_tagged(self._catalogue, tag)

    def log(
        self, tenant: str, ref: Ref | str, *, before: int | None = None, limit: int = 100
    ) -> list[VersionRecord]:
        """Versions of a handle with their provenance, the newest first, from ``ref`` on.

        Args:
            before: only versions below this one, which need not exist.
            limit: how many at most.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
        """
        handle, record, _ = self._find(tenant, as_ref(ref))
        newest = record.version if before is None else min(record.version, before - 1)
        return reading.list_versions(self._catalogue, handle, newest, limit)

    def lineage(
        self,
        tenant: str,
        *,
        prefix: str = "",
        name: str | None = None,
        newest: int | None = None,
        after: Ref | None = None,
        limit: int = 1024,
    ) -> LineagePage:
        """Versions of all handles by name and number, a page at a time. About 20 us each.

        Args:
            prefix: of names.
            name: of the one handle that is meant; None for all.
            newest: only numbers among so many up to each head's; None for all.
            after: the version that the last page ended with.
            limit: how many at most.

        Raises:
            StateNotFoundError: there is no handle ``name``.
        """
        if name is not None:
            self._find(tenant, Ref(check_name(name)))
        return reading.list_lineage(
            self._catalogue,
            tenant,
            self._clock(),
            names=reading.names_between(prefix, name),
            after=Ref("", 0) if after is None else after,
            newest=newest,
            limit=limit,
        )

    def checkpoints(self, tenant: str, name: str) -> list[int]:
        """The token positions that ``rollback`` can go to, in order.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
        """
        handle, record, _ = self._find(tenant, Ref(check_name(name)))
        return self._catalogue.view(lambda db: Lineage(db, handle, record.version).positions())

    def load(
        self,
        tenant: str,
        ref: Ref | str,
        *,
        identity: Identity | None = None,
        into: Tensor | None = None,
    ) -> Loaded:
        """A version's bytes, verified. From disk about 0.25 ms a MiB.

        Args:
            identity: of the model that is to go on from it.
            into: ``[image_bytes]`` uint8 on the host, which becomes the image's record. Its
                contents are undefined after an error. Without it the image may be shared with
                others, and is not to be written.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``; what is damaged is put apart.
            StateMismatchError: it is another model's.
            ValueError: ``into`` does not fit.
            StoreFailedError: the disk refused.
        """
        _, record, payload = self._find(tenant, as_ref(ref))
        if identity is not None:
            check_same(identity, record.identity)
        return Loaded(record, self._bytes(tenant, record, payload, record.key, into))

    def at_hand(self, tenant: str, ref: Ref | str, *, identity: Identity) -> Loaded | None:
        """A version that is in memory, rows and bytes: about 10 us, and no system call.

        Returns:
            None for what is not; ``load`` says why.
        """
        try:
            found = reading.known_version(self._catalogue, tenant, as_ref(ref), self._clock())
        except (StateNotFoundError, StateDamagedError):
            return None
        if found is None or found[1].identity != identity:
            return None
        _, record, payload = found
        image = self._shelf.host.get(payload.uid)
        return None if image is None else Loaded(record, _with_key(image, record.key))

    def load_at(
        self, tenant: str, ref: Ref | str, position: int, *, identity: Identity | None = None
    ) -> Loaded:
        """The newest state at or below a token position, on the way to a version.

        Returns:
            The state, and the version that it is, or is a checkpoint of. Its handle may be another
            one, from which this one was forked.

        Raises:
            StateNotFoundError: there is none; or as for ``load``.
            StateDamagedError, StateMismatchError, StoreFailedError: as for ``load``.
        """
        handle, record, _ = self._find(tenant, as_ref(ref))
        if identity is not None:
            check_same(identity, record.identity)
        base, payload, key = self._catalogue.view(
            lambda db: Lineage(db, handle, record.version).below(position)
        )
        origin = reading.record_of(self._catalogue, base.handle, base.version)
        return Loaded(origin, self._bytes(tenant, origin, payload, key, None))

    def tier(self, tenant: str, ref: Ref | str) -> Tier:
        """The fastest tier that has a version's bytes.

        Raises:
            StateNotFoundError, StateDamagedError: as for ``get``.
        """
        return self._shelf.tier(self._find(tenant, as_ref(ref))[2])

    def _bytes(
        self,
        tenant: str,
        record: VersionRecord,
        payload: PayloadRow,
        key: RandomKey | None,
        into: Tensor | None,
    ) -> StateImage:
        """The image of a payload that ``record`` stands for, or has as a checkpoint."""
        while True:
            try:
                return _with_key(self._shelf.image(payload, into), key)
            except StateDamagedError as error:
                raise StateDamagedError(str(record.ref), error.why) from error
            except BadStateFileError as error:
                # Was it deleted, or moved to another tier, since it was looked up?
                now = reading.payload_by_id(self._catalogue, payload.id)
                if now is None or now.uid != payload.uid:
                    raise StateNotFoundError(str(record.ref)) from error
                is_same = (now.file, now.object) == (payload.file, payload.object)
                if is_same and not self._shelf.damaged(payload, error.why):
                    raise StateDamagedError(str(record.ref), error.why) from error
                payload = reading.payload_by_id(self._catalogue, payload.id) or now

    def _find(self, tenant: str, ref: Ref) -> tuple[HandleRow, VersionRecord, PayloadRow]:
        return find_version(self._catalogue, tenant, ref, self._clock())


def as_ref(ref: Ref | str) -> Ref:
    """A reference, checked.

    Raises:
        InvalidParameterError: it is none.
    """
    if isinstance(ref, str):
        return parse_ref(ref)
    return parse_ref(str(ref))


def _with_key(image: StateImage, key: RandomKey | None) -> StateImage:
    """An image that draws from another key."""
    if key is None:
        return image
    sampler = image.carried.sampler
    if sampler is None:
        sampler = SamplerMemory(seed=key.seed, branch=key.branch)
    else:
        sampler = replace(sampler, seed=key.seed, branch=key.branch)
    return replace(image, carried=replace(image.carried, sampler=sampler))
