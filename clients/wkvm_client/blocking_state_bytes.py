"""Operations on states that move their bytes, blocking: out, in, and to another server."""

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from wkvm_client import state_calls as calls
from wkvm_client.blocking_connections import Connections
from wkvm_client.blocking_transfers import Export, Source, begin_export, send_state
from wkvm_client.files import NewFile, length_of
from wkvm_client.states import Durability, Exported, Format, StateInfo

T = TypeVar("T")


class StateBytes:
    """The part of ``client.states`` that moves bytes; what holds for all of it is said there."""

    def __init__(self, connections: Connections, timeout_s: float | None) -> None:
        self._connections = connections
        self._timeout_s = timeout_s

    def export(self, state: str, *, format: Format = "state") -> Export:  # noqa: A002
        """Fetch the bytes of a state part by part.

        Args:
            format: ``state`` for all of it; ``blinkdl`` or ``fla`` for a ``time_state``.
        """
        return begin_export(self._connections, state, format, self._timeout_s)

    def export_to(
        self,
        state: str,
        path: str | os.PathLike[str],
        *,
        format: Format = "state",  # noqa: A002
    ) -> Exported:
        """Write a state to a file, which is there whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        export = self.export(state, format=format)
        try:
            with NewFile(path) as file:
                for data in export:
                    file.write(data)
        finally:
            export.close()
        return Exported(state=export.state, n_bytes=export.n_bytes, digest=export.digest)

    def import_from(
        self,
        name: str,
        source: Source,
        *,
        n_bytes: int | None = None,
        digest: str | Callable[[], str] = "",
        format: Format = "state",  # noqa: A002
        tags: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        expected_version: int | None = None,
        durability: Durability | None = None,
        idempotency_key: str = "",
    ) -> StateInfo:
        """Keep a state that was exported, here or elsewhere. The server verifies all of it first.

        Args:
            name: the handle that gets it as its newest version.
            source: a file by its path, bytes, or an iterator over parts of them.
            n_bytes: how many there will be; to be given for an iterator.
            digest: hex BLAKE3 of them, for the server to check, if it is known; or what tells
                it once all were sent.
            format: as of ``export``.

        Raises:
            StateMismatchError: it belongs to another model.
            BadStateFileError: it is no state, or a damaged one.
            OSError: the file cannot be read.
        """
        n_bytes = length_of(source, n_bytes)
        call = calls.import_message(
            name,
            n_bytes,
            form=format,
            tags=tags,
            expires_in_s=expires_in_s,
            expected_version=expected_version,
            durability=durability,
            idempotency_key=idempotency_key,
        )
        return send_state(
            self._connections, call, source, n_bytes, digest=digest, timeout_s=self._timeout_s
        )

    def migrate_begin(self, state: str, *, timeout_s: float | None = None) -> StateInfo:
        """Stop a state where it is and commit it, to move it elsewhere: see ``migrate``.

        Args:
            timeout_s: after so long the server goes on as if nothing had been asked.
        """
        return self._ask(calls.migrate_begin(state, timeout_s))

    def migrate_end(
        self,
        state: str,
        *,
        committed: bool,
        target: str = "",
        target_name: str = "",
        target_version: int = 0,
    ) -> None:
        """Say that a state has moved, or that it stays.

        Args:
            committed: whether the target has verified and committed it.
            target: its address, as clients reach it.
            target_name, target_version: what the state is there.
        """
        call = calls.migrate_end(
            state,
            committed=committed,
            target=target,
            target_name=target_name,
            target_version=target_version,
        )
        self._ask(call)

    def _ask(self, call: calls.Call[T]) -> T:
        return call.result(self._connections.ask(call.message, self._timeout_s))
