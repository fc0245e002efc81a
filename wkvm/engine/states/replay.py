"""Making versions again from what their provenance says, to see whether every bit comes out."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wkvm.core.errors import InvalidParameterError, RequestOverError, StateNotFoundError
from wkvm.core.registry import NOTHING, Parent, Provenance, Ref, VersionRecord, parse_ref
from wkvm.core.request import RequestSpec, Status
from wkvm.core.states import Replayed
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.commits import image_of
from wkvm.engine.states.exchange import Exchange
from wkvm.engine.states.origins import start_of, untouched
from wkvm.engine.states.paths import n_given_of, path_of
from wkvm.engine.states.runs import again_spec
from wkvm.engine.states.turns import Origin
from wkvm.state.image import StateImage, bytes_of, encode_image

BY_TOKENS = frozenset({"create", "append", "generate"})
COPIES = frozenset({"fork", "snapshot"})
MAX_OPERATIONS = 1_000
"""That one replay repeats."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One version on the way to the one that is replayed."""

    record: VersionRecord
    image: StateImage


class Replay(Exchange):
    """Operations that repeat what was done."""

    async def replay(self, tenant: str, ref: Ref, *, timeout_s: float | None = None) -> Replayed:
        """Do again all that made a version, from the first state without parents on, and compare.

        Ids are not sampled again but taken from the log: what is compared are the bytes of the
        tensors. What cannot be repeated is taken as it is: an import, and what goes on from bytes
        that are not kept.

        Args:
            timeout_s: for all of it; None for no limit.

        Raises:
            StateNotFoundError: the version, or one that it was made from, is not there any more.
            InvalidParameterError: it took too many operations.
            RequestOverError: the time was over.
        """
        self._backing.check_here(tenant, ref.name)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._replay(tenant, ref)
        except TimeoutError as error:
            raise RequestOverError(Status.TIMED_OUT.value) from error

    async def _replay(self, tenant: str, ref: Ref) -> Replayed:
        """One version after the other; in memory are those that a later one is made of."""
        backing = self._backing
        *before, last = await self._read(lambda: _versions_to(backing, tenant, ref))
        parents = (parent.ref for one in (*before, last) for parent in _sources(one))
        awaited, made, n_operations = Counter(parents), dict[str, StateImage](), 0
        for record in before:
            step = await self._read(partial(_load, backing, tenant, record))
            again = await self._again(tenant, step, made)
            n_operations += again is not None
            made[str(record.ref)] = step.image if again is None else again
            for parent in _sources(record):
                awaited[parent.ref] -= 1
                if not awaited[parent.ref]:
                    made.pop(parent.ref, None)
        step = await self._read(lambda: _load(backing, tenant, last))
        again = await self._again(tenant, step, made)
        n_operations += again is not None
        made.clear()
        result = step.image if again is None else again
        return await self._read(lambda: _compared(step, result, n_operations))

    async def _again(
        self, tenant: str, step: _Step, made: Mapping[str, StateImage]
    ) -> StateImage | None:
        """A version made again of those before it; None if that cannot be."""
        backing, record = self._backing, step.record
        provenance = record.provenance
        operation = provenance.operation
        parents = [made[parent.ref] for parent in _sources(record) if parent.ref in made]
        if operation in BY_TOKENS or _was_walked(provenance):
            return await self._absorbed_again(tenant, step, parents[0] if parents else None)
        if operation == "import" or len(parents) < len(provenance.parents):
            return None
        if operation in COPIES or operation == "rollback":
            if parents[0].carried.n_computed != record.n_computed:
                return None  # a checkpoint of its parent
            return replace(parents[0], carried=step.image.carried)
        return await self._read(
            lambda: backing.mutations.replay(provenance, parents, fold=backing.fold).image
        )

    async def _absorbed_again(
        self, tenant: str, step: _Step, parent: StateImage | None
    ) -> StateImage | None:
        provenance = step.record.provenance
        if parent is None and provenance.n_before:
            return None  # it came with bytes that are not kept, or goes on from a checkpoint
        if parent is not None and parent.carried.n_computed != provenance.n_before:
            return None
        image = step.image
        ids = [*image.ids(), *image.carried.pending]
        pending = () if parent is None else parent.carried.pending
        path = path_of(ids, provenance.n_before, n_given_of(step.record), pending=pending)
        origin = None if parent is None else Origin(parent, None, path.pending)
        leaves_pending = bool(image.carried.pending)
        if path.n_ids <= leaves_pending:
            given = (*path.pending, *path.prompt, *path.outputs)
            saved = untouched(self._backing, origin, given)
        else:
            every = provenance.parameters.get("checkpoint_every")
            spec = again_spec(
                None if origin is None else start_of(origin),
                path.prompt,
                path.outputs,
                like=RequestSpec(prompt=(), tenant=tenant),
                checkpoint_every=every if isinstance(every, int) else None,
                leaves_pending=leaves_pending,
            )
            saved = await self._requests.runs.run(spec)
        again = image_of(self._backing, origin, saved)
        # What the sampler remembers is recorded, and not made again.
        return replace(again, carried=image.carried)


def _was_walked(provenance: Provenance) -> bool:
    return provenance.operation == "rollback" and "n_prompt" in provenance.parameters


def _sources(record: VersionRecord) -> Sequence[Parent]:
    """The parents whose bytes a version was made of: none where it continues nothing."""
    parents = record.provenance.parents
    return () if parents[:1] == (NOTHING,) else parents


def _versions_to(backing: Backing, tenant: str, ref: Ref) -> list[VersionRecord]:
    """The versions that one was made from, and it itself, parents first. In a thread.

    Raises:
        StateNotFoundError: one of them is not kept any more.
        InvalidParameterError: they are too many.
    """
    last = backing.store.get(tenant, ref)
    found = {str(last.ref): last}
    waiting, order = [last], dict[str, VersionRecord]()
    while waiting:
        record = waiting[-1]
        refs = [parent.ref for parent in _sources(record) if parent.ref]
        missing = [ref for ref in refs if ref not in order]
        if not missing:
            order[str(record.ref)] = waiting.pop()
        for parent in _sources(record):
            if parent.ref in missing:
                if parent.ref not in found:
                    found[parent.ref] = _version(backing, tenant, parent)
                waiting.append(found[parent.ref])
        if len(found) > MAX_OPERATIONS:
            raise InvalidParameterError("state", f"made by more than {MAX_OPERATIONS} operations")
    return list(order.values())


def _version(backing: Backing, tenant: str, parent: Parent) -> VersionRecord:
    record = backing.store.get(tenant, parse_ref(parent.ref))
    if record.content_id != parent.content_id:
        raise StateNotFoundError(parent.ref)
    return record


def _load(backing: Backing, tenant: str, record: VersionRecord) -> _Step:
    return _Step(record, backing.store.load(tenant, record.ref).image)


def _compared(last: _Step, again: StateImage, n_operations: int) -> Replayed:
    image = last.image
    content_id = encode_image(image).content_id
    again_id = encode_image(again).content_id
    return Replayed(
        ref=last.record.ref,
        n_operations=n_operations,
        equal=content_id == again_id,
        content_id=content_id,
        replayed_content_id=again_id,
        first_difference=None if content_id == again_id else _first_difference(image, again),
    )


def _first_difference(image: StateImage, again: StateImage) -> str | None:
    if image.token_ids != again.token_ids:
        return "token_ids"
    if image.carried != again.carried:
        return "carried"
    if image.layout != again.layout:
        return "layout"
    others = bytes_of(again.layout, again.record)
    mine = bytes_of(image.layout, image.record)
    return next((name for name, own in mine.items() if not own.equal(others[name])), None)
