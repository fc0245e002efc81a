"""A state moves from one server to another, for asyncio: ``migrate``.

Whoever calls this talks to both servers; they do not talk to each other. The source keeps what it
has, and goes on with it, until the target has verified and committed all of it.
"""

import contextlib
import time

from wkvm_client.aio_states import States
from wkvm_client.errors import (
    BadPeerError,
    ClientError,
    DeadlineError,
    InvalidParameterError,
    LinkError,
    StaleVersionError,
    StateExistsError,
    StateNotFoundError,
)
from wkvm_client.states import Migrated, StateInfo

MOVED_TAG = "wkvm.moved"
"""What a server marks what it has left of a moved state with."""

STAYS = (
    BadPeerError,
    InvalidParameterError,
    StaleVersionError,
    StateExistsError,
    StateNotFoundError,
)
"""After these, at the end of a migration, the source goes on for certain."""


async def migrate(
    source: States,
    state: str,
    target: States,
    address: str,
    *,
    name: str = "",
    timeout_s: float = 30.0,
) -> Migrated:
    """Move a state: its newest version, and a stream under way that will be saved to it.

    Such a stream is stopped at a step, and its client goes on at the target by itself, without a
    lost or repeated id. The state's older versions stay where they are.

    Args:
        source, target: of clients of the two servers.
        state: its name at the source.
        address: of the target, as the clients of the source reach it.
        name: of the state at the target, which must be new there; the same as at the source
            unless given.
        timeout_s: if the source does not hear within this time how it ended, it goes on.

    Raises:
        StateMismatchError: the target runs another model, or keeps states of another layout.
        StaleVersionError: the target has a state of that name.
        ClientError: it failed. The source goes on, and the target has nothing, unless the
            connection to one of them was lost: then ``note`` on the error says what may be.
    """
    began = await source.migrate_begin(state, timeout_s=timeout_s)
    start_s = time.perf_counter()
    name = name or began.name
    try:
        export = await source.export(began.ref)
        try:
            there = await target.import_from(
                name,
                export,
                n_bytes=export.n_bytes,
                digest=lambda: export.digest,
                tags={key: value for key, value in began.tags.items() if key != MOVED_TAG},
                expires_in_s=_left_s(began),
                expected_version=0,
            )
        finally:
            export.close()
    except BaseException as error:
        await _stay(source, began.name)
        if isinstance(error, LinkError | DeadlineError):
            error.add_note(f"{name} may be at {address} all the same: if it is, delete it there")
        raise
    try:
        _check(began, there)
        await source.migrate_end(
            began.name,
            committed=True,
            target=address,
            target_name=there.name,
            target_version=there.version,
        )
    except STAYS:
        # what is at the target would be a second one
        await target.delete(there.ref)
        await _stay(source, began.name)
        raise
    except ClientError as error:
        # the source may have given it up before this went wrong: then the target has it alone
        error.add_note(
            f"{there.ref} is committed at {address}; whether {began.ref} moved is not known"
        )
        raise
    return Migrated(
        source=began.ref,
        target=address,
        state=there,
        n_bytes=export.n_bytes,
        pause_s=time.perf_counter() - start_s,
    )


async def _stay(source: States, name: str) -> None:
    """Let the source go on. Where it cannot be told, it does so by itself in time."""
    with contextlib.suppress(ClientError):
        await source.migrate_end(name, committed=False)


def _check(began: StateInfo, there: StateInfo) -> None:
    """Check that what was committed is what was sent.

    Raises:
        BadPeerError: it is something else.
    """
    told = (there.content_id, there.n_computed, there.n_pending)
    if told != (began.content_id, began.n_computed, began.n_pending):
        raise BadPeerError(f"what the target committed as {there.ref} is not {began.ref}")


def _left_s(began: StateInfo) -> float | None:
    return None if began.expires_at is None else max(began.expires_at - time.time(), 0.001)
