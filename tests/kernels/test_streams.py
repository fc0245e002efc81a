"""Streams beside captured graphs."""

import pytest
import torch

from wkvm.kernels.streams import stream_beside_graphs


def test_the_stream_of_captures_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, other = object(), object()
    streams = iter([capturing, other])
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", capturing)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: next(streams))
    assert stream_beside_graphs() is other


class FakeStream:
    """One of three streams in turn; as torch has it, one is neither equal nor unequal to None."""

    n_made = 0

    def __init__(self) -> None:
        assert FakeStream.n_made < 100, "none of them is the right one"
        self.number = FakeStream.n_made % 3
        FakeStream.n_made += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.number == self.number

    def __ne__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.number != self.number

    def __hash__(self) -> int:
        return self.number


def test_before_the_first_capture_its_stream_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStream, "n_made", 0)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", None)
    for _ in range(4):
        assert stream_beside_graphs() != torch.cuda.graph.default_capture_stream
