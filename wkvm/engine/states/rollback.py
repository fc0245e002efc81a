"""Going back: to a version, or to a token position, where a state is kept or is made again."""

from dataclasses import dataclass, replace

from wkvm.core.errors import InvalidParameterError, KeyReusedError, StateNotFoundError
from wkvm.core.grammar import Grammar
from wkvm.core.registry import NOTHING, Durability, Parent, Provenance, Ref, VersionRecord
from wkvm.core.request import RequestSpec
from wkvm.core.start import Saved
from wkvm.core.states import StateInfo
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.commits import grammar_at, image_of, parents_of
from wkvm.engine.states.making import Making, made_before
from wkvm.engine.states.origins import check_expected, start_of, untouched
from wkvm.engine.states.paths import Path, n_given_of, path_of
from wkvm.engine.states.runs import again_spec, with_key_of
from wkvm.engine.states.turns import Origin
from wkvm.state.image import StateImage


@dataclass(frozen=True, slots=True)
class _Way:
    """From a state that is kept to a position after it.

    Attributes:
        base: where it starts; None for the empty sequence.
        path: what is absorbed from there.
        head: the image of the version that is left.
        left: that version.
        grammar: that the output follows at the position, and what it had been told; None if none.
    """

    base: Origin | None
    path: Path
    head: StateImage
    left: Parent
    grammar: tuple[Grammar, tuple[int, ...]] | None = None


class Rollback(Making):
    """Operations that go back. See ``Operations`` for what holds for all of them."""

    async def rollback(
        self,
        tenant: str,
        name: str,
        *,
        version: int | None = None,
        position: int | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> StateInfo:
        """A new head that equals an earlier point. What is there stays.

        Args:
            version: to which to go back; or
            position: how many tokens are left, at least 1, those pending included. Where no
                state is kept after so many, it is made again from the nearest one before, by the
                path that its tokens took: given ones as a prompt, others one by one. Then the
                last token is pending; where a state is kept, nothing is. Where none is kept before
                either, its parents are ``NOTHING`` and the version that was left.
            expected_version: of the head; None for any.

        Raises:
            StateNotFoundError: there is no such handle, version or position.
            StaleVersionError: the head is elsewhere.
            CapacityError, ExecutionError: as for a request, if the state is made again.
            KeyReusedError: the key stands for another operation.
        """
        backing = self._backing
        self._requests.check_stays(tenant, name)
        if (version is None) == (position is None):
            raise InvalidParameterError("version", "either a version or a position")
        wanted = backing.durability(durability)
        way = None
        if position is not None:
            # First of all: where it was done, the head is elsewhere since.
            done = await self._read(lambda: _done(backing, tenant, name, position, idempotency_key))
            if done is not None:
                return await self._make_one(tenant, lambda: done)
            way = await self._read(
                lambda: _way_to(backing, tenant, name, position, expected_version)
            )

        def move() -> VersionRecord:
            return backing.store.rollback(
                tenant,
                name,
                version=version,
                position=position,
                expected_version=expected_version,
                durability=wanted,
                idempotency_key=idempotency_key,
            )

        if way is None:
            return await self._make_one(tenant, move)
        saved = await self._walk(tenant, way.base, way.path, way.head)
        if way.grammar is not None and saved.memory is not None:
            grammar, told = way.grammar
            memory = replace(saved.memory, grammar=grammar, grammar_ids=told)
            saved = replace(saved, memory=memory)
        provenance = Provenance(
            operation="rollback",
            parameters={
                "position": position,
                "n_prompt": len(way.path.prompt),
                "n_output": len(way.path.outputs),
            },
            parents=parents_of(way.base) or (NOTHING, way.left),
            n_before=0 if way.base is None else way.base.image.carried.n_computed,
            n_after=saved.n_computed,
            engine=backing.engine,
        )
        return await self._make_one(
            tenant,
            lambda: backing.store.commit(
                tenant,
                name,
                image_of(backing, way.base, saved),
                provenance=provenance,
                expected_version=expected_version,
                durability=wanted,
                idempotency_key=idempotency_key,
            ),
        )

    async def _walk(self, tenant: str, base: Origin | None, path: Path, like: StateImage) -> Saved:
        """Absorb a path, and draw from then on the random numbers that ``like`` draws."""
        if path.n_ids <= 1:
            saved = untouched(self._backing, base, (*path.pending, *path.prompt, *path.outputs))
        else:
            origin = None if base is None else replace(base, pending=path.pending)
            prompt, outputs = path.prompt, path.outputs
            spec = again_spec(
                None if origin is None else start_of(origin),
                prompt,
                outputs,
                like=RequestSpec(prompt=(), tenant=tenant),
            )
            saved = await self._requests.runs.run(spec)
        return with_key_of(saved, like.carried.sampler)


def _done(
    backing: Backing, tenant: str, name: str, position: int, key: str | None
) -> VersionRecord | None:
    """The version that this rollback has made before, under its key. In a thread.

    Raises:
        KeyReusedError: the key stands for another operation.
        StateNotFoundError: the version was deleted since.
    """
    done = None if key is None else made_before(backing, tenant, name, key, {"rollback"})
    if done is not None and done.provenance.parameters.get("position") != position:
        raise KeyReusedError
    return done


def _way_to(
    backing: Backing, tenant: str, name: str, position: int, expected: int | None
) -> _Way | None:
    """How to come to a position; None if a state is kept right there. In a thread."""
    store = backing.store
    check_expected(backing, tenant, name, expected)
    record, head = store.load(tenant, Ref(name), identity=backing.identity)
    left = Parent(ref=str(record.ref), content_id=record.content_id)
    ids = [*head.ids(), *head.carried.pending]
    if not 0 < position <= len(ids):
        raise StateNotFoundError(f"{name} at token {position}: it has {len(ids)}")
    try:
        loaded = store.load_at(tenant, Ref(name), position, identity=backing.identity)
    except StateNotFoundError:
        base, kept = None, 0
    else:
        base = Origin(loaded.image, loaded.record, loaded.image.carried.pending)
        kept = loaded.image.carried.n_computed
    if base is not None and kept == position:
        # A pending id would be one too many.
        return None if not base.pending else _Way(base, Path((), (), ()), head, left)
    turn = _turn_at(backing, tenant, record, position)
    path = path_of(
        ids[:position], kept, n_given_of(turn), pending=() if base is None else base.pending
    )
    return _Way(base, path, head, left, grammar_at(turn, ids, position))


def _turn_at(backing: Backing, tenant: str, record: VersionRecord, position: int) -> VersionRecord:
    """The version whose turn took the id before a position, as far back as they are kept."""
    while record.provenance.n_before >= position and record.provenance.parents:
        parent = record.provenance.parents[0]
        try:
            found = backing.store.get(tenant, parent.ref)
        except (StateNotFoundError, InvalidParameterError):
            return record
        if found.content_id != parent.content_id:
            return record
        record = found
    return record
