"""Every message of protocol version 1. Tags and field order are the format.

A message is a MessagePack array: its tag, then its fields in the order given here.
``docs/protocol.md`` is normative; this module is one implementation of it.
Token ids travel as packed little-endian uint32 in a bytes field: one copy, not one
object per id. Other modules of messages have most of them; all are to be imported from here.
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
    TENANT_FEATURE,
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
from wkvm_protocol.messages_generation import (
    Cancel,
    Credit,
    End,
    Failed,
    Generate,
    GenerateConstrained,
    Logprobs,
    PromptHint,
    Reused,
    Tokens,
)
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
from wkvm_protocol.messages_watch import (
    MAX_LINEAGE,
    WATCH_FEATURE,
    LineageEntry,
    StateChanges,
    StateLineage,
    StateLineagePage,
    StatsChanges,
    Watch,
)

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
    "MAX_LINEAGE",
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
    "TENANT_FEATURE",
    "WATCH_FEATURE",
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
    "LineageEntry",
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
    "StateChanges",
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
    "StateLineage",
    "StateLineagePage",
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
    "StatsChanges",
    "StatsReply",
    "Tags",
    "Tokens",
    "Watch",
    "pack_floats",
    "pack_ids",
    "unpack_floats",
    "unpack_ids",
]

# --- texts and states, 0x10 to 0x3f: see the other modules of messages ---------------------

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
Opening: TypeAlias = Generation | Score | Embed | Stats | StateOperation | Watch
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
    | StateChanges
    | StatsChanges
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
    **dict.fromkeys(
        (StateLineage, StateLineagePage, Watch, StateChanges, StatsChanges), WATCH_FEATURE
    ),
}
"""Messages that are legal only where a feature was agreed."""
