"""A step row by row, in pieces: what comes of a row is then a function of that row, to the bit.

The order in which a matrix product or a reduction adds up may depend on how many rows it has. Here
every forward pass has one row, and its tokens are those between two multiples of ``CUT_MULTIPLE``
from the start of the prompt: the same ones however the prompt was cut and whoever else runs.
"""

from collections.abc import Callable, Iterator

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.errors import RequestError
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.request import Logprobs


def pieces(row: RowPlan) -> Iterator[RowPlan]:
    """The rows of at most ``CUT_MULTIPLE`` tokens that together are a row, in order.

    ``row`` begins at such a multiple, as the scheduler cuts prompts, or has one id.
    """
    ids = row.ids
    wants_next = row.params.prompt_logprobs is not None
    for start in range(0, len(ids), CUT_MULTIPLE):
        end = start + CUT_MULTIPLE
        if end >= len(ids):
            yield row._replace(
                ids=ids[start:],
                position=row.position + start,
                fresh=row.fresh and not start,
                entry=None if start else row.entry,
            )
        else:
            yield row._replace(
                ids=ids[start:end],
                position=row.position + start,
                fresh=row.fresh and not start,
                entry=None if start else row.entry,
                samples=False,
                next_id=ids[end] if wants_next else None,
                banned_ids=(),
            )


def run_alone(plan: StepPlan, run: Callable[[StepPlan], StepResult]) -> StepResult:
    """Run every piece of every row as a plan of its own, with ``run``.

    Returns:
        The result of ``plan``.
    """
    token_ids, not_finite, complete = list[int | None](), set[int](), set[int]()
    logprobs, prompt_logprobs = dict[int, Logprobs](), dict[int, tuple[Logprobs, ...]]()
    unmet, pooled = dict[int, RequestError](), dict[int, tuple[bytes, ...]]()
    for index, row in enumerate(plan.rows):
        scored, result = list[Logprobs](), StepResult((None,))
        for piece in pieces(row):
            result = run(StepPlan((piece,)))
            if result.not_finite:
                not_finite.add(index)
                scored.clear()
                pooled.pop(index, None)
                break
            scored += result.prompt_logprobs.get(0, ())
            if result.pooled:
                pooled[index] = (*pooled.get(index, ()), *result.pooled[0])
        token_ids += result.token_ids
        if scored:
            prompt_logprobs[index] = tuple(scored)
        if result.complete:
            complete.add(index)
        logprobs.update((index, of_row) for of_row in result.logprobs.values())
        unmet.update((index, error) for error in result.unmet.values())
    return StepResult(
        token_ids=tuple(token_ids),
        not_finite=frozenset(not_finite),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        pooled=pooled,
        complete=frozenset(complete),
        unmet=unmet,
    )
