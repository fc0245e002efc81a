"""Going on from durable states, sending and fetching their bytes, and moving them elsewhere.

Legal only where the feature ``states`` was agreed. Bytes of a state travel in StateChunk, within
a lane, and only as many as the other side has granted.
"""

from typing import Annotated, TypeAlias

import msgspec

from wkvm_protocol.fields import (
    Count,
    EndReason,
    Grant,
    LongText,
    Message,
    PackedIds,
    RequestId,
    Sampling,
    ShortText,
)
from wkvm_protocol.messages_states import (
    StateCreate,
    StateDelete,
    StateDiff,
    StateEdit,
    StateFork,
    StateGet,
    StateHibernate,
    StateInfo,
    StateList,
    StateLog,
    StateMutate,
    StatePage,
    StateReplay,
    StateResume,
    StateRollback,
    StateSnapshot,
    StateText,
    StateVersions,
    Tags,
)
from wkvm_protocol.messages_watch import StateLineage, StateLineagePage

MAX_CHUNK_BYTES = 256 * 1024
"""Bytes of a state in one message: few enough that ids of other lanes are not held up."""

Chunk: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_CHUNK_BYTES)]


# --- generating: 0x15 and 0x1c ------------------------------------------------------------


class GenerateOn(Message, frozen=True, tag=0x15):
    """Client to server: as Generate, but start from a state, or keep the one at the end.

    Answered as Generate is, with EndOn in the place of End. With ``inline_bytes`` the state
    to start from comes in StateChunks before anything is done.
    """

    request_id: RequestId
    prompt: PackedIds
    """May be empty where a state says how to go on."""
    sampling: Sampling = Sampling()
    credit: Count = 0
    timeout_ms: Count = 0
    priority: int = 0
    state: ShortText = ""
    """What to start from; empty for the beginning."""
    inline_bytes: Count = 0
    """Length of a state that the client sends along in place of ``state``; 0 for none."""
    save_as: ShortText = ""
    """The handle that gets the state at the end as a new version; empty for none."""
    expected_version: Count | None = None
    """What the head of ``save_as`` must be; 0 for a handle that must be new."""
    on_disconnect: ShortText = "cancel"
    """``cancel``, ``finish`` or ``hibernate``."""
    durability: ShortText = ""
    """``disk`` or ``memory``: what the EndOn of a saved state waits for; empty for the best."""
    want_inline: bool = False
    """Send the state at the end, in StateChunks before the EndOn."""
    checkpoint_every: Count = 0
    """Keep a checkpoint wherever so many tokens more were absorbed; 0 for none."""
    replay: bool = False
    """Draw the random numbers of the state's own key, not fresh ones."""
    idempotency_key: ShortText = ""
    received: Count = 0
    """Ids that the client has already had of a request with this key."""
    grammar_kind: ShortText = ""
    """As in GenerateConstrained; empty for no grammar."""
    grammar: str = ""
    tags: Tags | None = None
    expires_in_ms: Count = 0
    """Of the handle ``save_as``; 0 leaves it as it is."""


class EndOn(Message, frozen=True, tag=0x1C):
    """Server to client: one choice of a GenerateOn is complete."""

    request_id: RequestId
    choice: Count
    reason: EndReason
    stop_id: Count | None
    n_prompt: Count
    n_output: Count
    queue_us: Count
    first_token_us: Count
    total_us: Count
    cached_tokens: Count = 0
    """Tokens that came with the state and were not computed again."""
    n_computed: Count = 0
    """Tokens that the state at the end has absorbed since its beginning."""
    pending: PackedIds = b""
    """Tokens that belong to the state at the end and are not absorbed."""
    prompt_left: Count = 0
    """Ids at the end of the prompt that were not absorbed and are not pending."""
    name: ShortText = ""
    """What was saved, or what to go on from where the reason is MOVED; empty for nothing."""
    version: Count = 0
    ack: ShortText = ""
    """``visible`` or ``durable``, of what was saved."""
    target: LongText = ""
    """Where the stream has moved to, such as ``tcp://HOST:PORT``."""


# --- bytes: 0x2e to 0x31, 0x35 and 0x3b --------------------------------------------------------


class StateExport(Message, frozen=True, tag=0x2E):
    """Client to server: send a state. Answered by StateExportBegin, StateChunks, StateBytesEnd."""

    request_id: RequestId
    state: ShortText
    format: ShortText = "state"
    """``state``: all of it; ``blinkdl`` or ``fla``: a time_state in that orientation."""
    credit: Count = 0
    """Bytes that may come before more is granted; 0: no limit."""


class StateImport(Message, frozen=True, tag=0x2F):
    """Client to server: keep a state that the client sends. Answered by StateVersions.

    The server grants bytes by StateCredit, the client sends them and then StateBytesEnd.
    """

    request_id: RequestId
    name: ShortText
    n_bytes: Count
    """Of the whole file."""
    format: ShortText = "state"
    """As in StateExport."""
    tags: Tags | None = None
    expires_in_ms: Count = 0
    expected_version: Count | None = None
    durability: ShortText = ""
    idempotency_key: ShortText = ""


class StateChunk(Message, frozen=True, tag=0x30):
    """Either side: the next bytes of a state, as many as were granted at most."""

    request_id: RequestId
    data: Chunk


class StateBytesEnd(Message, frozen=True, tag=0x31):
    """Either side: all bytes were sent. From the server it closes the lane of an export."""

    request_id: RequestId
    digest: ShortText = ""
    """Hex BLAKE3 of them; empty where the sender does not say."""


class StateCredit(Message, frozen=True, tag=0x35):
    """Either side: so many more bytes may be sent on a lane."""

    request_id: RequestId
    n_bytes: Grant


class StateExportBegin(Message, frozen=True, tag=0x3B):
    """Server to client: so many bytes follow in StateChunks. The lane stays open."""

    request_id: RequestId
    n_bytes: Count
    state: StateInfo | None
    """What they are; nil for the state at the end of a request that saved nothing."""


# --- migration and interruption: 0x32 to 0x34 ---------------------------------------------


class MigrateBegin(Message, frozen=True, tag=0x32):
    """Client to server: stop a state where it is and commit it, to move it elsewhere.

    Answered by StateVersions, of the version to move. A stream that was under way waits, until
    MigrateEnd, the timeout or the end of this connection.
    """

    request_id: RequestId
    state: ShortText
    timeout_ms: Count = 0


class MigrateEnd(Message, frozen=True, tag=0x33):
    """Client to server: the state has moved, or stays. Answered by StateVersions."""

    request_id: RequestId
    state: ShortText
    committed: bool
    """Whether the target has verified and committed it; otherwise all goes on here."""
    target: LongText = ""
    """Its address, as clients reach it."""
    target_name: ShortText = ""
    target_version: Count = 0


class Interrupt(Message, frozen=True, tag=0x34):
    """Client to server: end a GenerateOn now, and save. Its EndOn answers.

    Ignored where the lane is not open.
    """

    request_id: RequestId
    keep: Count | None = None
    """How many output ids the saved state has; nil for all."""


class StateMoved(Message, frozen=True, tag=0x3C):
    """Server to client: the lane is closed without success, since the state is elsewhere now."""

    request_id: RequestId
    message: LongText
    target: LongText
    """An address, such as ``tcp://HOST:PORT``."""
    state: ShortText
    """What it is called there, as ``NAME@VERSION``."""


StateOperation: TypeAlias = (
    StateCreate
    | StateGet
    | StateList
    | StateFork
    | StateSnapshot
    | StateHibernate
    | StateResume
    | StateRollback
    | StateEdit
    | StateDelete
    | StateMutate
    | StateDiff
    | StateLog
    | StateReplay
    | StateLineage
    | StateExport
    | StateImport
    | MigrateBegin
    | MigrateEnd
)
"""What opens a lane that takes one reply."""
StateTransfer: TypeAlias = StateChunk | StateBytesEnd | StateCredit
"""What moves bytes of states within a lane, in either direction."""
StateReply: TypeAlias = (
    StateVersions | StatePage | StateText | StateLineagePage | StateExportBegin | StateMoved
)

REPLIES: dict[type[Message], type[Message]] = {
    StateCreate: StateVersions,
    StateGet: StateVersions,
    StateList: StatePage,
    StateFork: StateVersions,
    StateSnapshot: StateVersions,
    StateHibernate: StateVersions,
    StateResume: StateVersions,
    StateRollback: StateVersions,
    StateEdit: StateVersions,
    StateDelete: StateVersions,
    StateMutate: StateVersions,
    StateDiff: StateText,
    StateLog: StateText,
    StateReplay: StateText,
    StateLineage: StateLineagePage,
    StateExport: StateBytesEnd,
    StateImport: StateVersions,
    MigrateBegin: StateVersions,
    MigrateEnd: StateVersions,
}
"""What closes the lane of each operation, unless Failed does."""
