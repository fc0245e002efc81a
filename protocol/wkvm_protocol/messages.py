"""Every message of protocol version 1. Tags and field order are the format.

A message is a MessagePack array: its tag, then its fields in the order given here.
``docs/protocol.md`` is normative; this module is one implementation of it.
Token ids travel as packed little-endian uint32 in a bytes field: one copy, not one
object per id. Those about states are in ``messages_states`` and ``messages_moves``, and here too.
"""

from typing import Annotated, TypeAlias, get_args

import msgspec

from wkvm_protocol.fields import (
    EMBED_FEATURE,
    GRAMMAR_FEATURE,
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    MAX_LANES,
    MAX_LONG_TEXT,
    MAX_REQUEST_ID,
    MAX_SHORT_TEXT,
    PREFIX_FEATURE,
    PROTOCOL_VERSION,
    SCORE_FEATURE,
    Count,
    EndReason,
    Grant,
    LongText,
    Message,
    PackedFloats,
    PackedIds,
    RequestId,
    Sampling,
    ShortText,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from wkvm_protocol.messages_connection import Error, GoAway, Hello, HelloOk, Ping, Pong
from wkvm_protocol.messages_moves import (
    MAX_CHUNK_BYTES,
    REPLIES,
    EndOn,
    GenerateOn,
    Interrupt,
    MigrateBegin,
    MigrateEnd,
    StateBytesEnd,
    StateChunk,
    StateCredit,
    StateExport,
    StateExportBegin,
    StateImport,
    StateMoved,
    StateOperation,
    StateReply,
    StateTransfer,
)
from wkvm_protocol.messages_states import (
    MAX_PAGE,
    MAX_PARAMETERS,
    MAX_STATES,
    MAX_TAGS,
    STATES_FEATURE,
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
from wkvm_protocol.messages_texts import Embed, Embedding, Score

__all__ = [
    "EMBED_FEATURE",
    "FEATURES",
    "FROM_CLIENT",
    "FROM_SERVER",
    "GRAMMAR_FEATURE",
    "MAGIC",
    "MAX_CHUNK_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_HELLO_FRAME_BYTES",
    "MAX_LANES",
    "MAX_LONG_TEXT",
    "MAX_PAGE",
    "MAX_PARAMETERS",
    "MAX_REQUEST_ID",
    "MAX_SHORT_TEXT",
    "MAX_STATES",
    "MAX_TAGS",
    "PREFIX_FEATURE",
    "PROTOCOL_VERSION",
    "REPLIES",
    "SCORE_FEATURE",
    "STATES_FEATURE",
    "Cancel",
    "ClientMessage",
    "Count",
    "Credit",
    "Embed",
    "Embedding",
    "End",
    "EndOn",
    "EndReason",
    "Error",
    "Failed",
    "Generate",
    "GenerateConstrained",
    "GenerateOn",
    "Generation",
    "GoAway",
    "Grant",
    "Hello",
    "HelloOk",
    "Interrupt",
    "Logprobs",
    "LongText",
    "Message",
    "MigrateBegin",
    "MigrateEnd",
    "Opening",
    "PackedFloats",
    "PackedIds",
    "Ping",
    "Pong",
    "PromptHint",
    "RequestId",
    "Reused",
    "Sampling",
    "Score",
    "ServerMessage",
    "ShortText",
    "StateBytesEnd",
    "StateChunk",
    "StateCreate",
    "StateCredit",
    "StateDelete",
    "StateDiff",
    "StateEdit",
    "StateExport",
    "StateExportBegin",
    "StateFork",
    "StateGet",
    "StateHibernate",
    "StateImport",
    "StateInfo",
    "StateList",
    "StateLog",
    "StateMoved",
    "StateMutate",
    "StateOperation",
    "StatePage",
    "StateReplay",
    "StateReply",
    "StateResume",
    "StateRollback",
    "StateSnapshot",
    "StateText",
    "StateTransfer",
    "StateVersions",
    "Stats",
    "StatsReply",
    "Tags",
    "Tokens",
    "pack_floats",
    "pack_ids",
    "unpack_floats",
    "unpack_ids",
]

# --- generation: 0x10 to 0x1f -------------------------------------------------------------


class Generate(Message, frozen=True, tag=0x10):
    """Client to server: open a lane and complete a prompt.

    Answered by any number of Tokens and Logprobs, then by one End for each of the ``n``
    choices; or by one Failed for the lane, at any time.
    """

    request_id: RequestId
    prompt: PackedIds
    sampling: Sampling = Sampling()
    credit: Count = 0
    """Ids that may be sent before more credit is granted, all choices together; 0 is no limit."""
    timeout_ms: Count = 0
    """From arrival to the end; 0 takes the server's default."""
    priority: int = 0
    """Lower runs first."""


class GenerateConstrained(Message, frozen=True, tag=0x13):
    """Client to server: as Generate, but the output follows a grammar.

    Legal only where the feature ``grammar`` was agreed.
    """

    request_id: RequestId
    prompt: PackedIds
    grammar_kind: ShortText
    """``json_schema``, ``regex`` or ``lark``."""
    grammar: str
    sampling: Sampling = Sampling()
    credit: Count = 0
    timeout_ms: Count = 0
    priority: int = 0


class Cancel(Message, frozen=True, tag=0x11):
    """Client to server: end a lane. Answered by its End or Failed; unknown lanes are ignored."""

    request_id: RequestId


class Credit(Message, frozen=True, tag=0x12):
    """Client to server: let a lane send ``n_tokens`` more ids. Unknown lanes are ignored."""

    request_id: RequestId
    n_tokens: Grant


class PromptHint(Message, frozen=True, tag=0x17):
    """Client to server: what is known of the prompt of the request that comes next.

    Sent right before the Generate, GenerateConstrained or GenerateOn of that number, and of no use
    otherwise. Legal only where the feature ``prefix`` was agreed.
    """

    request_id: RequestId
    borders: PackedIds = b""
    """After how many tokens of the prompt a message ends: there other prompts may part from it."""
    cache_salt: ShortText = ""
    """Only requests with the same one share what is computed of their prompts."""


class Tokens(Message, frozen=True, tag=0x18):
    """Server to client: the ids of one step, for all lanes of the connection.

    Entry i belongs to lane ``lanes[i]`` and choice ``choices[i]`` and has ``counts[i]`` of
    the ``ids``, in order. Empty ``choices`` means all 0, empty ``counts`` all 1.
    """

    lanes: PackedIds
    ids: PackedIds
    choices: PackedIds = b""
    counts: PackedIds = b""


class Logprobs(Message, frozen=True, tag=0x19):
    """Server to client: log probabilities, in nats, of prompt ids or of ids in the next Tokens.

    Position i holds ``ids[i]``; its ``n_top`` most likely ids are
    ``top_ids[i * n_top : (i + 1) * n_top]``, best first.
    """

    request_id: RequestId
    choice: Count
    of_prompt: bool
    first: Count
    """Index of the first position, in the output or the prompt."""
    n_top: Count
    ids: PackedIds
    logprobs: PackedFloats
    ranks: PackedIds
    top_ids: PackedIds
    top_logprobs: PackedFloats


class End(Message, frozen=True, tag=0x1A):
    """Server to client: one choice of a lane is complete.

    After the last choice the lane is closed and its request id may be used again.
    """

    request_id: RequestId
    choice: Count
    reason: EndReason
    stop_id: Count | None
    n_prompt: Count
    n_output: Count
    queue_us: Count
    first_token_us: Count
    total_us: Count


class Reused(Message, frozen=True, tag=0x1E):
    """Server to client: so much of the prompt of a choice was not computed for it.

    Before the first id of the choice, if at all. Only where the feature ``prefix`` was agreed.
    """

    request_id: RequestId
    choice: Count
    n_tokens: Count


class Failed(Message, frozen=True, tag=0x1B):
    """Server to client: the lane is closed without success. Other lanes are unaffected."""

    request_id: RequestId
    code: Count
    retryable: bool
    message: LongText
    field: ShortText = ""
    """The field of the request that is at fault, where one is."""
    retry_after_ms: Count = 0


# --- operations on states, 0x20 to 0x3f: see messages_states ------------------------------

# --- the server: 0x40 to 0x4f -------------------------------------------------------------


class Stats(Message, frozen=True, tag=0x40):
    """Client to server: ask for counters. Answered by StatsReply, or by Failed."""

    request_id: RequestId


class StatsReply(Message, frozen=True, tag=0x41):
    """Server to client: counters and gauges by name, as listed in docs/protocol.md."""

    request_id: RequestId
    values: Annotated[dict[ShortText, int], msgspec.Meta(max_length=1024)]


Generation: TypeAlias = Generate | GenerateConstrained | GenerateOn
"""What opens a lane of choices."""
Opening: TypeAlias = Generation | Score | Embed | Stats | StateOperation
"""What opens a lane."""
ClientMessage: TypeAlias = (
    Hello
    | Ping
    | Pong
    | GoAway
    | Opening
    | PromptHint
    | Cancel
    | Credit
    | Interrupt
    | StateTransfer
)
ServerMessage: TypeAlias = (
    HelloOk
    | Ping
    | Pong
    | GoAway
    | Error
    | Tokens
    | Logprobs
    | Embedding
    | End
    | EndOn
    | Reused
    | Failed
    | StatsReply
    | StateReply
    | StateTransfer
)


FROM_CLIENT: tuple[type[ClientMessage], ...] = tuple(
    one for one in get_args(ClientMessage) if one is not Hello
)
"""All that a client sends once the connection is open."""
FROM_SERVER: tuple[type[ServerMessage], ...] = tuple(
    one for one in get_args(ServerMessage) if one is not HelloOk
)
"""All that a server sends once the connection is open."""

FEATURES: dict[type[Message], str] = {
    GenerateConstrained: GRAMMAR_FEATURE,
    Score: SCORE_FEATURE,
    Embed: EMBED_FEATURE,
    Embedding: EMBED_FEATURE,
    PromptHint: PREFIX_FEATURE,
    Reused: PREFIX_FEATURE,
    **dict.fromkeys(
        (
            GenerateOn,
            *REPLIES,
            Interrupt,
            *get_args(StateTransfer),
            EndOn,
            *get_args(StateReply),
        ),
        STATES_FEATURE,
    ),
}
"""Messages that are legal only where a feature was agreed."""
