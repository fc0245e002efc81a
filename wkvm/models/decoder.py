"""A model of any family but RWKV-7: an embedding, blocks, a norm and a head.

One forward pass serves prompts and decode, on a CPU and on a GPU; a decode step of a GPU is the
same pass over buffers that stay where they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from wkvm.core.layout import StateLayout
from wkvm.kernels.rows import Rows
from wkvm.models.base import Batch, ModelInfo, StateViews
from wkvm.models.blueprint import Network
from wkvm.models.parts.residual import Pending, Residual
from wkvm.models.parts.step import Step


class Decoder:
    """A loaded model. See ``wkvm.models.base.Model``."""

    def __init__(self, info: ModelInfo, layout: StateLayout, network: Network) -> None:
        self._info = info
        self._layout = layout
        self._network = network

    @property
    def info(self) -> ModelInfo:
        """What it is."""
        return self._info

    @property
    def layout(self) -> StateLayout:
        """The record of one state. The zero record is the empty sequence."""
        return self._layout

    @torch.inference_mode()
    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        """Absorb each row's tokens into its state, in place. See ``Model.forward``."""
        rows = Rows(batch.slots, batch.slot_list, batch.lengths)
        return self.run(batch.token_ids, rows, states, batch.logit_rows)

    def run(
        self, token_ids: Tensor, rows: Rows, states: StateViews, logit_rows: Tensor | None = None
    ) -> Tensor:
        """As ``forward``; without ``logit_rows`` every token gets its logits."""
        network, step = self._network, Step(rows, states)
        x = embedding(token_ids, network.table).to(network.stream_dtype)
        if network.embedding_scale != 1.0:
            x = x * network.embedding_scale
        stream = Pending(x)
        for block in network.blocks:
            if isinstance(block, Residual):
                stream = block.go_on(stream, step)
            else:
                stream = Pending(block(stream.settled(), step))
        if self._layout.guest is not None:
            step.advance()
        if logit_rows is None:
            normed = network.norm.after(*stream)[1]
        else:
            normed = network.norm(stream.settled().index_select(0, logit_rows))
        logits = network.head(normed).float()
        return logits if network.logit_scale == 1.0 else logits * network.logit_scale

    def decode_step(self, n_rows: int, *, apart: bool = False) -> "DecoderStep | None":
        """See ``Model.decode_step``. Each step has its own buffers, which are small."""
        if self._info.device == "cpu":
            return None
        return DecoderStep(self, n_rows)

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """Zero on a CPU: it is not counted."""
        return 0

    def capture_prompts(self, states: StateViews) -> None:
        """Nothing is captured."""

    def prompt_graph_bytes(self) -> int:
        """Zero."""
        return 0


@dataclass(frozen=True)
class Plan:
    """Which kernels a step launches: some are chosen by the number of rows."""

    n_rows: int


class DecoderStep:
    """See ``wkvm.models.base.DecodeStep``."""

    def __init__(self, model: Decoder, n_rows: int) -> None:
        device = model.info.device
        self._model = model
        self.n_rows = n_rows
        self.plan = Plan(n_rows)
        self.token_ids = torch.zeros(n_rows, dtype=torch.int64, device=device)
        self.slots = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
        self.logits = torch.zeros(n_rows, model.info.vocab_size, device=device)

    def launch(self, states: StateViews) -> None:
        """See ``wkvm.models.base.DecodeStep.launch``."""
        self.logits.copy_(self._model.run(self.token_ids, Rows.of_decode(self.slots), states))
