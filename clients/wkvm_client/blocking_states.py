"""Operations on states, blocking: ``client.states``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wkvm_client import state_calls as calls
from wkvm_client.blocking_state_bytes import StateBytes
from wkvm_client.blocking_streams import Stream
from wkvm_client.states import (
    Difference,
    Durability,
    LineagePage,
    Log,
    Replay,
    StateInfo,
    StatePage,
    Tier,
)


class States(StateBytes):
    """Operations on the states that a server keeps for this client's tenant.

    A state is named ``NAME``, which is its newest version, or ``NAME@VERSION``. Everything raises
    ClientError: StateNotFoundError for what is not there, StaleVersionError where the head is
    another than ``expected_version``, ReplyTimeoutError after ``timeout_s`` without an answer.
    An operation that fails, or is cancelled, has changed nothing; after a lost connection nobody
    knows, and sending it again with the same ``idempotency_key`` carries it out once.

    Arguments that many of them have:
    - ``expected_version``: what the head of the handle must be; 0 for a handle that must be new.
    - ``durability``: what the answer waits for; None for the best that the server can.
    - ``tags``, ``expires_in_s``: of the handle; None leaves what it has.

    Args:
        timeout_s: how long an answer may take; None for ever. While bytes are sent or fetched, how
            long may pass without any.
    """

    def within(self, timeout_s: float | None) -> "States":
        """The same with another time limit."""
        return States(self._connections, timeout_s)

    def create(
        self,
        name: str,
        prompt: Iterable[int],
        *,
        state: str = "",
        tags: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        checkpoint_every: int = 0,
        priority: int = 0,
        idempotency_key: str = "",
    ) -> StateInfo:
        """Absorb exactly these ids, and keep the state.

        Args:
            name: the handle that gets it as its newest version.
            prompt: token ids. No id is sampled.
            state: what to go on from; empty for the beginning. With the same name this appends.
            checkpoint_every: keep a checkpoint at each multiple of so many tokens, to roll back
                to; 0 for none.
            priority: lower runs first.
        """
        return self._ask(
            calls.create(
                name,
                prompt,
                state=state,
                tags=tags,
                expires_in_s=expires_in_s,
                expected_version=expected_version,
                durability=durability,
                checkpoint_every=checkpoint_every,
                priority=priority,
                idempotency_key=idempotency_key,
                timeout_s=self._timeout_s,
            )
        )

    def get(self, state: str) -> StateInfo:
        """Tell about one state."""
        return self._ask(calls.get(state))

    def list(
        self,
        prefix: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        cursor: str = "",
        limit: int = 100,
    ) -> StatePage:
        """List handles, each with its newest version, by name: a page of them.

        Args:
            prefix: of the names.
            tags: all of these a handle must have, with these values.
            cursor: the ``next`` of the page before.
        """
        return self._ask(calls.page(prefix, tags, "", cursor, limit))

    def versions(self, name: str, *, cursor: str = "", limit: int = 100) -> StatePage:
        """List the versions of a handle, newest first: a page of them."""
        return self._ask(calls.page("", None, name, cursor, limit))

    def fork(
        self,
        state: str,
        names: str | Sequence[str],
        *,
        tags: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        keep_randomness: bool = False,
        durability: Durability | None = None,
        idempotency_key: str = "",
    ) -> Sequence[StateInfo]:
        """Make new handles on the bytes of one state: all of them or none. It copies nothing.

        Args:
            names: up to 64.
            keep_randomness: draw what the parent would draw; otherwise each draws numbers of its
                own.
        """
        call = calls.fork(
            state,
            (names,) if isinstance(names, str) else names,
            tags=tags,
            expires_in_s=expires_in_s,
            keep_randomness=keep_randomness,
            durability=durability,
            idempotency_key=idempotency_key,
        )
        return self._ask(call)

    def snapshot(
        self,
        state: str | Stream,
        *,
        save_as: str = "",
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str = "",
    ) -> StateInfo:
        """Make a version of a state as it is now, also of one that a request works on.

        Args:
            state: a name, or a stream of this client that goes on meanwhile.
            save_as: the handle that gets the version; empty for the same one.
        """
        lane = None if isinstance(state, str) else state.request_id
        call = calls.snapshot(
            state if isinstance(state, str) else "",
            lane=lane,
            save_as=save_as,
            expected_version=expected_version,
            durability=durability,
            idempotency_key=idempotency_key,
        )
        return self._ask(call)

    def hibernate(self, state: str, tier: Tier = "disk") -> StateInfo:
        """Move a state's bytes down, and free what it held. It can be used as before."""
        return self._ask(calls.hibernate(state, tier))

    def resume(self, state: str) -> StateInfo:
        """Bring a state's bytes up, verified, so that the next request need not wait for them."""
        return self._ask(calls.resume(state))

    def rollback(
        self,
        state: str,
        *,
        version: int | None = None,
        position: int | None = None,
        expected_version: int | None = None,
        idempotency_key: str = "",
    ) -> StateInfo:
        """Make a new version that equals an older point. What came after stays there to be named.

        Args:
            version, position: one of them: a version, or a count of tokens.
        """
        call = calls.rollback(
            state,
            version=version,
            position=position,
            expected_version=expected_version,
            idempotency_key=idempotency_key,
        )
        return self._ask(call)

    def rename(
        self,
        state: str,
        name: str,
        *,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Give a handle another name."""
        return self._ask(calls.rename(state, name, expected_version))

    def tag(
        self,
        state: str,
        tags: Mapping[str, str],
        *,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Set the tags of a handle: all that it is to have."""
        return self._ask(calls.tag(state, tags, expected_version))

    def expire(
        self,
        state: str,
        in_s: float | None,
        *,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Let a handle expire some time from now; None for never."""
        return self._ask(calls.expire(state, in_s, expected_version))

    def delete(self, state: str, *, expected_version: int | None = None) -> None:
        """Delete a handle with all its versions, or ``NAME@VERSION`` alone."""
        self._ask(calls.delete(state, expected_version))

    def mutate(
        self,
        operation: str,
        states: str | Sequence[str],
        save_as: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str = "",
    ) -> StateInfo:
        """Change a state other than by tokens, as docs/states.md has it.

        Args:
            operation: such as ``decay`` or ``blend``.
            states: what it works on; the first is what is continued.
            save_as: the handle that gets the result as its newest version.
            parameters: of the operation.
        """
        call = calls.mutate(
            operation,
            states,
            save_as,
            parameters or {},
            tags=tags,
            expires_in_s=expires_in_s,
            expected_version=expected_version,
            durability=durability,
            idempotency_key=idempotency_key,
        )
        return self._ask(call)

    def difference(self, state: str, other: str) -> Difference:
        """Tell how far two states are apart."""
        return self._ask(calls.difference(state, other))

    def log(self, state: str, *, before: int = 0, limit: int = 100) -> Log:
        """Tell how a state came to be, newest first.

        Args:
            before: versions below this one; 0 starts at the newest.
        """
        return self._ask(calls.log(state, before, limit))

    def lineage(
        self,
        prefix: str = "",
        *,
        state: str = "",
        newest: int = 0,
        cursor: str = "",
        limit: int = 1024,
    ) -> LineagePage:
        """Tell of all versions what they were made from, by name and number: a page of them.

        Args:
            prefix: of the names of handles.
            state: a name: of this handle alone, and no prefix.
            newest: only numbers among so many up to each head's; 0 for all.
            cursor: the ``next`` of the page before; empty for the first.
            limit: how many at most, 1 to 1,024.
        """
        return self._ask(calls.lineage(prefix, state, newest, cursor, limit))

    def replay(self, state: str) -> Replay:
        """Do again what made a state, and compare the bytes. It takes as long as it took."""
        return self._ask(calls.replay(state, self._timeout_s))
