"""Times of what is replayed on a GPU, and of a copy beside it."""

from collections.abc import Callable
from statistics import median

import torch


def milliseconds(replay: Callable[[], object], n: int, n_groups: int = 9) -> list[float]:
    """Of one replay: medians are over groups of ``n`` replays back to back."""
    for _ in range(3):
        replay()
    times = []
    for _ in range(n_groups):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(n):
            replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / n)
    return times


def graph_of(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Warmed up, then captured."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


def copy_bandwidth() -> float:
    """Bytes per second of a large copy, read and written bytes together."""
    a = torch.randint(0, 127, (2 << 30,), dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    ms = median(milliseconds(lambda: b.copy_(a), 5))
    return 2 * a.numel() / ms * 1e3
