"""RWKV-7 ("x070"): the forward pass over packed rows.

The formulas are those of the RNN form in Peng et al., "RWKV-7 Goose", arXiv:2503.14456. All rows
of a step share the matrix products; only token shift and recurrence know where a row begins.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from wkvm.core.layout import DEFAULT_STATE, StateLayout, StateOptions, TensorSpec
from wkvm.kernels import cpu
from wkvm.kernels.linear import Linear, linear
from wkvm.kernels.rows import Rows
from wkvm.models.base import Batch, Model, ModelInfo, StateViews
from wkvm.models.rwkv7_params import Rwkv7Shape, load_parameters, weight_bytes
from wkvm.models.weights import Checkpoint

WKV, ATT_SHIFT, FFN_SHIFT = "rwkv7.wkv", "rwkv7.att_shift", "rwkv7.ffn_shift"
RING, RING_FILL = "rwkv7.ring", "rwkv7.ring_fill"

RING_LENGTH = 8
"""With deferred writes: tokens between two writes of a state."""

LOG_DECAY = -exp(-0.5)
"""The lowest log decay: a decay is exp of this times a sigmoid."""


def layout_of(shape: Rwkv7Shape, dtype: str, state: StateOptions = DEFAULT_STATE) -> StateLayout:
    """The record of one state.

    ``wkv`` is ``[key, value]``, the transpose of BlinkDL's. The shifts hold the last output of a
    layer norm, which has the model's ``dtype`` anyway. With deferred writes there is a ring
    for each layer and head: of k, w, a and v of the tokens that are not in ``wkv`` yet, as the
    products gave them, oldest first; and how many they are.
    """
    L, C, H, N = shape.n_layers, shape.width, shape.n_heads, shape.head_size
    tensors = [
        TensorSpec(WKV, (L, H, N, N), state.dtype),
        TensorSpec(ATT_SHIFT, (L, C), dtype),
        TensorSpec(FFN_SHIFT, (L, C), dtype),
    ]
    if state.deferred:
        tensors.append(TensorSpec(RING, (L, H, RING_LENGTH - 1, 4, N), dtype))
        tensors.append(TensorSpec(RING_FILL, (1,), "int32"))
    return StateLayout(tuple(tensors))


@dataclass(frozen=True, slots=True)
class _Layer:
    """The parameters of one layer, named as in the formulas; matrices are ``[in, out]``."""

    ln1: tuple[Tensor, Tensor]
    mixes: Tensor
    receptance: Linear
    key: Linear
    value: Linear
    output: Linear
    w: tuple[Linear, Linear]
    a: tuple[Linear, Linear]
    v: tuple[Linear, Linear] | None
    g: tuple[Linear, Linear]
    k_k: Tensor
    k_a: Tensor
    one_minus_k_a: Tensor
    r_k: Tensor
    ln_x: tuple[Tensor, Tensor]
    ln2: tuple[Tensor, Tensor]
    ffn_mix: Tensor
    ffn_key: Linear
    ffn_value: Linear


class Rwkv7:
    """A loaded RWKV-7 model on a CPU. See ``wkvm.models.base.Model``."""

    def __init__(
        self,
        info: ModelInfo,
        shape: Rwkv7Shape,
        parameters: dict[str, Tensor],
        *,
        state: StateOptions = DEFAULT_STATE,
    ) -> None:
        """``parameters`` as ``load_parameters`` yields them, in one dtype."""
        self._info = info
        self._layout = layout_of(shape, info.dtype, state)
        self._shape = shape
        norm = (parameters["blocks.0.ln0.weight"], parameters["blocks.0.ln0.bias"])
        # The first norm sees one token at a time, so it is done once for the whole vocabulary.
        self._table = layer_norm(
            parameters["emb.weight"], (shape.width,), *norm, shape.layer_norm_eps
        )
        head = parameters["emb.weight" if shape.tied else "head.weight"]
        self._head = linear(head)
        self._ln_out = (parameters["ln_out.weight"], parameters["ln_out.bias"])
        self._layers = tuple(_layer(parameters, shape, index) for index in range(shape.n_layers))

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
        wkv, att, ffn = (states[name].unbind(1) for name in (WKV, ATT_SHIFT, FFN_SHIFT))
        x = embedding(batch.token_ids, self._table)
        v_first: Tensor | None = None
        for index, layer in enumerate(self._layers):
            x, v_first = self._time_mix(layer, x, v_first, att[index], wkv[index], rows)
            x = self._channel_mix(layer, x, ffn[index], rows)
        if batch.hidden is not None:
            batch.hidden.take(x, lambda some: self._norm(some, self._ln_out))
        x = self._norm(x.index_select(0, batch.logit_rows), self._ln_out)
        return self._head(x).float()

    def decode_step(self, n_rows: int, *, apart: bool = False) -> None:
        """None: nothing is captured."""

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """Zero: it is not counted."""
        return 0

    def capture_prompts(self, states: StateViews) -> None:
        """Nothing is captured."""

    def prompt_graph_bytes(self) -> int:
        """Zero."""
        return 0

    def _norm(self, x: Tensor, affine: tuple[Tensor, Tensor]) -> Tensor:
        return layer_norm(x, (self._shape.width,), *affine, self._shape.layer_norm_eps)

    def _time_mix(
        self,
        layer: _Layer,
        x: Tensor,
        v_first: Tensor | None,
        shift: Tensor,
        wkv: Tensor,
        rows: Rows,
    ) -> tuple[Tensor, Tensor]:
        by_head = (-1, self._shape.n_heads, self._shape.head_size)
        u = self._norm(x, layer.ln1)
        delta = cpu.token_shift(u, shift, rows)
        xr, xw, xk, xv, xa, xg = torch.addcmul(u, delta, layer.mixes).unbind(0)
        r = layer.receptance(xr).float()
        k = layer.key(xk).float()
        v = layer.value(xv).float()
        w1, w2 = layer.w
        w = w2(w1(xw).tanh_()).float()
        w = w.sigmoid_().mul_(LOG_DECAY).exp_()
        a1, a2 = layer.a
        a = a2(a1(xa)).float().sigmoid_()
        g1, g2 = layer.g
        g = g2(g1(xg).sigmoid_())
        if v_first is None or layer.v is None:
            v_first = v
        else:
            v1, v2 = layer.v
            v = torch.lerp(v, v_first, v2(v1(xv)).float().sigmoid_())
        kap = (k * layer.k_k).view(by_head)
        kap /= torch.linalg.vector_norm(kap, dim=-1, keepdim=True).add_(1e-12)
        k *= torch.addcmul(layer.one_minus_k_a, a, layer.k_a)
        r, w, k, v_heads, a = (t.view(by_head) for t in (r, w, k, v, a))
        y = cpu.wkv7(r, w, k, v_heads, kap, a, wkv, rows)
        y = layer_norm(y, (self._shape.head_size,), None, None, self._shape.group_norm_eps)
        y = torch.addcmul(layer.ln_x[1], y, layer.ln_x[0])
        y = torch.addcmul(y, (r * k * layer.r_k).sum(2, keepdim=True), v_heads)
        y = y.view(x.shape).to(x.dtype).mul_(g)
        return layer.output(y).add_(x), v_first

    def _channel_mix(self, layer: _Layer, x: Tensor, shift: Tensor, rows: Rows) -> Tensor:
        u = self._norm(x, layer.ln2)
        delta = cpu.token_shift(u, shift, rows)
        hidden = layer.ffn_key(torch.addcmul(u, delta, layer.ffn_mix)).relu_()
        return layer.ffn_value(hidden.mul_(hidden)).add_(x)


def load(
    checkpoint: Checkpoint,
    shape: Rwkv7Shape,
    *,
    device: str,
    dtype: torch.dtype,
    eos_ids: tuple[int, ...],
    quantization: str = "none",
    deterministic: bool = False,
    state: StateOptions = DEFAULT_STATE,
) -> Model:
    """Read all weights, in ``dtype`` or as ``quantization`` says, onto ``device``.

    The files are read a second time for their digest, beside the first.

    Raises:
        CorruptCheckpointError: a file changed or ended while it was read.
    """
    with ThreadPoolExecutor(1, "wkvm-digest") as pool:
        digest = pool.submit(checkpoint.digest)
        parameters = (
            (name, tensor.to(dtype).contiguous())
            for name, tensor in load_parameters(checkpoint, shape, device)
        )
        if device == "cpu":
            info = _info(shape, dtype, quantization, device, digest.result(), eos_ids)
            return Rwkv7(info, shape, dict(parameters), state=state)
        # Only here: importing Triton takes seconds, and a CPU needs none of it.
        from wkvm.models.rwkv7_gpu import Rwkv7Gpu
        from wkvm.models.rwkv7_packed import Rwkv7Decode

        weights = Rwkv7Decode(
            shape, parameters, quantization=quantization, deterministic=deterministic
        )
        info = _info(shape, dtype, quantization, device, digest.result(), eos_ids)
        return Rwkv7Gpu(info, weights, state=state)


def _info(
    shape: Rwkv7Shape,
    dtype: torch.dtype,
    quantization: str,
    device: str,
    digest: str,
    eos_ids: tuple[int, ...],
) -> ModelInfo:
    return ModelInfo(
        name="rwkv7",
        vocab_size=shape.vocab_size,
        n_layers=shape.n_layers,
        width=shape.width,
        n_heads=shape.n_heads,
        head_size=shape.head_size,
        n_parameters=shape.n_parameters,
        weight_bytes=weight_bytes(shape, dtype.itemsize, quantization),
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        digest=digest,
        eos_ids=eos_ids,
    )


def _layer(parameters: dict[str, Tensor], shape: Rwkv7Shape, index: int) -> _Layer:
    prefix = f"blocks.{index}."
    heads = (shape.n_heads, shape.head_size)

    def get(name: str) -> Tensor:
        return parameters[prefix + name]

    def norm(name: str) -> tuple[Tensor, Tensor]:
        return get(f"{name}.weight"), get(f"{name}.bias")

    def low_rank(letter: str) -> tuple[Linear, Linear]:
        first, second = get(f"att.{letter}1").t(), get(f"att.{letter}2").t()
        return linear(first), linear(second, get(f"att.{letter}0"))

    k_a = get("att.k_a").float()
    return _Layer(
        ln1=norm("ln1"),
        mixes=get("att.x").unsqueeze(1),
        receptance=linear(get("att.receptance.weight")),
        key=linear(get("att.key.weight")),
        value=linear(get("att.value.weight")),
        output=linear(get("att.output.weight")),
        w=low_rank("w"),
        a=low_rank("a"),
        v=None if index == 0 else low_rank("v"),
        g=(linear(get("att.g1").t()), linear(get("att.g2").t())),
        k_k=get("att.k_k").float(),
        k_a=k_a,
        one_minus_k_a=1 - k_a,
        r_k=get("att.r_k").float(),
        ln_x=(
            get("att.ln_x.weight").float().view(heads),
            get("att.ln_x.bias").float().view(heads),
        ),
        ln2=norm("ln2"),
        ffn_mix=get("ffn.x_k"),
        ffn_key=linear(get("ffn.key.weight")),
        ffn_value=linear(get("ffn.value.weight")),
    )
