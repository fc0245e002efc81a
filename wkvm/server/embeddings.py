"""Embed to what it asks of the engine, and what the engine tells to an embedding."""

from array import array
from collections.abc import Sequence
from operator import add

from wkvm_protocol import messages as wire
from wkvm_protocol.messages import pack_floats, unpack_ids

from wkvm.core.errors import InvalidParameterError
from wkvm.core.plan import POOLED_UNIT
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import Pooling, SamplingParams


def embed_spec(message: wire.Embed, tenant: str) -> RequestSpec:
    """What an Embed asks of the engine: a prompt without an output.

    Raises:
        RequestError: a value is out of range. Ids are not checked against the vocabulary.
    """
    try:
        pooling = Pooling(message.pooling)
    except ValueError:
        known = ", ".join(Pooling)
        why = f"{message.pooling[:32]!r} is none of {known}"
        raise InvalidParameterError("pooling", why) from None
    return RequestSpec(
        prompt=unpack_ids(message.prompt),  # stays packed: while it waits it is 4 bytes an id
        params=SamplingParams(max_tokens=0, pooling=pooling),
        tenant=tenant,
        priority=message.priority,
        timeout_s=message.timeout_ms / 1000 if message.timeout_ms else None,
    )


class EmbeddingSum:
    """The embedding of one text, from what its tokens add; see ``StepResult.pooled``.

    Args:
        pooling: what it is made of.
        n_tokens: of the text.
    """

    def __init__(self, pooling: Pooling, n_tokens: int) -> None:
        self._is_mean = pooling is Pooling.MEAN
        self._n_tokens = n_tokens
        self._sums = list[int]()
        self._values: Sequence[float] = ()

    def add(self, packed: bytes) -> None:
        """Take what some tokens add. Cost: some 30 us for each thousand numbers of a mean."""
        if self._is_mean:
            sums = array("q", packed).tolist()
            self._sums = list(map(add, self._sums, sums)) if self._sums else sums
        else:
            self._values = array("f", packed)

    def message(self, request_id: int) -> wire.Embedding | None:
        """What the client is told once all tokens are absorbed; None if nothing came."""
        if self._is_mean:
            # exact up to here; rounded once
            scale = POOLED_UNIT / self._n_tokens
            self._values = [count * scale for count in self._sums]
        if not self._values:
            return None
        return wire.Embedding(request_id, pack_floats(self._values))
