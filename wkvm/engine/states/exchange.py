"""States out of the engine and into it, as files in pieces."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from wkvm.core.errors import BadStateFileError, InvalidParameterError
from wkvm.core.registry import (
    Durability,
    Parent,
    Provenance,
    Ref,
    VersionRecord,
    check_given_tags,
    check_name,
)
from wkvm.core.states import StateInfo
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.origins import check_expected
from wkvm.engine.states.rollback import Rollback
from wkvm.state.exchange import MAX_TOKENS, Export, Receiver, export_image
from wkvm.state.format import MAX_HEADER_BYTES, TOKEN_BYTES
from wkvm.state.image import StateImage, encode_image
from wkvm.state.time_state import (
    Orientation,
    export_time_state,
    import_time_state,
    max_file_bytes,
)

STATE_FORM = "state"
"""All of a state. Other forms are orientations of initial states."""

MAX_HISTORY = 1_000
"""Versions of whose provenance an export tells."""


@dataclass(frozen=True, slots=True)
class Source:
    """A state on its way out, in memory.

    Attributes:
        info: which version.
        export: its file.
    """

    info: StateInfo
    export: Export

    @property
    def n_bytes(self) -> int:
        """Of the file."""
        return self.export.n_bytes

    def chunks(self) -> Iterator[memoryview]:
        """The file, in pieces of at most 256 KiB."""
        return self.export.chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to become of a state that comes in: as for ``Store.commit``.

    Attributes:
        check: raises if it cannot be any more.
    """

    tenant: str
    name: str
    tags: Mapping[str, str] | None
    expires_at: float | None
    expected_version: int | None
    durability: Durability
    idempotency_key: str | None
    check: Callable[[], None]


class StateSink:
    """A whole state on its way in. It holds one record, and its token log.

    ``write`` copies at most a chunk; ``finish`` checks and commits, in a thread.
    """

    def __init__(self, backing: Backing, target: Target, n_bytes: int) -> None:
        """Prepare for ``n_bytes``.

        Raises:
            BadStateFileError: no state has so many.
        """
        self._backing = backing
        self._target = target
        self._receiver: Receiver | None = Receiver(
            n_bytes, backing.identity, backing.layout, backing.vocab_size
        )

    async def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            BadStateFileError, StateMismatchError: they are of no state of this model.
        """
        self._open().feed(data)

    async def finish(self) -> StateInfo:
        """Check what came, and commit it.

        Raises:
            BadStateFileError, StateNotFiniteError: it is no whole state.
            WkvmError: as for ``Store.commit``.
        """
        receiver, self._receiver = self._open(), None
        self._target.check()

        def work() -> StateInfo:
            imported = receiver.finish()
            records = imported.history.records
            told = {"n_operations": len(records) + imported.history.omitted}
            return _commit(self._backing, self._target, imported.image, STATE_FORM, told)

        return await self._backing.threads.write(work)

    def abort(self) -> None:
        """Forget what came. Nothing is kept."""
        self._receiver = None

    def _open(self) -> Receiver:
        if self._receiver is None:
            raise BadStateFileError("it was finished or given up")
        return self._receiver


@dataclass(slots=True)
class InitialStateSink:
    """A file of initial states on its way in: all of it is kept until it is read."""

    backing: Backing
    target: Target
    n_bytes: int
    orientation: Orientation
    data: bytearray = field(default_factory=bytearray)
    is_open: bool = True

    async def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            BadStateFileError: there are more than were announced.
        """
        if not self.is_open or len(self.data) + len(data) > self.n_bytes:
            self.abort()
            raise BadStateFileError("more bytes came than were announced")
        self.data += data

    async def finish(self) -> StateInfo:
        """Read what came, and commit it; errors as of ``StateSink.finish``."""
        if not self.is_open or len(self.data) != self.n_bytes:
            self.abort()
            raise BadStateFileError("bytes are missing")
        self.is_open = False
        self.target.check()
        backing, file = self.backing, bytes(self.data)

        def work() -> StateInfo:
            image = import_time_state(file, backing.identity, backing.layout, self.orientation)
            return _commit(backing, self.target, image, self.orientation.value, {})

        return await backing.threads.write(work)

    def abort(self) -> None:
        """Forget what came. Nothing is kept."""
        self.is_open = False
        self.data.clear()


class Exchange(Rollback):
    """Operations that let states out and in. See ``Operations`` for what holds for all of them."""

    @property
    def max_file_bytes(self) -> int:
        """Length of the longest file of a state of this model."""
        layout = self._backing.layout
        return 8 + MAX_HEADER_BYTES + layout.payload_bytes + TOKEN_BYTES * MAX_TOKENS

    async def export(self, tenant: str, ref: Ref, form: str = STATE_FORM) -> Source:
        """The file of a version.

        Args:
            form: ``state``, or ``blinkdl`` or ``fla``: initial states in that orientation, which
                are the matrices alone.

        Raises:
            StateNotFoundError: there is no such version.
            InvalidParameterError: there is no such form.
        """
        backing = self._backing
        backing.check_here(tenant, ref.name)
        orientation = _orientation(form)

        def work() -> Source:
            record, image = backing.store.load(tenant, ref)
            info = backing.info(tenant, record)
            if orientation is not None:
                return Source(info, export_time_state(image, orientation, fold=backing.fold))
            records = backing.store.log(tenant, record.ref, limit=MAX_HISTORY)
            history = [one.provenance for one in reversed(records)]
            return Source(info, export_image(image, history))

        return await backing.threads.read(work)

    async def importing(
        self,
        tenant: str,
        name: str,
        *,
        n_bytes: int,
        form: str = STATE_FORM,
        tags: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> "StateSink | InitialStateSink":
        """Where to put the bytes of a file, to be committed as the next version of a handle.

        Args:
            n_bytes: of the whole file.
            form: as for ``export``.

        Raises:
            BadStateFileError: no state of this model has so many bytes.
            StaleVersionError: the head is elsewhere already.
        """
        backing = self._backing
        check_name(name)
        check_given_tags(tags)
        self._requests.check_stays(tenant, name)
        orientation = _orientation(form)
        target = Target(
            tenant=tenant,
            name=name,
            tags=tags,
            expires_at=expires_at,
            expected_version=expected_version,
            durability=backing.durability(durability),
            idempotency_key=idempotency_key,
            check=lambda: self._requests.check_stays(tenant, name),
        )
        if idempotency_key is None:
            await backing.threads.read(
                lambda: check_expected(backing, tenant, name, expected_version)
            )
        if orientation is None:
            return StateSink(backing, target, n_bytes)
        limit = max_file_bytes(backing.layout)
        if not 0 < n_bytes <= limit:
            raise BadStateFileError(f"initial states of this model have up to {limit:,} bytes")
        return InitialStateSink(backing, target, n_bytes, orientation)


def _orientation(form: str) -> Orientation | None:
    if form == STATE_FORM:
        return None
    try:
        return Orientation(form)
    except ValueError:
        raise InvalidParameterError("format", "state, blinkdl or fla") from None


def _commit(
    backing: Backing, target: Target, image: StateImage, form: str, told: Mapping[str, object]
) -> StateInfo:
    provenance = Provenance(
        operation="import",
        parameters={"form": form, **told},
        parents=(Parent(ref="", content_id=encode_image(image).content_id),),
        n_after=image.carried.n_computed,
        engine=backing.engine,
    )
    record: VersionRecord = backing.store.commit(
        target.tenant,
        target.name,
        image,
        provenance=provenance,
        expected_version=target.expected_version,
        durability=target.durability,
        tags=target.tags,
        expires_at=target.expires_at,
        idempotency_key=target.idempotency_key,
        check_finite=False,
    )
    return backing.info(target.tenant, record)
