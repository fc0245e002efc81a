"""Score to what it asks of the engine."""

from wkvm_protocol import messages as wire
from wkvm_protocol.messages import unpack_ids

from wkvm.core.errors import InvalidParameterError
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams


def score_spec(message: wire.Score, tenant: str) -> RequestSpec:
    """What a Score asks of the engine. ``n_ids`` of it is the length of the text.

    By the chunked path the text is a prompt without an output. By the decode path its first id
    is the prompt, and the others are an output that leaves nothing to choose.

    Raises:
        RequestError: a value is out of range. Ids are not checked against the vocabulary.
    """
    ids = unpack_ids(message.prompt)  # stays packed: while it waits it is 4 bytes an id
    forced = ids[:0]
    match message.path:
        case "chunked":
            pass
        case "decode":
            ids, forced = ids[:1], ids[1:]
        case other:
            raise InvalidParameterError("path", f"{other[:32]!r} is neither chunked nor decode")
    return RequestSpec(
        prompt=ids,
        params=_params(message.n_top, len(forced)),
        tenant=tenant,
        priority=message.priority,
        timeout_s=message.timeout_ms / 1000 if message.timeout_ms else None,
        forced=forced,
    )


def _params(n_top: int, n_forced: int) -> SamplingParams:
    try:
        if not n_forced:
            return SamplingParams(max_tokens=0, prompt_logprobs=n_top)
        return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=n_forced, logprobs=n_top)
    except InvalidParameterError as error:
        raise InvalidParameterError("n_top", error.why) from None
