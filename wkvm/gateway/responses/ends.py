"""What is known of a response once its answer is there: its cost, its state, and what else."""

from collections.abc import Sequence
from typing import Any

from wkvm_client.states import StateEnd

from wkvm.gateway.monitoring.times import metrics_of
from wkvm.gateway.responses.asking import Asked
from wkvm.gateway.responses.items import Kept
from wkvm.gateway.responses.records import Origin
from wkvm.gateway.responses.resource import cost
from wkvm.gateway.streams.pieces import ChoiceText, Finish
from wkvm.gateway.text.tokenizer import Tokenizer
from wkvm.gateway.text.written import ReadMark, read_by


def usage_of(
    asked: Asked, finish: Finish, output: Sequence[Kept], tokenizer: Tokenizer
) -> dict[str, Any]:
    """What a response cost, as its ``usage`` tells it.

    Args:
        output: its items.
        tokenizer: counts what was thought, as text.
    """
    thoughts = [one for one in output if one["type"] == "reasoning"]
    parts = [part["text"] for one in thoughts for part in one["content"]]
    n_reasoning = sum(len(tokenizer.encode(text)) for text in parts)
    if finish.state is not None:
        n_read = finish.state.cached_tokens
    else:
        # One that was given up at a stop string does not say what its state had read.
        n_read = asked.n_read if asked.question.continues else 0
    return cost(
        n_input=_n_before(asked),
        n_cached=n_read + finish.n_reused,
        n_output=finish.n_output,
        n_reasoning=min(n_reasoning, finish.n_output),
    )


def origin_of(
    asked: Asked, ids: Sequence[int], end: StateEnd | None, tokenizer: Tokenizer
) -> Origin | None:
    """What is known of the state at the end; None if it is none to go on from.

    Args:
        ids: that the answer had, those of a stop string included.
    """
    if end is None or not end.name:
        return None
    n_kept = end.n_tokens - _n_before(asked)
    kept = list(ids[: max(n_kept, 0)])
    if n_kept == len(kept) + 1:
        kept += end.pending  # the id that ended the answer
    if n_kept != len(kept):
        return None
    read = read_by(kept, tokenizer)
    if read is None:
        return None
    mark = ReadMark.of(asked.question.read + read)
    return Origin(ref=end.ref, mark=mark, n_tokens=end.n_tokens)


def extras(asked: Asked, text: ChoiceText, ids: Sequence[int]) -> dict[str, Any]:
    """What else a response tells, if it was asked for: its ids, how long it took."""
    told = dict[str, Any]()
    if asked.body.return_token_ids:
        told["token_ids"] = list(ids)
        told["prompt_token_ids"] = asked.question.prompt
    if asked.body.return_metrics:
        told["metrics"] = metrics_of([text])
    return told


def _n_before(asked: Asked) -> int:
    """All tokens before the answer."""
    n_state = 0 if asked.origin is None else asked.origin.n_tokens
    return n_state + len(asked.question.prompt)
