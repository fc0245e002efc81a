"""What the operations of the store change, each within one transaction."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wkvm.core.errors import KeyReusedError, StateExistsError, StateNotFoundError
from wkvm.core.registry import (
    Parent,
    Provenance,
    RandomKey,
    Ref,
    VersionRecord,
    canonical_json,
    parse_ref,
)
from wkvm.state.edits import Base, Edit, check_expected
from wkvm.state.reading import Lineage
from wkvm.state.shelf import Draft
from wkvm.state.tables import PayloadRow

COMMIT = "commit"
ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A new version of a handle, which is made where it is missing.

    Attributes:
        drafts: its bytes, and those of its checkpoints.
        provenance_text: as the catalogue has it.
        tag_text: likewise; None leaves those of the handle.
    """

    tenant: str
    name: str
    expected: int | None
    idempotency_key: str | None
    drafts: Sequence[Draft]
    provenance: Provenance
    provenance_text: str
    tag_text: str | None
    expires_at: float | None
    keep: int | None

    @property
    def operation(self) -> str:
        """What an idempotency key stands for."""
        return canonical_json([COMMIT, self.name, self.expected])

    def look(self, edit: Edit) -> VersionRecord | None:
        """What can be known before any bytes are written: that it was applied, or is stale."""
        earlier = edit.applied(self.tenant, self.idempotency_key, self.operation)
        if earlier is not None:
            return edit.recall(earlier)[0]
        check_expected(self.name, edit.look(self.tenant, self.name), self.expected)
        return None

    def apply(self, edit: Edit, put: Callable[[Edit, str, Draft], PayloadRow]) -> VersionRecord:
        """Make the version. ``put`` makes the payload of a draft."""
        earlier = edit.applied(self.tenant, self.idempotency_key, self.operation)
        if earlier is not None:
            return edit.recall(earlier)[0]
        handle = edit.live(self.tenant, self.name)
        if handle is not None:
            handle.check_stays()
        check_expected(self.name, handle, self.expected)
        base = _base_of(edit, self.tenant, self.provenance)
        if handle is None:
            handle = edit.create(self.tenant, self.name, "{}", None)
        if self.tag_text is not None:
            handle = replace(handle, tags=self.tag_text)
        if self.expires_at is not None:
            handle = replace(handle, expires_at=self.expires_at)
        payload, *others = [put(edit, self.tenant, draft) for draft in self.drafts]
        record = edit.add_version(
            handle, payload, provenance=self.provenance_text, key=None, base=base
        )
        for other in others:
            edit.add_checkpoint(handle.id, record.version, other)
        if self.keep is not None:
            edit.keep_newest(handle.id, self.keep)
        made = [[handle.id, record.version]]
        edit.note_applied(self.tenant, self.idempotency_key, self.operation, made)
        return record


def committed(edit: Edit, tenant: str, name: str, key: str) -> VersionRecord | None:
    """The version of a handle that was committed, or rolled back to, under an idempotency key.

    Raises:
        KeyReusedError: the key stands for something else.
        StateNotFoundError: the version was deleted since.
    """
    found = edit.under_key(tenant, key)
    if found is None:
        return None
    operation, made = found
    if json.loads(operation)[:2] not in ([COMMIT, name], [ROLLBACK, name]):
        raise KeyReusedError
    return edit.recall(made)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """New handles on the bytes of one version.

    Attributes:
        keys: None leaves the parent's.
        tag_text: as the catalogue has it.
        engine: the version of wkvm.
    """

    tenant: str
    source: Ref
    names: Sequence[str]
    keys: Sequence[RandomKey] | None
    tag_text: str
    expires_at: float | None
    idempotency_key: str | None
    engine: str

    def apply(self, edit: Edit) -> list[VersionRecord]:
        """Make the handles."""
        tenant = self.tenant
        operation = canonical_json(["fork", str(self.source), list(self.names)])
        earlier = edit.applied(tenant, self.idempotency_key, operation)
        if earlier is not None:
            return edit.recall(earlier)
        parent = edit.handle(tenant, self.source.name)
        parent.check_stays()
        version, payload = edit.version(parent, self.source.version)
        for name in self.names:
            # Before the tier: what is refused makes nothing durable either.
            if edit.live(tenant, name) is not None:
                raise StateExistsError(name)
        edit.check_tier(payload)
        base = Base(parent.id, version.version, payload.n_computed)
        ref = Ref(parent.name, version.version)
        came_from = Parent(ref=str(ref), content_id=payload.content_id)
        records, made = list[VersionRecord](), list[list[int]]()
        for at, name in enumerate(self.names):
            handle = edit.create(tenant, name, self.tag_text, self.expires_at)
            key = version.random_key() if self.keys is None else self.keys[at]
            parameters = {"replay": self.keys is None}
            provenance = _provenance("fork", parameters, came_from, payload, key, self.engine)
            record = edit.add_version(handle, payload, provenance=provenance, key=key, base=base)
            records.append(record)
            made.append([handle.id, record.version])
        edit.note_applied(tenant, self.idempotency_key, operation, made)
        return records


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A new version of a handle, with the bytes of an earlier one or of a checkpoint.

    Attributes:
        version, position: one of them, the other None.
        engine: the version of wkvm.
    """

    tenant: str
    name: str
    version: int | None
    position: int | None
    expected: int | None
    idempotency_key: str | None
    engine: str

    def apply(self, edit: Edit) -> VersionRecord:
        """Make the version."""
        operation = canonical_json(
            [ROLLBACK, self.name, self.version, self.position, self.expected]
        )
        earlier = edit.applied(self.tenant, self.idempotency_key, operation)
        if earlier is not None:
            return edit.recall(earlier)[0]
        handle = edit.handle(self.tenant, self.name)
        handle.check_stays()
        check_expected(self.name, handle, self.expected)
        if self.position is None:
            row, payload = edit.version(handle, self.version)
            base = Base(handle.id, row.version, payload.n_computed)
            key, parameters = row.random_key(), {"version": row.version}
            parent = Parent(ref=str(Ref(handle.name, row.version)), content_id=payload.content_id)
        else:
            base, payload, key = Lineage(edit.db, handle, handle.head).at(self.position)
            parameters = {"position": self.position}
            # of another handle, where this one was forked; and its bytes may be a checkpoint's
            owner = edit.by_id(base.handle)
            _, whole = edit.version(owner, base.version)
            parent = Parent(ref=str(Ref(owner.name, base.version)), content_id=whole.content_id)
        edit.check_tier(payload)
        provenance = _provenance("rollback", parameters, parent, payload, key, self.engine)
        record = edit.add_version(handle, payload, provenance=provenance, key=key, base=base)
        made = [[handle.id, record.version]]
        edit.note_applied(self.tenant, self.idempotency_key, operation, made)
        return record


def _base_of(edit: Edit, tenant: str, provenance: Provenance) -> Base | None:
    """The version of this store that a provenance names first."""
    if not provenance.parents or not provenance.parents[0].ref:
        return None
    parent = provenance.parents[0]
    ref = parse_ref(parent.ref, "provenance")
    handle = edit.look(tenant, ref.name)
    if handle is None or ref.version is None:
        return None
    try:
        _, payload = edit.version(handle, ref.version)
    except StateNotFoundError:
        return None
    if payload.content_id != parent.content_id:
        return None
    # What goes on from a checkpoint before the parent has left it there.
    n_tokens = min(payload.n_computed, provenance.n_before)
    return Base(handle.id, ref.version, n_tokens)


def _provenance(
    operation: str,
    parameters: Mapping[str, object],
    parent: Parent,
    payload: PayloadRow,
    key: RandomKey | None,
    engine: str,
) -> str:
    provenance = Provenance(
        operation=operation,
        parameters=parameters,
        parents=(parent,),
        n_before=payload.n_computed,
        n_after=payload.n_computed,
        seed=None if key is None else key.seed,
        engine=engine,
    )
    return canonical_json(provenance.to_json())
