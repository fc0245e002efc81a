"""Operations on states as messages, and what their answers mean: the same for both clients.

What the values mean, the server checks; what cannot be packed is refused here.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from wkvm_protocol import messages
from wkvm_protocol.messages import Message, StateOperation, StateText, StateVersions

from wkvm_client.drafts import milliseconds, pack
from wkvm_client.errors import BadPeerError, InvalidParameterError
from wkvm_client.states import (
    Difference,
    LineagePage,
    Log,
    LogEntry,
    Replay,
    StateInfo,
    StatePage,
    info_of,
    lineage_entry_of,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One operation: what to send, its number apart, and what to make of the answer."""

    message: StateOperation
    result: Callable[[Message], T]


def create(
    name: str,
    prompt: Iterable[int],
    *,
    state: str,
    tags: Mapping[str, str] | None,
    expires_in_s: float | None,
    expected_version: int | None,
    durability: str | None,
    checkpoint_every: int,
    priority: int,
    idempotency_key: str,
    timeout_s: float | None,
) -> Call[StateInfo]:
    """See ``States.create``."""
    message = messages.StateCreate(
        request_id=0,
        name=name,
        prompt=pack("prompt", prompt),
        state=state,
        tags=_tags(tags),
        expires_in_ms=milliseconds("expires_in_s", expires_in_s),
        expected_version=expected_version,
        durability=durability or "",
        checkpoint_every=checkpoint_every,
        timeout_ms=milliseconds("timeout_s", timeout_s),
        priority=priority,
        idempotency_key=idempotency_key,
    )
    return Call(message, _one)


def get(state: str) -> Call[StateInfo]:
    """See ``States.get``."""
    return Call(messages.StateGet(0, state), _one)


def page(
    prefix: str, tags: Mapping[str, str] | None, versions_of: str, cursor: str, limit: int
) -> Call[StatePage]:
    """See ``States.list`` and ``States.versions``."""
    message = messages.StateList(0, prefix, _tags(tags), versions_of, cursor, limit)
    return Call(message, _page)


def fork(
    state: str,
    names: Sequence[str],
    *,
    tags: Mapping[str, str] | None,
    expires_in_s: float | None,
    keep_randomness: bool,
    durability: str | None,
    idempotency_key: str,
) -> Call[list[StateInfo]]:
    """See ``States.fork``."""
    message = messages.StateFork(
        request_id=0,
        state=state,
        names=tuple(names),
        tags=_tags(tags),
        expires_in_ms=milliseconds("expires_in_s", expires_in_s),
        keep_randomness=keep_randomness,
        durability=durability or "",
        idempotency_key=idempotency_key,
    )
    return Call(message, _several)


def snapshot(
    state: str,
    *,
    lane: int | None,
    save_as: str,
    expected_version: int | None,
    durability: str | None,
    idempotency_key: str,
) -> Call[StateInfo]:
    """See ``States.snapshot``."""
    message = messages.StateSnapshot(
        0, state, lane, save_as, expected_version, durability or "", idempotency_key
    )
    return Call(message, _one)


def hibernate(state: str, tier: str) -> Call[StateInfo]:
    """See ``States.hibernate``."""
    return Call(messages.StateHibernate(0, state, tier), _one)


def resume(state: str) -> Call[StateInfo]:
    """See ``States.resume``."""
    return Call(messages.StateResume(0, state), _one)


def rollback(
    state: str,
    *,
    version: int | None,
    position: int | None,
    expected_version: int | None,
    idempotency_key: str,
) -> Call[StateInfo]:
    """See ``States.rollback``."""
    message = messages.StateRollback(0, state, version, position, expected_version, idempotency_key)
    return Call(message, _one)


def rename(state: str, name: str, expected_version: int | None) -> Call[StateInfo]:
    """See ``States.rename``."""
    if not name:
        # which would be another edit
        raise InvalidParameterError("name: it is empty", field="name")
    return _edit(state, expected_version, rename=name)


def tag(state: str, tags: Mapping[str, str], expected_version: int | None) -> Call[StateInfo]:
    """See ``States.tag``."""
    return _edit(state, expected_version, tags=dict(tags))


def expire(state: str, in_s: float | None, expected_version: int | None) -> Call[StateInfo]:
    """See ``States.expire``."""
    return _edit(state, expected_version, expires_in_ms=milliseconds("in_s", in_s))


def _edit(
    state: str,
    expected_version: int | None,
    *,
    rename: str = "",
    tags: dict[str, str] | None = None,
    expires_in_ms: int | None = None,
) -> Call[StateInfo]:
    message = messages.StateEdit(0, state, rename, tags, expires_in_ms, expected_version)
    return Call(message, _one)


def delete(state: str, expected_version: int | None) -> Call[None]:
    """See ``States.delete``."""
    return Call(messages.StateDelete(0, state, expected_version), _nothing)


def mutate(
    operation: str,
    states: str | Sequence[str],
    save_as: str,
    parameters: Mapping[str, Any],
    *,
    tags: Mapping[str, str] | None,
    expires_in_s: float | None,
    expected_version: int | None,
    durability: str | None,
    idempotency_key: str,
) -> Call[StateInfo]:
    """See ``States.mutate``."""
    try:
        text = json.dumps(dict(parameters), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError(f"parameters: {error}", field="parameters") from None
    message = messages.StateMutate(
        request_id=0,
        operation=operation,
        states=(states,) if isinstance(states, str) else tuple(states),
        save_as=save_as,
        parameters=text,
        tags=_tags(tags),
        expires_in_ms=milliseconds("expires_in_s", expires_in_s),
        expected_version=expected_version,
        durability=durability or "",
        idempotency_key=idempotency_key,
    )
    return Call(message, _one)


def difference(state: str, other: str) -> Call[Difference]:
    """See ``States.difference``."""
    return Call(messages.StateDiff(0, state, other), lambda told: _decoded(told, Difference))


def log(state: str, before: int, limit: int) -> Call[Log]:
    """See ``States.log``."""
    return Call(messages.StateLog(0, state, before, limit), _log)


def lineage(prefix: str, state: str, newest: int, cursor: str, limit: int) -> Call[LineagePage]:
    """See ``States.lineage``."""
    message = messages.StateLineage(0, prefix, state, newest, cursor, limit)
    return Call(message, _lineage)


def replay(state: str, timeout_s: float | None) -> Call[Replay]:
    """See ``States.replay``."""
    message = messages.StateReplay(0, state, milliseconds("timeout_s", timeout_s))
    return Call(message, lambda told: _decoded(told, Replay))


def migrate_begin(state: str, timeout_s: float | None) -> Call[StateInfo]:
    """See ``States.migrate_begin``."""
    return Call(messages.MigrateBegin(0, state, milliseconds("timeout_s", timeout_s)), _one)


def migrate_end(
    state: str, *, committed: bool, target: str, target_name: str, target_version: int
) -> Call[None]:
    """See ``States.migrate_end``."""
    message = messages.MigrateEnd(0, state, committed, target, target_name, target_version)
    return Call(message, _nothing)


def import_message(
    name: str,
    n_bytes: int,
    *,
    form: str,
    tags: Mapping[str, str] | None,
    expires_in_s: float | None,
    expected_version: int | None,
    durability: str | None,
    idempotency_key: str,
) -> Call[StateInfo]:
    """See ``States.import_from``. The bytes follow."""
    message = messages.StateImport(
        request_id=0,
        name=name,
        n_bytes=n_bytes,
        format=form,
        tags=_tags(tags),
        expires_in_ms=milliseconds("expires_in_s", expires_in_s),
        expected_version=expected_version,
        durability=durability or "",
        idempotency_key=idempotency_key,
    )
    return Call(message, _one)


# --- answers ------------------------------------------------------------------------------


def _tags(tags: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if tags is None else dict(tags)


def _one(told: Message) -> StateInfo:
    states = _several(told)
    if len(states) != 1:
        raise BadPeerError(f"the server answered with {len(states)} states, where one was asked of")
    return states[0]


def _several(told: Message) -> list[StateInfo]:
    assert isinstance(told, StateVersions)
    return [info_of(state) for state in told.states]


def _nothing(told: Message) -> None:
    assert isinstance(told, StateVersions)


def _page(told: Message) -> StatePage:
    assert isinstance(told, messages.StatePage)
    return StatePage(states=tuple(map(info_of, told.states)), next=told.next)


def _lineage(told: Message) -> LineagePage:
    assert isinstance(told, messages.StateLineagePage)
    return LineagePage(entries=tuple(map(lineage_entry_of, told.entries)), next=told.next)


def _log(told: Message) -> Log:
    assert isinstance(told, StateText)
    return Log(entries=_decoded(told, tuple[LogEntry, ...]), next=told.next)


def _decoded(told: Message, kind: type[T]) -> T:
    assert isinstance(told, StateText)
    try:
        return msgspec.json.decode(told.text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadPeerError(f"the server's answer cannot be read: {error}") from error
