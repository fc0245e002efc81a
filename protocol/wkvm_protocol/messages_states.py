"""Operations on durable states: legal only where the feature ``states`` was agreed.

A state is named ``NAME``, for its newest version, or ``NAME@VERSION``; whose it is follows from
the connection and is never said in a message. Every operation opens a lane, and one reply, or
Failed, closes it. Those that start from states or move their bytes are in ``messages_moves``.
"""

from typing import Annotated, TypeAlias

import msgspec

from wkvm_protocol.fields import (
    Count,
    Message,
    PackedIds,
    RequestId,
    ShortText,
)

STATES_FEATURE = "states"
"""The feature under which all of these may be sent."""
MAX_STATES = 64
"""States that one operation names or makes."""
MAX_PAGE = 256
"""States in one page of a list."""
MAX_TAGS = 64
MAX_PARAMETERS = 65_536
"""Characters in the parameters of a mutation."""

Tags: TypeAlias = Annotated[dict[ShortText, ShortText], msgspec.Meta(max_length=MAX_TAGS)]
Names: TypeAlias = Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_STATES)]
Parameters: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_PARAMETERS)]


class StateInfo(Message, frozen=True):
    """One version of a state, and what is said of its handle now."""

    name: ShortText
    version: Count
    head: Count
    """The newest version of the handle."""
    n_versions: Count
    ack: ShortText
    """``visible``: in memory; ``durable``: it survives a crash and a loss of power."""
    tier: ShortText
    """Where its bytes are: ``device``, ``host``, ``disk`` or ``cold``."""
    content_id: ShortText
    """Hex BLAKE3 of the bytes: equal where they are."""
    n_bytes: Count
    n_computed: Count
    """Tokens that it has absorbed."""
    n_pending: Count
    """Tokens that belong to it and are not absorbed yet."""
    operation: ShortText
    """How it came to be."""
    parents: Names
    """What it was made from, as ``NAME@VERSION``."""
    tags: Tags
    created_ms: Count
    """Milliseconds since 1970."""
    updated_ms: Count
    """Of the handle."""
    expires_ms: Count | None
    model_digest: ShortText
    layout_fingerprint: ShortText
    tokenizer_digest: ShortText
    tail: PackedIds = b""
    """The last ids of the tokens that belong to it, at most 32."""


# --- operations: 0x20 to 0x2d -------------------------------------------------------------


class StateCreate(Message, frozen=True, tag=0x20):
    """Client to server: absorb exactly these ids and keep the state. Answered by StateVersions."""

    request_id: RequestId
    name: ShortText
    prompt: PackedIds
    state: ShortText = ""
    """What to go on from; empty for the beginning."""
    tags: Tags | None = None
    expires_in_ms: Count = 0
    """0 for never, or to leave what the handle has."""
    expected_version: Count | None = None
    durability: ShortText = ""
    checkpoint_every: Count = 0
    timeout_ms: Count = 0
    priority: int = 0
    idempotency_key: ShortText = ""


class StateGet(Message, frozen=True, tag=0x21):
    """Client to server: tell about one state. Answered by StateVersions."""

    request_id: RequestId
    state: ShortText


class StateList(Message, frozen=True, tag=0x22):
    """Client to server: tell about handles, or versions of one. Answered by StatePage."""

    request_id: RequestId
    prefix: ShortText = ""
    """Of the names."""
    tags: Tags | None = None
    """All of these a handle must have, with these values."""
    versions_of: ShortText = ""
    """A name: list its versions, newest first, and not handles."""
    cursor: ShortText = ""
    """The ``next`` of the page before; empty for the first."""
    limit: Count = 100


class StateFork(Message, frozen=True, tag=0x23):
    """Client to server: new handles on the bytes of one state. Answered by StateVersions."""

    request_id: RequestId
    state: ShortText
    names: Names
    tags: Tags | None = None
    expires_in_ms: Count = 0
    keep_randomness: bool = False
    """Draw what the parent would draw; otherwise each draws numbers of its own."""
    durability: ShortText = ""
    idempotency_key: ShortText = ""


class StateSnapshot(Message, frozen=True, tag=0x24):
    """Client to server: a new version of a state as it is now. Answered by StateVersions."""

    request_id: RequestId
    state: ShortText = ""
    """A handle that is live or that a request will save to; or empty, and a ``lane``."""
    lane: RequestId | None = None
    """An open GenerateOn of this connection, which goes on."""
    save_as: ShortText = ""
    """The handle that gets the version; empty for the same one."""
    expected_version: Count | None = None
    durability: ShortText = ""
    idempotency_key: ShortText = ""


class StateHibernate(Message, frozen=True, tag=0x25):
    """Client to server: move a state's bytes down and free what it held. StateVersions answers."""

    request_id: RequestId
    state: ShortText
    tier: ShortText = "disk"
    """``host``, ``disk`` or ``cold``."""


class StateResume(Message, frozen=True, tag=0x26):
    """Client to server: bring a state's bytes up, verified. Answered by StateVersions."""

    request_id: RequestId
    state: ShortText


class StateRollback(Message, frozen=True, tag=0x27):
    """Client to server: a new head that equals an older point. Answered by StateVersions.

    Exactly one of ``version`` and ``position`` is given.
    """

    request_id: RequestId
    state: ShortText
    version: Count | None = None
    position: Count | None = None
    """So many of its first tokens, absorbed and pending together."""
    expected_version: Count | None = None
    idempotency_key: ShortText = ""


class StateEdit(Message, frozen=True, tag=0x28):
    """Client to server: change one thing about a handle. Answered by StateVersions.

    Exactly one of ``rename``, ``tags`` and ``expires_in_ms`` is given.
    """

    request_id: RequestId
    state: ShortText
    rename: ShortText = ""
    tags: Tags | None = None
    """All tags that it is to have."""
    expires_in_ms: Count | None = None
    """From now; 0 for never."""
    expected_version: Count | None = None


class StateDelete(Message, frozen=True, tag=0x29):
    """Client to server: delete a handle, or one version. Answered by StateVersions, of none."""

    request_id: RequestId
    state: ShortText
    expected_version: Count | None = None


class StateMutate(Message, frozen=True, tag=0x2A):
    """Client to server: change a state other than by tokens. Answered by StateVersions."""

    request_id: RequestId
    operation: ShortText
    states: Names
    """What it works on, the first being what is continued."""
    save_as: ShortText
    parameters: Parameters = "{}"
    """A JSON object."""
    tags: Tags | None = None
    expires_in_ms: Count = 0
    expected_version: Count | None = None
    durability: ShortText = ""
    idempotency_key: ShortText = ""


class StateDiff(Message, frozen=True, tag=0x2B):
    """Client to server: how far two states are apart. Answered by StateText."""

    request_id: RequestId
    state: ShortText
    other: ShortText


class StateLog(Message, frozen=True, tag=0x2C):
    """Client to server: how a state came to be. Answered by StateText."""

    request_id: RequestId
    state: ShortText
    before: Count = 0
    """Versions below this one, newest first; 0 starts at the newest."""
    limit: Count = 100


class StateReplay(Message, frozen=True, tag=0x2D):
    """Client to server: do again what made a state, and compare. Answered by StateText."""

    request_id: RequestId
    state: ShortText
    timeout_ms: Count = 0


# --- replies: 0x38 to 0x3a ----------------------------------------------------------------


class StateVersions(Message, frozen=True, tag=0x38):
    """Server to client: what an operation made or was asked about. Closes the lane."""

    request_id: RequestId
    states: Annotated[tuple[StateInfo, ...], msgspec.Meta(max_length=MAX_STATES)]


class StatePage(Message, frozen=True, tag=0x39):
    """Server to client: a page of a list. Closes the lane."""

    request_id: RequestId
    states: Annotated[tuple[StateInfo, ...], msgspec.Meta(max_length=MAX_PAGE)]
    next: ShortText
    """The ``cursor`` of the next page; empty after the last."""


class StateText(Message, frozen=True, tag=0x3A):
    """Server to client: an answer as canonical JSON. Closes the lane."""

    request_id: RequestId
    text: str
    next: Count
    """The ``before`` of the next part of a log; 0 after the last."""
