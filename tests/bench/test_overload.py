"""What is told of requests that failed while a server was asked for too much."""

from wkvm_bench.figures import Streamed
from wkvm_bench.harness import Comparison
from wkvm_bench.overload import LOADS, MANY, SHARES, Phase, _results

REFUSED, LATE = "HTTP 429 (full)", "error: server_error, timeout"


def phase(*errors: str | None) -> Phase:
    """A load under which requests of one tenant ended so."""
    sent = {who: list[Streamed]() for who in SHARES}
    sent[MANY] = [Streamed(due_at=0.0, ended_at=0.5, n_ids=8, error=why) for why in errors]
    return Phase(began_at=0.0, ended_at=1.0, timeout_s=1.0, sent=sent)


def test_failures_of_all_rounds_count_and_refusals_are_none() -> None:
    rounds = [phase(None, LATE, REFUSED), phase(None, LATE, LATE, "timeout"), phase(None)]
    found = _results("HTTP", dict.fromkeys(LOADS, rounds), [1.0, 1.0, 1.0])
    told = {one.case: one.besides for one in found if isinstance(one, Comparison)}
    assert list(told) == ["HTTP, at 2 times the capacity", "HTTP, at 4 times the capacity"]
    for besides in told.values():
        assert (besides["requests"], besides["refused"]) == (8, 1)
        failed = {why: n for why, n in besides.items() if why.startswith("failed, ")}
        assert failed == {f"failed, {LATE}": 3, "failed, timeout": 1}
