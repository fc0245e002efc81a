"""Messages about texts that are given: how likely they are, and their embeddings.

They are part of ``messages``, and are imported from there.
"""

from wkvm_protocol.fields import Count, Message, PackedFloats, PackedIds, RequestId, ShortText


class Score(Message, frozen=True, tag=0x14):
    """Client to server: open a lane and tell the log probabilities of given ids.

    Answered by Logprobs of the prompt, then by one End; or by Failed. Legal only where the
    feature ``score`` was agreed.
    """

    request_id: RequestId
    prompt: PackedIds
    path: ShortText
    """``chunked``: as prompts are absorbed; ``decode``: one id a step, as output is."""
    n_top: int = 0
    """How many of the most likely ids to tell at each position."""
    timeout_ms: Count = 0
    priority: int = 0


class Embed(Message, frozen=True, tag=0x16):
    """Client to server: open a lane and tell the embedding of a text.

    Answered by one Embedding, then by one End; or by an End alone, where it was cut short; or by
    Failed. Legal only where the feature ``embed`` was agreed.
    """

    request_id: RequestId
    prompt: PackedIds
    pooling: ShortText = "last"
    """``last``, ``mean`` or ``state``: what it is made of."""
    timeout_ms: Count = 0
    priority: int = 0


class Embedding(Message, frozen=True, tag=0x1D):
    """Server to client: the embedding that an Embed asked for, before its End."""

    request_id: RequestId
    vector: PackedFloats
