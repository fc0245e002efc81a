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
