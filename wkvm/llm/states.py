"""``LLM.states``: operations on named states, for code without an event loop."""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from wkvm_client import aio_states
from wkvm_client.states import (
    Difference,
    Durability,
    Exported,
    Format,
    Log,
    Replay,
    StateInfo,
    StatePage,
    Tier,
)

T = TypeVar("T")

Work: TypeAlias = Callable[[aio_states.States], Coroutine[Any, Any, Any]]
Run: TypeAlias = Callable[[Work], Any]
"""Runs an operation on the client's event loop, and waits for what comes of it."""


class States:
    """Operations on the states of an ``LLM``.

    A state is named ``NAME``, which is its newest version, or ``NAME@VERSION``. All raise
    ClientError: StateNotFoundError for what is not there, StateExistsError for a name that is
    taken, StaleVersionError where the newest version is another than ``expected_version``. An
    operation that raises has changed nothing.
    """

    def __init__(self, run: Run, encode: Callable[[str], list[int]]) -> None:
        self._run = run
        self._encode = encode

    def create(
        self,
        name: str,
        prompt: str | Sequence[int],
        *,
        state: str = "",
        tags: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        checkpoint_every: int = 0,
    ) -> StateInfo:
        """Absorb exactly this text, or these ids, and keep the state.

        Args:
            name: what it is called.
            prompt: a text or token ids.
            state: what they are appended to; with the same name, that state goes on.
            tags, expires_in_s: of the name; None leaves what it has.
            expected_version: of the newest one; 0 for a name that must be new.
            durability: ``disk`` or ``memory``; None for the best there is.
            checkpoint_every: keep a state, to roll back to, after each so many tokens.
        """
        ids = self._encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._state(
            lambda states: states.create(
                name,
                ids,
                state=state,
                tags=tags,
                expires_in_s=expires_in_s,
                expected_version=expected_version,
                durability=durability,
                checkpoint_every=checkpoint_every,
            )
        )

    def get(self, state: str) -> StateInfo:
        """Tell about one state."""
        return self._state(lambda states: states.get(state))

    def list(
        self,
        prefix: str = "",
        *,
        tags: Mapping[str, str] | None = None,
        cursor: str = "",
        limit: int = 100,
    ) -> StatePage:
        """List names, each with its newest version: a page; ``cursor`` is the ``next`` of one."""
        page: StatePage = self._run(
            lambda states: states.list(prefix, tags=tags, cursor=cursor, limit=limit)
        )
        return page

    def fork(
        self, state: str, names: str | Sequence[str], *, keep_randomness: bool = False
    ) -> Sequence[StateInfo]:
        """Make new names for one state, all of them or none. It copies nothing.

        Args:
            keep_randomness: draw what the parent would draw; otherwise each draws its own.
        """
        infos: Sequence[StateInfo] = self._run(
            lambda states: states.fork(state, names, keep_randomness=keep_randomness)
        )
        return infos

    def snapshot(self, state: str, save_as: str = "") -> StateInfo:
        """Make a version that equals a state, of this name or another one."""
        return self._state(lambda states: states.snapshot(state, save_as=save_as))

    def hibernate(self, state: str, tier: Tier = "disk") -> StateInfo:
        """Move a state's bytes down. It can be used as before."""
        return self._state(lambda states: states.hibernate(state, tier))

    def resume(self, state: str) -> StateInfo:
        """Bring a state's bytes up into memory, verified."""
        return self._state(lambda states: states.resume(state))

    def rollback(
        self,
        state: str,
        *,
        version: int | None = None,
        position: int | None = None,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Make a new version that equals an older one, or the state after so many tokens."""
        return self._state(
            lambda states: states.rollback(
                state, version=version, position=position, expected_version=expected_version
            )
        )

    def rename(self, state: str, name: str) -> StateInfo:
        """Give a state another name."""
        return self._state(lambda states: states.rename(state, name))

    def tag(self, state: str, tags: Mapping[str, str]) -> StateInfo:
        """Set the tags of a name: all that it is to have."""
        return self._state(lambda states: states.tag(state, tags))

    def expire(self, state: str, in_s: float | None) -> StateInfo:
        """Let a name expire some time from now; None for never."""
        return self._state(lambda states: states.expire(state, in_s))

    def delete(self, state: str, *, expected_version: int | None = None) -> None:
        """Delete a name with all its versions, or ``NAME@VERSION`` alone."""
        self._run(lambda states: states.delete(state, expected_version=expected_version))

    def mutate(
        self,
        operation: str,
        states: str | Sequence[str],
        save_as: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        expected_version: int | None = None,
    ) -> StateInfo:
        """Change a state other than by tokens: see ``docs/states.md``."""
        names = states
        return self._state(
            lambda states: states.mutate(
                operation, names, save_as, parameters, expected_version=expected_version
            )
        )

    def difference(self, state: str, other: str) -> Difference:
        """Tell how far two states are apart."""
        found: Difference = self._run(lambda states: states.difference(state, other))
        return found

    def log(self, state: str, *, before: int = 0, limit: int = 100) -> Log:
        """Tell how a state came to be, the newest version first."""
        log: Log = self._run(lambda states: states.log(state, before=before, limit=limit))
        return log

    def replay(self, state: str) -> Replay:
        """Do again what made a state, and compare the bytes."""
        replayed: Replay = self._run(lambda states: states.replay(state))
        return replayed

    def export_to(
        self,
        state: str,
        path: str | os.PathLike[str],
        *,
        format: Format = "state",  # noqa: A002
    ) -> Exported:
        """Write a state to a file: all of it, or a ``time_state`` (``blinkdl``, ``fla``).

        Raises:
            OSError: it cannot be written.
        """
        exported: Exported = self._run(lambda states: states.export_to(state, path, format=format))
        return exported

    def import_from(
        self,
        name: str,
        source: str | os.PathLike[str],
        *,
        format: Format = "state",  # noqa: A002
        expected_version: int | None = None,
    ) -> StateInfo:
        """Keep a state from a file. All of it is verified first.

        Raises:
            OSError: the file cannot be read.
        """
        return self._state(
            lambda states: states.import_from(
                name, source, format=format, expected_version=expected_version
            )
        )

    def _state(self, work: Work) -> StateInfo:
        info: StateInfo = self._run(work)
        return info
