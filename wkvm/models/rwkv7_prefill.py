"""RWKV-7 on a GPU, packed rows of any lengths: how prompts are absorbed."""

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from wkvm.kernels import wkv7
from wkvm.kernels.dequantise import plain
from wkvm.kernels.rows import Rows
from wkvm.kernels.weight import Weight
from wkvm.models.base import Batch, StateViews
from wkvm.models.rwkv7 import ATT_SHIFT, FFN_SHIFT, LOG_DECAY, WKV
from wkvm.models.rwkv7_packed import PackedLayer, Rwkv7Decode


class Prefill:
    """The forward pass over packed rows, with the weights of ``model``."""

    def __init__(self, model: Rwkv7Decode) -> None:
        self._model = model
        self._shape = model.shape

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """See ``Model.workspace_bytes``."""
        shape = self._shape
        width, item_bytes = shape.width, self._model.dtype.itemsize
        per_token = width * (20 * item_bytes + 16 * 4) + 2 * shape.ffn_width * item_bytes
        per_logit_row = shape.vocab_size * (4 + item_bytes) + 2 * width * item_bytes
        return n_tokens * per_token + n_logit_rows * per_logit_row

    @torch.inference_mode()
    def __call__(self, batch: Batch, states: StateViews) -> Tensor:
        """See ``Model.forward``."""
        rows = Rows(batch.slots, batch.slot_list, batch.lengths)
        wkv, att, ffn = (states[name].unbind(1) for name in (WKV, ATT_SHIFT, FFN_SHIFT))
        x = embedding(batch.token_ids, self._model.table)
        v_first: Tensor | None = None
        for index, layer in enumerate(self._model.layers):
            x, v_first = self._time_mix(layer, x, v_first, att[index], wkv[index], rows)
            x = self._channel_mix(layer, x, ffn[index], rows)
        x = self._norm(x.index_select(0, batch.logit_rows), self._model.ln_out)
        return (x @ self._plain(self._model.head).t()).float()

    def _plain(self, weight: Weight) -> Tensor:
        return plain(weight, self._model.scratch)

    def _norm(self, x: Tensor, affine: tuple[Tensor, Tensor]) -> Tensor:
        return layer_norm(x, (self._shape.width,), *affine, self._shape.layer_norm_eps)

    def _low_rank(self, layer: PackedLayer, mixed: Tensor) -> list[Tensor]:
        """Outputs of the maps v, w, a, g in float32."""
        C = self._shape.width
        at_first, at_second, outs = 3 * C, 0, list[Tensor]()
        activations = (None, torch.tanh_, None, torch.sigmoid_)
        for x, rank, activation in zip(mixed[2:], self._model.ranks, activations, strict=True):
            hidden = x @ self._plain(layer.first.rows(at_first, at_first + rank)).t()
            if activation is not None:
                hidden = activation(hidden)
            second = layer.second[at_second : at_second + rank * C].view(C, rank)
            outs.append((hidden @ second.t()).float())
            at_first += rank
            at_second += rank * C
        return outs

    def _time_mix(
        self,
        layer: PackedLayer,
        x: Tensor,
        v_first: Tensor | None,
        shift: Tensor,
        wkv: Tensor,
        rows: Rows,
    ) -> tuple[Tensor, Tensor]:
        C = self._shape.width
        by_head = (-1, self._shape.n_heads, self._shape.head_size)
        w0, a0, v0, k_k, k_a, r_k, norm_weight, norm_bias = layer.vectors
        u = self._norm(x, layer.ln1)
        delta = wkv7.token_shift(u, shift, rows)
        mixed = torch.addcmul(u, delta, layer.mixes.unsqueeze(1))
        weights = self._plain(layer.first.rows(0, 3 * C)).view(3, C, C)
        r, k, v = torch.bmm(mixed[:3], weights.transpose(1, 2)).float()
        lerp, w, a, g = self._low_rank(layer, mixed)
        w = (w + w0).sigmoid_().mul_(LOG_DECAY).exp_()
        a = (a + a0).sigmoid_()
        if v_first is None:
            v_first = v
        else:
            v = torch.lerp(v, v_first, (lerp + v0).sigmoid_())
        kap = (k * k_k).view(by_head)
        kap /= torch.linalg.vector_norm(kap, dim=-1, keepdim=True).add_(1e-12)
        k = k * (1 + (a - 1) * k_a)
        r, w, k, v_heads, a = (t.view(by_head) for t in (r, w, k, v, a))
        y = wkv7.wkv7(r, w, k, v_heads, kap, a, wkv, rows)
        y = layer_norm(y, (self._shape.head_size,), None, None, self._shape.group_norm_eps)
        y = torch.addcmul(norm_bias.view(by_head), y, norm_weight.view(by_head))
        y = torch.addcmul(y, (r * k * r_k.view(by_head)).sum(2, keepdim=True), v_heads)
        y = (y.view(x.shape) * g).to(x.dtype)
        return (y @ self._plain(layer.output).t()).add_(x), v_first

    def _channel_mix(self, layer: PackedLayer, x: Tensor, shift: Tensor, rows: Rows) -> Tensor:
        u = self._norm(x, layer.ln2)
        delta = wkv7.token_shift(u, shift, rows)
        hidden = (torch.addcmul(u, delta, layer.ffn_mix) @ self._plain(layer.ffn_key).t()).relu_()
        return (hidden.mul_(hidden) @ self._plain(layer.ffn_value).t()).add_(x)
