"""How long a request took, for its own answer."""

from collections.abc import Sequence

import msgspec

from wkvm.gateway.streams.pieces import ChoiceText


class RequestMetrics(msgspec.Struct):
    """Milliseconds, over all choices of a request; vLLM's names. Null is what never was.

    Attributes:
        queue_time_ms: from arrival to the first slot; null too if a stop string ended all choices,
            of which the engine tells no times.
        time_to_first_token_ms: to the first id of any choice.
        mean_itl_ms: between two ids of a choice, at the mean.
        e2e_latency_ms: to the end of the last.
    """

    queue_time_ms: float | None
    time_to_first_token_ms: float | None
    mean_itl_ms: float | None
    e2e_latency_ms: float


def metrics_of(texts: Sequence[ChoiceText]) -> RequestMetrics:
    """The times of choices that have ended and were read with a clock."""
    times = [text.times() for text in texts]
    queues = [one.queue_s for one in times if one.queue_s is not None]
    firsts = [one.first_s for one in times if one.first_s is not None]
    gaps = [
        (one.total_s - one.first_s, text.n_output - 1)
        for one, text in zip(times, texts, strict=True)
        if one.first_s is not None and text.n_output > 1
    ]
    n_gaps = sum(n for _, n in gaps)
    return RequestMetrics(
        min(queues) * 1e3 if queues else None,
        min(firsts) * 1e3 if firsts else None,
        sum(seconds for seconds, _ in gaps) / n_gaps * 1e3 if n_gaps else None,
        max(one.total_s for one in times) * 1e3,
    )
