"""Operations that make versions: of tokens, of other versions, and by mutations."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wkvm.core.errors import (
    InvalidParameterError,
    KeyReusedError,
    RequestOverError,
    StaleVersionError,
    StateExistsError,
    StateNotFoundError,
)
from wkvm.core.limits import check_given
from wkvm.core.registry import (
    Durability,
    Parent,
    Provenance,
    RandomKey,
    Ref,
    VersionRecord,
    check_name,
)
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.core.states import StateInfo, StateUse
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.commits import commit_on_the_way, expected_of
from wkvm.engine.states.operations import Operations

SNAPSHOTS = frozenset({"snapshot", "create", "append", "generate"})
"""What versions are called that a snapshot has made; of a request that ran, as the request."""


class Making(Operations):
    """Operations that make versions. See ``Operations`` for what holds for all of them."""

    async def create(
        self,
        tenant: str,
        name: str,
        prompt: Sequence[int],
        *,
        state: Ref | None = None,
        expected_version: int | None = None,
        tags: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        durability: Durability | None = None,
        checkpoint_every: int | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> StateInfo:
        """Absorb exactly these ids, and keep the state. Nothing is sampled.

        The last of them is pending: the tensors have absorbed those before it. That is the same
        state, and what comes next can be sampled from it without an id more.

        Args:
            prompt: the ids.
            state: what they are appended to; None for the empty sequence.
            expected_version: of the head of ``name``. By default ``name`` must be new, or be the
                handle that is appended to, at the version it is appended to.

        Raises:
            StateExistsError: the name is taken.
            StaleVersionError: the head is elsewhere.
            StateNotFoundError: it has expired by the time that it is told.
            RequestError, CapacityError, ExecutionError: as for a request.
        """
        is_append = state is not None and state.name == name
        must_be_new = expected_version is None and not is_append
        use = StateUse(
            state=state,
            save_as=name,
            expected_version=0 if must_be_new else expected_version,
            durability=durability,
            checkpoint_every=checkpoint_every,
            keeps_key=is_append,
            absorbs_only=True,
            tags=tags or {},
            expires_at=expires_at,
            idempotency_key=idempotency_key,
            operation="create" if state is None else "append",
        )
        spec = RequestSpec(
            prompt=prompt,
            params=SamplingParams(max_tokens=0),
            tenant=tenant,
            priority=priority,
            timeout_s=timeout_s,
        )
        try:
            event = await self._requests.run(spec, use)
        except StaleVersionError as error:
            if must_be_new:
                raise StateExistsError(name) from error
            raise
        if event.state is None or event.state.ref is None:
            raise RequestOverError(str(event.status))
        return await self.get(tenant, event.state.ref)

    async def snapshot_running(
        self,
        tenant: str,
        request_id: int,
        *,
        save_as: str | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> StateInfo:
        """A version of the state of a request as it is now; the request goes on.

        Args:
            save_as: the handle; without it, the one that the request will be committed to.

        Raises:
            StateNotFoundError: there is no such request, or it ended meanwhile.
        """
        backing = self._backing
        turn, was, saved = await self._requests.snapshot(tenant, request_id)
        name = save_as or turn.use.save_as
        if name is None:
            raise InvalidParameterError("save_as", "the request has none, so a name is needed")
        self._requests.check_stays(tenant, name)
        wanted = backing.durability(durability)

        async def commit() -> StateInfo:
            async with turn.commits:
                is_its_own = name == turn.use.save_as
                if is_its_own and (turn.is_committed or turn.origin is not was.origin):
                    raise StateNotFoundError("so old: the request has committed a later one")
                expected = expected_version
                if expected is None and is_its_own:
                    done = await self._snapshot_before(tenant, name, idempotency_key)
                    if done is not None:
                        return done
                    expected = expected_of(turn)
                info = await self._make_one(
                    tenant,
                    lambda: commit_on_the_way(
                        backing,
                        name,
                        was,
                        saved,
                        expected_version=expected,
                        durability=wanted,
                        idempotency_key=idempotency_key,
                    ),
                )
                if is_its_own:
                    turn.expected = info.version.version
            return info

        # Halfway, the request would not know which version it is to follow.
        return await self._requests.whole(commit())

    async def fork(
        self,
        tenant: str,
        ref: Ref,
        names: Sequence[str],
        *,
        keeps_key: bool = False,
        tags: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> Sequence[StateInfo]:
        """New handles on the bytes of one version, however many, at the cost of one transaction.

        Args:
            keeps_key: each draws the random numbers that the parent would; by default each has
                its own.

        Raises:
            StateNotFoundError: there is no such version.
            StateExistsError: one of the names is taken.
            RateLimitedError: the tenant forks more often than it may.
        """
        check_given(self._backing.store.limits, tags, idempotency_key)
        for name in (ref.name, *names):
            self._backing.check_here(tenant, name)
        backing = self._backing
        backing.forks.take(tenant, len(names), backing.clock())
        keys = None if keeps_key else [_fresh_key() for _ in names]
        wanted = self._backing.durability(durability)
        return await self._make(
            tenant,
            lambda: self._backing.store.fork(
                tenant,
                ref,
                names,
                keys=keys,
                tags=tags,
                expires_at=expires_at,
                durability=wanted,
                idempotency_key=idempotency_key,
            ),
        )

    async def snapshot(
        self,
        tenant: str,
        ref: Ref,
        *,
        save_as: str | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> StateInfo:
        """A new version that equals one, random numbers included.

        Of a handle that a request will be committed to, and without a version, it is what that
        request has come to by now: see ``snapshot_running``.

        Args:
            save_as: of this handle; without it, of the same one.
            expected_version: of its head; 0 for a handle that must be new.
        """
        backing, name = self._backing, save_as or ref.name
        check_name(name, "save_as")
        check_given(backing.store.limits, None, idempotency_key)
        backing.check_here(tenant, ref.name)
        if expected_version is None:
            # It may have been of a request that has ended since.
            done = await self._snapshot_before(tenant, name, idempotency_key)
            if done is not None:
                return done
        running = self._requests.running(tenant, ref.name) if ref.version is None else None
        if running is not None:
            return await self.snapshot_running(
                tenant,
                running,
                save_as=save_as,
                expected_version=expected_version,
                durability=durability,
                idempotency_key=idempotency_key,
            )
        self._requests.check_stays(tenant, name)
        wanted = backing.durability(durability)

        def copy() -> VersionRecord:
            record, image = backing.store.load(tenant, ref)
            provenance = Provenance(
                operation="snapshot",
                parents=(Parent(ref=str(record.ref), content_id=record.content_id),),
                n_before=record.n_computed,
                n_after=record.n_computed,
                engine=backing.engine,
            )
            return backing.store.commit(
                tenant,
                name,
                image,
                provenance=provenance,
                expected_version=expected_version,
                durability=wanted,
                idempotency_key=idempotency_key,
            )

        return await self._make_one(tenant, copy)

    async def _snapshot_before(self, tenant: str, name: str, key: str | None) -> StateInfo | None:
        """What a snapshot has made of a handle under this key.

        Raises:
            KeyReusedError: the key stands for another operation.
            StateNotFoundError: the version was deleted since.
        """
        if key is None:
            return None
        done = await self._read(lambda: made_before(self._backing, tenant, name, key, SNAPSHOTS))
        return None if done is None else await self._make_one(tenant, lambda: done)

    async def mutate(
        self,
        tenant: str,
        operation: str,
        parameters: Mapping[str, Any],
        states: Sequence[Ref],
        *,
        save_as: str,
        expected_version: int | None = None,
        tags: Mapping[str, str] | None = None,
        expires_at: float | None = None,
        durability: Durability | None = None,
        idempotency_key: str | None = None,
    ) -> StateInfo:
        """A new version, made of others by an operation of ``docs/states.md``.

        Args:
            expected_version: of the head of ``save_as``; by default the version that was worked
                on, where the first of ``states`` is that handle, and any elsewhere.

        Raises:
            InvalidParameterError: no such operation, or no parameters of it.
            StateNotFiniteError: the result holds NaN or infinity.
            StaleVersionError: the head is elsewhere.
            MutationFailedError: a plug-in is broken.
            KeyReusedError: the key stands for another operation.
        """
        backing = self._backing
        check_name(save_as, "save_as")
        check_given(backing.store.limits, tags, idempotency_key)
        self._requests.check_stays(tenant, save_as)
        for ref in states:
            backing.check_here(tenant, ref.name)
        wanted = backing.durability(durability)

        def work() -> VersionRecord:
            loaded = [backing.store.load(tenant, ref) for ref in states]
            # After they are loaded: what another sending makes meanwhile is found here, or has
            # the same version to be made on.
            if expected_version is None and idempotency_key is not None:
                done = made_before(backing, tenant, save_as, idempotency_key, {operation})
                if done is not None:
                    return done
            mutated = backing.mutations.apply(
                operation,
                parameters,
                [one.image for one in loaded],
                refs=[
                    Parent(ref=str(one.record.ref), content_id=one.record.content_id)
                    for one in loaded
                ],
                fold=backing.fold,
            )
            expected = expected_version
            if expected is None and loaded[0].record.name == save_as:
                expected = loaded[0].record.version
            return backing.store.commit(
                tenant,
                save_as,
                mutated.image,
                provenance=replace(mutated.provenance, engine=backing.engine),
                expected_version=expected,
                durability=wanted,
                tags=tags,
                expires_at=expires_at,
                idempotency_key=idempotency_key,
                check_finite=False,
            )

        return await self._make_one(tenant, work)


def made_before(
    backing: Backing, tenant: str, name: str, key: str, operations: Collection[str]
) -> VersionRecord | None:
    """The version that one of ``operations`` has made of a handle under this key. In a thread.

    Where no version was expected by name, a store cannot know the operation again by that.

    Raises:
        KeyReusedError: the key stands for another operation.
        StateNotFoundError: the version was deleted since.
    """
    found = backing.store.committed(tenant, name, key)
    if found is not None and found.provenance.operation not in operations:
        raise KeyReusedError
    return found


def _fresh_key() -> RandomKey:
    """Random numbers that nobody has drawn."""
    return RandomKey(int.from_bytes(os.urandom(8)), 0)
