"""A model of any family but RWKV-7: an embedding, blocks, a norm and a head.

One forward pass serves prompts and decode, on a CPU and on a GPU; a decode step of a GPU is the
same pass over buffers that stay where they are.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding

from wkvm.core.layout import GUEST_PAGES, GUEST_TABLE, StateLayout
from wkvm.kernels.rows import Rows
from wkvm.models.base import Batch, HiddenSink, ModelInfo, StateViews
from wkvm.models.blueprint import Network
from wkvm.models.parts.residual import Pending, Residual
from wkvm.models.parts.step import Step

PAD = -1
"""The slot of a row that is none."""


class Decoder:
    """A loaded model. See ``wkvm.models.base.Model``."""

    def __init__(self, info: ModelInfo, layout: StateLayout, network: Network) -> None:
        self._info = info
        self._layout = layout
        self._network = network
        self._logits = torch.empty(0, info.vocab_size, device=info.device)

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
        return self.run(batch.token_ids, rows, states, batch.logit_rows, hidden=batch.hidden)

    def run(
        self,
        token_ids: Tensor,
        rows: Rows,
        states: StateViews,
        logit_rows: Tensor | None = None,
        out: Tensor | None = None,
        hidden: HiddenSink | None = None,
    ) -> Tensor:
        """As ``forward``; without ``logit_rows`` all tokens get logits. ``out`` takes them."""
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
        if hidden is not None:
            hidden.take(stream.settled(), network.norm)
        if logit_rows is None:
            normed = network.norm.after(*stream)[1]
        else:
            normed = network.norm(stream.settled().index_select(0, logit_rows))
        logits = network.head(normed, out)
        return logits if network.logit_scale == 1.0 else logits.mul_(network.logit_scale)

    def decode_step(self, n_rows: int, *, apart: bool = False) -> "DecoderStep | None":
        """See ``Model.decode_step``.

        Shared logits are made for the largest step asked for: ask for that one first.
        """
        if self._info.device == "cpu":
            return None
        if apart or len(self._logits) < n_rows:
            logits = torch.empty(n_rows, self._info.vocab_size, device=self._info.device)
            if not apart:
                self._logits = logits
        else:
            logits = self._logits[:n_rows]
        return DecoderStep(self, logits)

    @torch.inference_mode()
    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """See ``Model.workspace_bytes``. On a GPU it is measured: a prompt of a pad row is run."""
        device = self._info.device
        if device == "cpu":
            return 0
        rows = Rows(torch.full((1,), PAD, dtype=torch.int32, device=device), (PAD,), (n_tokens,))
        token_ids = torch.zeros(n_tokens, dtype=torch.int64, device=device)
        wanted = torch.arange(n_logit_rows, device=device) % n_tokens
        states = self._one_state()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.run(token_ids, rows, states, wanted)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def _one_state(self) -> dict[str, Tensor]:
        """The views of an arena of one slot with one page."""
        layout, device = self._layout, self._info.device
        states = {
            spec.name: torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype), device=device)
            for spec in layout.tensors
        }
        if (guest := layout.guest) is not None:
            dtype = getattr(torch, guest.dtype)
            states[GUEST_PAGES] = torch.zeros(1, *guest.page_shape, dtype=dtype, device=device)
            states[GUEST_TABLE] = torch.full((1, 1), PAD, dtype=torch.int32, device=device)
        return states

    def capture_prompts(self, states: StateViews) -> None:
        """Nothing is captured."""

    def prompt_graph_bytes(self) -> int:
        """Zero."""
        return 0


class DecoderStep:
    """See ``wkvm.models.base.DecodeStep``."""

    def __init__(self, model: Decoder, logits: Tensor) -> None:
        """``logits``: ``[B, V]`` float32, which the step overwrites."""
        self._model = model
        self.n_rows = n_rows = len(logits)
        self.plan = n_rows  # by which kernels choose how they are cut
        self.token_ids = torch.zeros(n_rows, dtype=torch.int64, device=logits.device)
        self.slots = torch.full((n_rows,), PAD, dtype=torch.int32, device=logits.device)
        self.logits = logits

    def launch(self, states: StateViews) -> None:
        """See ``wkvm.models.base.DecodeStep.launch``."""
        self._model.run(self.token_ids, Rows.of_decode(self.slots), states, out=self.logits)
