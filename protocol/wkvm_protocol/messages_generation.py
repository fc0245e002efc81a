"""Messages of lanes that complete prompts: 0x10 to 0x1f.

They are part of ``messages``, and are imported from there.
"""

from wkvm_protocol.fields import (
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
)


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
