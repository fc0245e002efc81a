"""What a trace says of a device that waits."""

from typing import Any

from wkvm_bench.gaps import Span, gaps_of, spans_of


def test_gaps_before_a_step_and_within_one_are_told_apart() -> None:
    spans = [
        Span("begin_kernel", 0, 2),
        Span("mix_kernel", 3, 10),
        Span("beside", 4, 12),
        Span("late", 15, 20),
        Span("begin_kernel", 27, 29),
        Span("mix_kernel", 29, 30),
    ]
    gaps = gaps_of(spans)
    assert gaps.n_steps == 2
    assert gaps.before == (7,)
    assert gaps.within == (0, 0, 1, 3)
    assert gaps.idle_percent == 100 * (1 + 3 + 7) / 30
    assert gaps.step_us == 27
    assert gaps.figures()["before a step, max, us"] == 7


def test_only_work_of_the_device_counts() -> None:
    events: list[dict[str, Any]] = [
        {"cat": "kernel", "name": "b", "ts": 5, "dur": 1},
        {"cat": "cpu_op", "name": "c", "ts": 1, "dur": 9},
        {"cat": "gpu_memcpy", "name": "a", "ts": 2, "dur": 2},
        {"name": "no category"},
    ]
    assert spans_of(events) == [Span("a", 2, 4), Span("b", 5, 6)]
