"""States out of the engine and into it, as files in pieces."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wkvm.core.errors import BadStateFileError, InvalidParameterError, QuotaError
from wkvm.core.limits import check_given
from wkvm.core.registry import Durability, Parent, Provenance, Ref, check_name
from wkvm.core.states import StateInfo
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.origins import check_expected
from wkvm.engine.states.rollback import Rollback
from wkvm.state.exchange import (
    MAX_INLINE_BYTES,
    Export,
    Imported,
    Receiver,
    export_image,
    max_file_bytes,
)
from wkvm.state.image import encode_image
from wkvm.state.time_state import Orientation, TimeStateReceiver, export_time_state

STATE_FORM = "state"
"""All of a state. Other forms are orientations of initial states."""

LARGE_BYTES = 2**26
"""Of a file whose bytes are put into memory in a thread."""

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
    """A state on its way in. It holds what its receiver holds.

    ``write`` copies at most a chunk, of a large file in a thread: the system may take its time to
    find the memory. ``finish`` checks and commits, in a thread.
    """

    def __init__(
        self, backing: Backing, target: Target, form: str, receiver: Receiver | TimeStateReceiver
    ) -> None:
        self._backing = backing
        self._target = target
        self._form = form
        self._receiver: Receiver | TimeStateReceiver | None = receiver
        self._is_large = receiver.n_missing > LARGE_BYTES

    async def write(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            BadStateFileError, StateMismatchError: they are of no state of this model.
        """
        receiver = self._open()
        if self._is_large:
            await self._backing.threads.read(lambda: receiver.feed(data))
        else:
            receiver.feed(data)

    async def finish(self) -> StateInfo:
        """Check what came, and commit it.

        Raises:
            BadStateFileError, StateNotFiniteError: it is no whole state.
            WkvmError: as for ``Store.commit``.
        """
        receiver, self._receiver = self._open(), None
        self._target.check()
        return await self._backing.threads.write(
            lambda: _commit(self._backing, self._target, self._form, receiver.finish())
        )

    def abort(self) -> None:
        """Forget what came. Nothing is kept."""
        self._receiver = None

    def _open(self) -> Receiver | TimeStateReceiver:
        if self._receiver is None:
            raise BadStateFileError("it was finished or given up")
        return self._receiver


class Exchange(Rollback):
    """Operations that let states out and in. See ``Operations`` for what holds for all of them."""

    @property
    def max_inline_bytes(self) -> int:
        """Length of the longest file of a state that comes in with a request.

        It is held as a whole for as long as the request runs; longer ones are imported.
        """
        return min(max_file_bytes(self._backing.layout), MAX_INLINE_BYTES)

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
    ) -> StateSink:
        """Where to put the bytes of a file, to be committed as the next version of a handle.

        Args:
            n_bytes: of the whole file.
            form: as for ``export``.

        Raises:
            BadStateFileError: no state of this model has so many bytes.
            QuotaError: the tenant may not have so many.
            StaleVersionError: the head is elsewhere already.
        """
        backing = self._backing
        check_name(name)
        check_given(backing.store.limits, tags, idempotency_key)
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
        receiver = (
            backing.receiver(n_bytes)
            if orientation is None
            else TimeStateReceiver(n_bytes, backing.identity, backing.layout, orientation)
        )
        if n_bytes > (most := backing.store.limits.bytes_per_tenant):
            raise QuotaError("bytes of states", most)
        return StateSink(backing, target, form, receiver)


def _orientation(form: str) -> Orientation | None:
    if form == STATE_FORM:
        return None
    try:
        return Orientation(form)
    except ValueError:
        raise InvalidParameterError("format", "state, blinkdl or fla") from None


def _commit(backing: Backing, target: Target, form: str, imported: Imported) -> StateInfo:
    image, history = imported.image, imported.history
    parameters: dict[str, object] = {"form": form}
    if form == STATE_FORM:
        parameters["n_operations"] = len(history.records) + history.omitted
    provenance = Provenance(
        operation="import",
        parameters=parameters,
        parents=(Parent(ref="", content_id=encode_image(image).content_id),),
        n_after=image.carried.n_computed,
        engine=backing.engine,
    )
    record = backing.store.commit(
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
