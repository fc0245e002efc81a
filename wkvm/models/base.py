"""What the engine asks of a model: a state layout, and a forward pass over packed rows."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from wkvm.core.layout import StateLayout

StateViews = Mapping[str, Tensor]
"""By tensor name of the layout: ``[N, *shape]``, a view into the arena. Its first stride is
the slot's record; within a slot it is contiguous. Kernels read and write it in place."""


class HiddenSink(Protocol):
    """Takes hidden states of a forward pass beside its logits."""

    def take(self, residual: Tensor, norm: Callable[[Tensor], Tensor], first: int = 0) -> None:
        """Take those of the packed tokens from ``first`` on; launches work, waits for nothing.

        Args:
            residual: ``[T', C]``, after the last block, one row a token; may be overwritten later.
            norm: makes of some of its rows what the head is given: ``[R, C]`` of ``[R, C]``.
            first: which of the packed tokens the first row is of.
        """
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, packed one after the other.

    Attributes:
        token_ids: ``[T]`` int64 on the model's device, T the sum of ``lengths``.
        slots: ``[B]`` int32 on the model's device; negative for a pad row.
        lengths: tokens of each row, at least 1; on the host.
        slot_list: ``slots``, on the host.
        logit_rows: ``[R]`` int64 on the model's device: which of the T tokens need logits.
        hidden: takes the hidden states of all tokens, in one call or several; None if nobody wants
            any.
    """

    token_ids: Tensor
    slots: Tensor
    lengths: tuple[int, ...]
    slot_list: tuple[int, ...]
    logit_rows: Tensor
    hidden: HiddenSink | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is.

    Attributes:
        name: of the architecture, such as ``rwkv7``.
        vocab_size: ids are in ``[0, vocab_size)``.
        n_layers, width, n_heads, head_size: its shape.
        n_parameters: elements of all weights.
        weight_bytes: of all parameters as they are held; a CPU's packed copies are not counted.
        dtype: of weights and activations, such as ``bfloat16``.
        device: ``cpu`` or ``cuda``.
        digest: hex SHA-256 over the checkpoint's weight files.
        eos_ids: ids that end a turn, from the checkpoint's generation settings.
    """

    name: str
    vocab_size: int
    n_layers: int
    width: int
    n_heads: int
    head_size: int
    n_parameters: int
    weight_bytes: int
    dtype: str
    device: str
    digest: str
    eos_ids: tuple[int, ...]


class DecodeStep(Protocol):
    """One step of ``n_rows`` rows of one token, over buffers that stay where they are.

    A launch takes no decision by what the buffers hold, so it can be captured in a graph. The
    graph knows the step's tensors by their addresses: keep the step for as long.
    """

    @property
    def n_rows(self) -> int:
        """B, pad rows included."""
        ...

    @property
    def plan(self) -> Hashable:
        """Which kernels a launch is made of: equal for steps that launch the same ones."""
        ...

    @property
    def token_ids(self) -> Tensor:
        """``[B]`` int64, input."""
        ...

    @property
    def slots(self) -> Tensor:
        """``[B]`` int32, input: distinct where not negative; negative for a pad row."""
        ...

    @property
    def logits(self) -> Tensor:
        """``[B, V]`` float32, output. Those of pad rows mean nothing."""
        ...

    def launch(self, states: StateViews) -> None:
        """Absorb ``token_ids`` into the states of ``slots``, in place, and make ``logits``.

        Returns before the device is done. States of other slots are neither read nor written.
        """
        ...


class Model(Protocol):
    """A loaded model. Stateless between calls: all memory of a sequence is in the arena."""

    @property
    def info(self) -> ModelInfo:
        """What it is."""
        ...

    @property
    def layout(self) -> StateLayout:
        """The record of one state. The zero record is the empty sequence."""
        ...

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        """Absorb each row's tokens into its state, in place.

        States of slots that ``batch`` does not name are neither read nor written.

        Returns:
            ``[R, V]`` float32: the logits after the tokens at ``batch.logit_rows``.
        """
        ...

    def decode_step(self, n_rows: int, *, apart: bool = False) -> DecodeStep | None:
        """Buffers and launches of a step of ``n_rows`` rows of one token each.

        The buffers are shared with all other steps, unless it is to be ``apart``.
        None where nothing can be captured, as on a CPU: there ``forward`` does it all.
        """
        ...

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """Most device memory that a ``forward`` of that many tokens takes beside the weights.

        The logits it returns are part of it. Zero on a CPU, where nobody counts it.
        """
        ...

    def capture_prompts(self, states: StateViews) -> None:
        """Have short prompts, and pieces, over ``states`` replayed from graphs by ``forward``.

        Takes seconds where kernels are not compiled yet. States are neither read nor written. Does
        nothing on a CPU.
        """
        ...

    def prompt_graph_bytes(self) -> int:
        """Device memory that ``capture_prompts`` keeps, the graphs themselves aside."""
        ...
