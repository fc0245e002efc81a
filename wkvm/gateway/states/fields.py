"""Which state a request goes on from and what is kept of it: fields of bodies and of answers."""

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from wkvm_client.states import Durability, OnDisconnect, StateEnd

from wkvm.gateway.failures import invalid

KEY_FIELD = "idempotency_key"
KEY_HEADER = "Idempotency-Key"
"""The header that says what the field says, where that is not given."""


class KeyedFields(msgspec.Struct, kw_only=True):
    """Of every body of what is done once with a key, however often it is sent."""

    idempotency_key: str | None = None


class StateFields(KeyedFields, kw_only=True):
    """Fields of every body that generates. None stands for a field that is absent.

    Attributes:
        state: ``name`` or ``name@version``: what to go on from.
        state_bytes: the bytes of a state's file, in base64, to go on from instead.
        save_as: the handle that gets the state at the end as a new version.
        expected_version: what its head must be; 0 for a handle that must be new.
        durability: of that version.
        on_disconnect: what becomes of the request if its client leaves.
        checkpoint_every: keep a state to roll back to at each multiple of so many tokens.
        replay: draw the random numbers that the state would draw.
        return_state: whether the answer has the bytes of the state at the end.
        idempotency_key: with one, the request is run and kept once.
        state_tags, state_expires_in_s: of a handle that ``save_as`` makes.
    """

    state: str | None = None
    state_bytes: str | None = None
    save_as: str | None = None
    expected_version: int | None = None
    durability: Durability | None = None
    on_disconnect: OnDisconnect | None = None
    checkpoint_every: int | None = None
    replay: bool | None = None
    return_state: bool | None = None
    state_tags: dict[str, str] | None = None
    state_expires_in_s: float | None = None

    @property
    def continues(self) -> bool:
        """Whether the request goes on from a state, so that its prompt may be empty."""
        return self.state is not None or self.state_bytes is not None

    @property
    def saves(self) -> bool:
        """Whether the state at the end is wanted."""
        return self.save_as is not None or bool(self.return_state)

    def state_keywords(self, *, n: int = 1) -> dict[str, Any]:
        """Keywords of ``Client.generate``, only those that were given.

        Args:
            n: how many choices there are, of all prompts together.

        Raises:
            HttpError: 400; a field contradicts another one, or is not base64.
        """
        for name in ("state", "state_bytes", "save_as", "idempotency_key"):
            if getattr(self, name) == "":
                raise invalid(name, EMPTY)
        check_every(self.checkpoint_every)
        if self.saves and n != 1:
            field = "save_as" if self.save_as is not None else "return_state"
            raise invalid(field, f"needs one choice: {n} would each end in another state")
        given: dict[str, Any] = {
            "state": self.state,
            "state_bytes": self.inline(),
            "save_as": self.save_as,
            "expected_version": self.expected_version,
            "durability": self.durability,
            "on_disconnect": self.on_disconnect,
            "checkpoint_every": self.checkpoint_every,
            "replay": self.replay,
            "return_state": self.return_state,
            "idempotency_key": self.idempotency_key,
            "tags": self.state_tags,
            "expires_in_s": self.state_expires_in_s,
        }
        return {name: value for name, value in given.items() if value is not None}

    def inline(self) -> bytes | None:
        """The bytes of ``state_bytes``.

        Raises:
            HttpError: 400; they are not base64, or there is a ``state`` too.
        """
        if self.state_bytes is None:
            return None
        if self.state is not None:
            raise invalid("state_bytes", "excludes state")
        try:
            return base64.b64decode(self.state_bytes, validate=True)
        except (binascii.Error, ValueError) as error:
            raise invalid("state_bytes", f"not base64: {error}") from error


def check_every(checkpoint_every: int | None) -> None:
    """Refuse a distance of 0: to the engine it says that there are to be no checkpoints.

    Raises:
        HttpError: 400.
    """
    if checkpoint_every == 0:
        raise invalid("checkpoint_every", "0 is no number of tokens")


EMPTY = "it is empty: leave it out where nothing is meant"
STATE_FIELDS = frozenset(StateFields.__struct_fields__)
"""Their names."""
STATE_NAMES = {
    "expires_in_s": "state_expires_in_s",
    "inline": "state_bytes",
    "inline_bytes": "state_bytes",
    "tags": "state_tags",
    "want_inline": "return_state",
}
"""What the fields are called here, where the client has another keyword."""


class StateReport(msgspec.Struct, omit_defaults=True):
    """What an answer says of the state at its end.

    Attributes:
        name, version: what was committed; null where nothing was.
        ack: ``visible`` or ``durable``; null likewise.
        n_computed: tokens that it has absorbed.
        pending: ids that belong to it and were not fed; a continuation feeds them first.
        bytes: the state's file, in base64, if it was asked for.
        target: of a request that was moved: the address where the state is now.
    """

    name: str | None
    version: int | None
    ack: str | None
    n_computed: int
    pending: list[int]
    bytes: str | UnsetType = UNSET
    target: str | UnsetType = UNSET


def report(end: StateEnd | None) -> StateReport | UnsetType:
    """What to say of the end of a request; nothing if it kept nothing."""
    if end is None or (not end.name and end.data is None):
        return UNSET
    told = StateReport(None, None, None, end.n_computed, list(end.pending))
    if end.name:
        told.name, told.version, told.ack = end.name, end.version, end.ack
    if end.target:
        told.target = end.target
    if end.data is not None:
        told.bytes = base64.b64encode(end.data).decode()
    return told


def n_cached(ends: Sequence[StateEnd | None]) -> int:
    """How many tokens of the prompts came with states and were not computed again."""
    return sum(end.cached_tokens for end in ends if end is not None)


TAIL_IDS = 32
"""So many of the last ids of a state say how it ends."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request goes on from.

    Attributes:
        tail: its last ids, those that wait to be fed included.
        n_tokens: how many there are in all, likewise.
    """

    tail: Sequence[int] = ()
    n_tokens: int = 0


NO_ORIGIN = Origin()
"""Of a request without a state."""


def origin_of_file(data: bytes) -> Origin:
    """What the file of a state holds.

    Returns:
        Nothing for what is no such file: the engine says what is wrong with it.
    """
    n_header = 8 + int.from_bytes(data[:8], "little")
    try:
        log = log_of_file(data[8:n_header], n_header)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_ORIGIN
    ids = data[max(log.start, log.end - 4 * TAIL_IDS) : log.end]
    if len(ids) % 4 or not 0 <= log.start <= log.end <= len(data):
        return NO_ORIGIN
    tail = (*(one for (one,) in struct.iter_unpack("<I", ids)), *log.pending)
    return Origin(tail, log.n_absorbed + len(log.pending))


@dataclass(frozen=True, slots=True)
class FileLog:
    """Where in a state's file its token log is.

    Attributes:
        start: of its first byte.
        end: after its last.
        pending: ids that belong to the state and are not in the log.
    """

    start: int
    end: int
    pending: list[int]

    @property
    def n_absorbed(self) -> int:
        """How many ids it has."""
        return (self.end - self.start) // 4


def log_of_file(header: bytes, n_before: int) -> FileLog:
    """Read the header of a state's file.

    Args:
        header: the JSON of it.
        n_before: how many bytes there are before the data, the header's included.

    Raises:
        msgspec.MsgspecError, UnicodeError, RecursionError: it is no such file.
    """
    read = msgspec.json.decode(header, type=_FileHeader)
    pending = msgspec.json.decode(read.metadata.carried, type=_Carried).pending
    start, end = read.token_ids.data_offsets
    return FileLog(n_before + start, n_before + end, pending)


class _Metadata(msgspec.Struct):
    carried: str = msgspec.field(name="wkvm.carried")


class _Entry(msgspec.Struct):
    data_offsets: tuple[int, int]


class _FileHeader(msgspec.Struct):
    """The part of a state's file that concerns its tokens; see docs/states.md."""

    metadata: _Metadata = msgspec.field(name="__metadata__")
    token_ids: _Entry = msgspec.field(name="wkvm.token_ids")


class _Carried(msgspec.Struct):
    pending: list[int]
