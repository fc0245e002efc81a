"""Short prompts and small pieces of prompts on a GPU, replayed from a graph.

Up to about 2,000 tokens are absorbed in less time than a host takes to launch the kernels one by
one.
"""

import torch
from torch import Tensor

from wkvm.kernels.rwkv7_prefill import Tables, n_chunks_of
from wkvm.kernels.streams import stream_beside_graphs
from wkvm.models.base import Batch, StateViews
from wkvm.models.rwkv7_packed import Rwkv7Decode
from wkvm.models.rwkv7_prefill import Buffers, Prefill, buffer_bytes

STEP_TOKENS = (64, 128, 256, 320, 448, 512, 1024, 2048)
"""Tokens of the captured steps. A batch of prompts is absorbed by the smallest that it fits."""

STEP_ROWS = 16
"""Rows of a captured step."""


class PrefillStep:
    """Launches that absorb up to ``n_tokens`` tokens of up to ``STEP_ROWS`` rows.

    Args:
        model: the weights.
        prefill: of the model.
        n_tokens: a multiple of 64.
        memory: ``[step_bytes]`` uint8, which steps share that do not run at once.

    Attributes:
        residual: ``[n_tokens, C]`` float32, after the last layer.
    """

    def __init__(
        self,
        model: Rwkv7Decode,
        prefill: Prefill,
        n_tokens: int,
        memory: Tensor,
    ) -> None:
        self.n_tokens = n_tokens
        self._prefill = prefill
        n_chunks = n_tokens // prefill.chunk + STEP_ROWS
        self._buffers = Buffers(model, n_tokens, n_chunks, memory)
        device = model.device
        self._token_ids = torch.zeros(n_tokens, dtype=torch.int64, device=device)
        self._tables = Tables.empty(STEP_ROWS, n_chunks, prefill.chunk, device)
        self.residual = self._buffers.x

    def fits(self, batch: Batch) -> bool:
        """Whether it can absorb ``batch``."""
        return (
            sum(batch.lengths) <= self.n_tokens
            and len(batch.lengths) <= STEP_ROWS
            and n_chunks_of(batch.lengths, self._prefill.chunk) <= len(self._tables.chunks)
        )

    def fill(self, batch: Batch) -> None:
        """Copy ``batch`` to where the launches look for it, without waiting for the device."""
        self._token_ids[: len(batch.token_ids)].copy_(batch.token_ids)
        self._tables.fill(batch.slot_list, batch.lengths)

    def launch(self, states: StateViews) -> None:
        """Absorb what ``fill`` was given, and make ``residual``."""
        self._prefill.absorb(self._token_ids, self._tables, states, self._buffers)


def step_bytes(model: Rwkv7Decode, prefill: Prefill) -> int:
    """The memory that captured steps share."""
    n_tokens = STEP_TOKENS[-1]
    return buffer_bytes(model, n_tokens, n_tokens // prefill.chunk + STEP_ROWS)


class PrefillGraphs:
    """Captured steps over one arena."""

    def __init__(self, model: Rwkv7Decode, prefill: Prefill, states: StateViews) -> None:
        """Capture all of them; takes seconds where the kernels are not compiled yet.

        States are neither read nor written.
        """
        self.states = states
        self._prefill = prefill
        memory = torch.empty(step_bytes(model, prefill), dtype=torch.uint8, device=model.device)
        self._steps = [PrefillStep(model, prefill, n, memory) for n in STEP_TOKENS]
        self._graphs = list[torch.cuda.CUDAGraph]()
        # The library's workspace belongs to the stream of a capture. With one of their own these
        # graphs may be replayed beside those of decode steps.
        stream = stream_beside_graphs()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for step in self._steps:
                step.launch(states)
        torch.cuda.current_stream().wait_stream(stream)
        pool = None
        for step in self._steps:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                step.launch(states)
            pool = graph.pool()
            self._graphs.append(graph)

    def forward(self, batch: Batch) -> Tensor | None:
        """See ``Model.forward``; None if ``batch`` fits no step."""
        for step, graph in zip(self._steps, self._graphs, strict=True):
            if step.fits(batch):
                step.fill(batch)
                graph.replay()
                if batch.hidden is not None:
                    n_tokens = len(batch.token_ids)
                    batch.hidden.take(step.residual[:n_tokens], self._prefill.normed)
                return self._prefill.logits(step.residual.index_select(0, batch.logit_rows))
        return None
