"""RWKV-7 on a GPU: one set of packed weights for prompts and for decode steps."""

import torch
from torch import Tensor

from wkvm.core.layout import DEFAULT_STATE, StateLayout, StateOptions
from wkvm.kernels.rwkv7_decode import fold
from wkvm.models.base import Batch, ModelInfo, StateViews
from wkvm.models.rwkv7 import RING, RING_FILL, WKV, layout_of
from wkvm.models.rwkv7_buffers import step_bytes
from wkvm.models.rwkv7_decode import DecodeStep
from wkvm.models.rwkv7_packed import Rwkv7Decode
from wkvm.models.rwkv7_prefill import Prefill
from wkvm.models.rwkv7_prefill_step import PrefillGraphs
from wkvm.models.rwkv7_prefill_step import step_bytes as prefill_step_bytes


class Rwkv7Gpu:
    """A loaded RWKV-7 model. See ``wkvm.models.base.Model``."""

    def __init__(
        self,
        info: ModelInfo,
        weights: Rwkv7Decode,
        *,
        state: StateOptions = DEFAULT_STATE,
        chunk: int | None = None,
    ) -> None:
        """``chunk``: tokens of a chunk of prompts, 16 or 64; None: what the dtype asks for."""
        self._info = info
        self._layout = layout_of(weights.shape, info.dtype, state)
        self._weights = weights
        self._prefill = Prefill(weights, chunk=chunk)
        self._graphs: PrefillGraphs | None = None
        self._memory = torch.empty(0, dtype=torch.uint8, device=self._weights.device)

    @property
    def info(self) -> ModelInfo:
        """What it is."""
        return self._info

    @property
    def layout(self) -> StateLayout:
        """The record of one state. The zero record is the empty sequence."""
        return self._layout

    @property
    def embedding_table(self) -> Tensor:
        """``[V, C]``: the embedding after the first norm."""
        return self._weights.table

    @property
    def fold_vectors(self) -> Tensor:
        """``[L, 8, C]`` float32, in host memory: what takes a ring into a state."""
        return self._weights.vectors.cpu()

    @torch.inference_mode()
    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        """Absorb each row's tokens into its state, in place. See ``Model.forward``.

        Returns before the device is done.
        """
        if RING in states:
            fold(
                states[WKV],
                states[RING],
                states[RING_FILL],
                self._weights.vectors,
                batch.slots,
            )
        if self._graphs is not None and states is self._graphs.states:
            logits = self._graphs.forward(batch)
            if logits is not None:
                return logits
        return self._prefill(batch, states)

    @torch.inference_mode()
    def capture_prompts(self, states: StateViews) -> None:
        """See ``Model.capture_prompts``."""
        self._graphs = PrefillGraphs(self._weights, self._prefill, states)

    def prompt_graph_bytes(self) -> int:
        """See ``Model.prompt_graph_bytes``."""
        return prefill_step_bytes(self._weights, self._prefill)

    def decode_step(self, n_rows: int, *, apart: bool = False) -> DecodeStep:
        """See ``Model.decode_step``.

        Shared memory is made for the largest step asked for: ask for that one first.
        """
        if apart:
            return DecodeStep(self._weights, n_rows)
        n_bytes = step_bytes(self._weights, n_rows)
        if self._memory.numel() < n_bytes:
            device = self._weights.device
            self._memory = torch.empty(n_bytes, dtype=torch.uint8, device=device)
        return DecodeStep(self._weights, n_rows, memory=self._memory)

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """See ``Model.workspace_bytes``."""
        return self._prefill.workspace_bytes(n_tokens, n_logit_rows)
