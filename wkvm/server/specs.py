"""Generate and its like to what they ask of the engine."""

from array import array

from wkvm_protocol import messages as wire
from wkvm_protocol.messages import unpack_floats, unpack_ids

from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams

NO_HINT = wire.PromptHint(0)
"""Of a request whose prompt nothing was said of."""


def spec_of(
    message: wire.Generation,
    tenant: str,
    *,
    shares_credit: bool,
    hint: wire.PromptHint = NO_HINT,
) -> RequestSpec:
    """What a request asks of the engine. Where choices share credit, they start without.

    Raises:
        RequestError: a value is out of range. Ids are not checked against the vocabulary.
    """
    grammar = None
    match message:
        case wire.Generate() | wire.GenerateOn(grammar_kind="", grammar=""):
            pass
        case wire.GenerateConstrained() | wire.GenerateOn():
            grammar = Grammar(message.grammar_kind, message.grammar)
    return RequestSpec(
        prompt=unpack_ids(message.prompt),  # stays packed: while it waits it is 4 bytes an id
        params=_params(message.sampling),
        tenant=tenant,
        priority=message.priority,
        timeout_s=message.timeout_ms / 1000 if message.timeout_ms else None,
        credit=0 if shares_credit else message.credit or None,
        grammar=grammar,
        borders=unpack_ids(hint.borders),
        cache_salt=hint.cache_salt,
    )


def _params(sampling: wire.Sampling) -> SamplingParams:
    bias = zip(unpack_ids(sampling.bias_ids), unpack_floats(sampling.bias_values), strict=True)
    allowed_ids = None
    if sampling.allowed_ids is not None:
        # Each once, and packed like the prompt: 4 bytes an id while the request waits.
        allowed_ids = array("I", dict.fromkeys(unpack_ids(sampling.allowed_ids)))
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        penalty_decay=sampling.penalty_decay,
        logit_bias=tuple(bias),
        allowed_ids=allowed_ids,
        stop_ids=tuple(unpack_ids(sampling.stop_ids)),
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        max_tokens=sampling.max_tokens,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        seed=sampling.seed,
        n=sampling.n,
    )
