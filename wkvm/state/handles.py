"""What changes handles and moves no bytes: names, tags, expiry, deletion."""

from collections.abc import Callable, Mapping

from wkvm.core.errors import StaleVersionError, StateNotFoundError
from wkvm.core.limits import StoreLimits, check_key, check_tags
from wkvm.core.registry import HandleRecord, Ref, VersionRecord, canonical_json, check_name
from wkvm.core.states import MOVED_TAG, Moved
from wkvm.state import changes, reading
from wkvm.state.catalogue import Catalogue
from wkvm.state.edits import Edit, check_expected
from wkvm.state.lookup import Lookup, as_ref
from wkvm.state.shelf import Shelf
from wkvm.state.tables import HandleRow
from wkvm.state.writer import Writer


class Handles(Lookup):
    """The part of a store that looks up, names and deletes.

    Args:
        clock: seconds since 1970.

    Attributes:
        limits: how much the store takes.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        shelf: Shelf,
        clock: Callable[[], float],
        writer: Writer,
        limits: StoreLimits,
    ) -> None:
        super().__init__(catalogue, shelf, clock)
        self._writer = writer
        self.limits = limits

    def committed(self, tenant: str, name: str, key: str) -> VersionRecord | None:
        """The version that was committed, or rolled back to, under an idempotency key, if one was.

        Raises:
            KeyReusedError: the key stands for something else.
            StateNotFoundError: the version was deleted since.
        """
        now, limits = self._clock(), self.limits
        return self._catalogue.view(
            lambda db: changes.committed(Edit(db, now, limits), tenant, name, check_key(key))
        )

    def rename(
        self, tenant: str, name: str, new_name: str, *, expected_version: int | None = None
    ) -> HandleRecord:
        """Give a handle another name. Its versions keep their numbers.

        Raises:
            StateNotFoundError: there is no such handle.
            StaleVersionError: the head is not the version that was expected.
            StateExistsError: the new name is taken; or it was, by versions of another handle with
                numbers that this one has too.
        """
        check_name(new_name, "new_name")
        return self._change_handle(
            tenant,
            name,
            expected_version,
            lambda edit, handle: edit.rename(handle, new_name),
            new_name,
        )

    def set_tags(
        self,
        tenant: str,
        name: str,
        tags: Mapping[str, str],
        *,
        expected_version: int | None = None,
    ) -> HandleRecord:
        """Replace the tags of a handle.

        Raises:
            StateNotFoundError: there is no such handle.
            StaleVersionError: the head is not the version that was expected.
            InvalidParameterError: they are too many or too long.
        """
        text = canonical_json(check_tags(tags, self.limits))
        return self._change_handle(
            tenant, name, expected_version, lambda edit, handle: edit.save(handle, tags=text)
        )

    def mark_moved(self, tenant: str, began: HandleRecord, moved: Moved) -> HandleRecord:
        """Say that a handle is elsewhere now, if it is here as it was when the move began.

        What is looked at and what is written are one edit: no change between them is lost.

        Args:
            began: the handle whose bytes, tags and end the other side has.

        Raises:
            StateNotFoundError: there is no such handle.
            StaleVersionError: its head, tags or end are others by now.
            InvalidParameterError: where it is takes more characters than a tag has.
        """
        name, version = began.name, began.head.version
        text = canonical_json(dict(began.tags))
        tags = {**began.tags, MOVED_TAG: f"{moved.ref} {moved.target}"}
        marked = canonical_json(check_tags(tags, self.limits))

        def mark(edit: Edit, handle: HandleRow) -> None:
            if (handle.tags, handle.expires_at) != (text, began.expires_at):
                raise StaleVersionError(name, version, handle.head)
            edit.save(handle, tags=marked)

        return self._change_handle(tenant, name, version, mark)

    def set_expiry(
        self,
        tenant: str,
        name: str,
        expires_at: float | None,
        *,
        expected_version: int | None = None,
    ) -> HandleRecord:
        """Say when a handle is over; None for never.

        Raises:
            StateNotFoundError: there is no such handle, or it is over by that.
            StaleVersionError: the head is not the version that was expected.
        """
        record = self._change_handle(
            tenant,
            name,
            expected_version,
            lambda edit, handle: edit.save(handle, expires_at=expires_at),
        )
        if expires_at is not None and expires_at <= self._clock():
            raise StateNotFoundError(name)
        return record

    def delete(self, tenant: str, ref: Ref | str, *, expected_version: int | None = None) -> None:
        """Remove a handle, or one version of it. With the last version the handle goes.

        Bytes that nobody else shares are gone from the disk when this returns. It works on a full
        disk.

        Raises:
            StateNotFoundError: the tenant has none such.
            StaleVersionError: the head is not the version that was expected.
            StoreFailedError: the disk failed.
        """
        ref = as_ref(ref)

        def change(edit: Edit) -> None:
            handle = edit.handle(tenant, ref.name)
            check_expected(ref.name, handle, expected_version)
            if ref.version is None:
                edit.drop_handle(handle)
            else:
                edit.drop_version(handle, ref.version)

        self._writer.edit(change, frees=True)

    def _change_handle(
        self,
        tenant: str,
        name: str,
        expected_version: int | None,
        change: Callable[[Edit, HandleRow], object],
        new_name: str | None = None,
    ) -> HandleRecord:
        check_name(name)

        def run(edit: Edit) -> HandleRecord:
            handle = edit.handle(tenant, name)
            handle.check_stays()
            check_expected(name, handle, expected_version)
            change(edit, handle)
            # Now: what is looked for after the commit may not be found though it was done.
            return reading.handle_in(edit.db, tenant, new_name or name)

        return self._writer.edit(run, frees=True)
