"""Streams whose library calls may run beside those of captured graphs."""

import torch


def stream_beside_graphs() -> torch.cuda.Stream:
    """A stream that is not the one on which torch captures graphs.

    torch hands out the same few streams again and again. The library's workspace belongs to a
    stream, and that of the captured one is written by each replay of what was captured there.
    """
    if torch.cuda.graph.default_capture_stream is None:
        # As torch does at the first capture, which may come later and would be given ours. And
        # no stream is unequal to None.
        torch.cuda.graph.default_capture_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    while True:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        if stream != torch.cuda.graph.default_capture_stream:
            return stream
