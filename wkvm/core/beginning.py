"""How a request begins: which ids it absorbs before it samples, and what its slot starts from."""

from collections.abc import Sequence

from wkvm.core.errors import EmptyPromptError, InvalidParameterError
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import check_ids
from wkvm.core.start import Entry, Start


def ids_to_feed(spec: RequestSpec) -> Sequence[int]:
    """What is pending in the state, then the prompt, less what is held back."""
    pending = () if spec.start is None else spec.start.pending
    fed = (*pending, *spec.prompt) if pending else spec.prompt
    return fed[:-1] if spec.hold_back_last else fed


def is_fed_alone(spec: RequestSpec, fed: Sequence[int]) -> bool:
    """Whether all that is fed to a state is one id, and that as if it had just been sampled.

    So the continuation of a state takes the same steps as a request that was never interrupted.
    An id of a prompt is no output to penalties.
    """
    start, params = spec.start, spec.params
    if start is None or len(fed) != 1 or params.max_tokens == 0:
        return False
    return not params.has_penalties or (start.was_sampled and not spec.prompt)


def entry_of(spec: RequestSpec, fed: Sequence[int]) -> Entry | None:
    """What the slots of a spec's choices start from: one object for all of them.

    Linear in the state's log for a request with penalties, else constant.
    """
    start = spec.start
    if start is None:
        return None
    if not spec.params.has_penalties:
        return Entry(record=start.record, n_start=start.n_computed)
    memory = start.memory
    seen, counts = set(start.log), () if memory is None else memory.counts
    if memory is not None:
        seen.update(memory.seen)
    goes_on = is_fed_alone(spec, fed)
    return Entry(
        record=start.record,
        n_start=start.n_computed,
        counts=counts,
        seen=frozenset(seen),
        fed_output=start.pending if start.was_sampled and not goes_on else (),
    )


def may_be_saved(spec: RequestSpec) -> bool:
    """Whether the output is kept, without which a copy of the state is of no use."""
    return spec.save or spec.start is not None or spec.checkpoint_every is not None


def told_before(spec: RequestSpec) -> tuple[int, ...]:
    """What the request's grammar was told before the request: it goes on if no prompt comes."""
    memory = None if spec.start is None else spec.start.memory
    if memory is None or spec.prompt or memory.grammar != spec.grammar:
        return ()
    return memory.grammar_ids


def check_beginning(spec: RequestSpec, vocab_size: int) -> None:
    """Check what a request begins with and what is to be kept of it. Linear in the ids.

    Raises:
        RequestError: it cannot begin so, for the reason that the leaf says.
    """
    start, params = spec.start, spec.params
    if not spec.prompt and (start is None or not (start.pending or params.max_tokens == 0)):
        raise EmptyPromptError
    if spec.hold_back_last and (params.max_tokens or not spec.prompt):
        raise InvalidParameterError(
            "hold_back_last", "the last id of a prompt, of a request without output"
        )
    every = spec.checkpoint_every
    if every is not None and (type(every) is not int or every < 1):
        raise InvalidParameterError("checkpoint_every", f"{every!r} is not a number of tokens")
    if start is not None:
        _check_start(start, spec, vocab_size)


def _check_start(start: Start, spec: RequestSpec, vocab_size: int) -> None:
    if type(start.n_computed) is not int or start.n_computed < 0:
        raise InvalidParameterError("state", f"{start.n_computed!r} is not a number of tokens")
    if spec.params.prompt_logprobs is not None:
        raise InvalidParameterError(
            "prompt_logprobs", "not of a prompt that goes on from a state: score it from its start"
        )
    check_ids("state", start.pending, vocab_size)
    if start.memory is not None:
        check_ids("state", start.memory.seen, vocab_size)
        check_ids("state", [token_id for token_id, _ in start.memory.counts], vocab_size)
        check_ids("state", start.memory.grammar_ids, vocab_size)
    if spec.params.has_penalties:
        check_ids("state", start.log, vocab_size)
