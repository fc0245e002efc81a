"""One decode step of RWKV-7 in float64 torch, all rows at once; for shapes too wide for numpy."""

from collections.abc import Mapping

import torch
from torch import Tensor

from wkvm.models.rwkv7 import ATT_SHIFT, FFN_SHIFT, WKV
from wkvm.models.rwkv7_params import Rwkv7Shape

States = dict[str, Tensor]


def relative(value: Tensor, exact: Tensor) -> float:
    """Norm of the error over norm of the exact value; infinite if anything is not a number."""
    exact = exact.double()
    error = float((value.double().to(exact.device) - exact).norm() / exact.norm())
    return error if error == error else float("inf")


class Float64Step:
    """A model, and the states ``[B, L, ...]`` of its rows."""

    def __init__(
        self, shape: Rwkv7Shape, parameters: Mapping[str, Tensor], table: Tensor, states: States
    ) -> None:
        """``table`` is the embedding after the first norm, where both sides begin."""
        self._shape = shape
        self._w = {name: tensor.double() for name, tensor in parameters.items()}
        self._table = table.double()
        self.states = {name: tensor.double() for name, tensor in states.items()}

    def __call__(self, token_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """The residual before each layer and after the last, and the logits."""
        x = self._table[token_ids]
        residuals = [x]
        v_first: Tensor | None = None
        for index in range(self._shape.n_layers):
            y, v_first = self._time_mix(index, x, v_first)
            x = x + y
            x = x + self._channel_mix(index, x)
            residuals.append(x)
        head = self._w["emb.weight" if self._shape.tied else "head.weight"]
        return residuals, self._norm(x, "ln_out") @ head.t()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self._shape.layer_norm_eps).sqrt()
        return x * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]

    def _time_mix(self, index: int, x: Tensor, v_first: Tensor | None) -> tuple[Tensor, Tensor]:
        prefix = f"blocks.{index}."
        w = {
            name.removeprefix(prefix + "att."): tensor
            for name, tensor in self._w.items()
            if name.startswith(prefix + "att.")
        }
        heads = (-1, self._shape.n_heads, self._shape.head_size)
        u = self._norm(x, prefix + "ln1")
        shift = self.states[ATT_SHIFT][:, index]
        xr, xw, xk, xv, xa, xg = (u + (shift - u) * mix for mix in w["x"])
        self.states[ATT_SHIFT][:, index] = u
        r, k, v = (
            xr @ w["receptance.weight"].t(),
            xk @ w["key.weight"].t(),
            xv @ w["value.weight"].t(),
        )
        decay = torch.exp(
            -(torch.tensor(-0.5).double().exp())
            * torch.sigmoid(w["w0"].flatten() + torch.tanh(xw @ w["w1"]) @ w["w2"])
        )
        a = torch.sigmoid(w["a0"].flatten() + (xa @ w["a1"]) @ w["a2"])
        g = torch.sigmoid(xg @ w["g1"]) @ w["g2"]
        kap = (k * w["k_k"].flatten()).view(heads)
        kap = kap / kap.norm(dim=-1, keepdim=True)
        k = k * (1 + (a - 1) * w["k_a"].flatten())
        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(w["v0"].flatten() + (xv @ w["v1"]) @ w["v2"])
        r, decay, k, v_heads, a = (t.view(heads) for t in (r, decay, k, v, a))
        S = self.states[WKV][:, index]
        removed = torch.einsum("bhkv,bhk->bhv", S, kap)
        S = (
            decay[..., None] * S
            - (kap * a)[..., None] * removed[..., None, :]
            + k[..., None] * v_heads[..., None, :]
        )
        self.states[WKV][:, index] = S
        y = torch.einsum("bhkv,bhk->bhv", S, r)
        y = y - y.mean(-1, keepdim=True)
        y = y / (y.square().mean(-1, keepdim=True) + self._shape.group_norm_eps).sqrt()
        y = y.flatten(1) * w["ln_x.weight"] + w["ln_x.bias"]
        bonus = (r * k * w["r_k"].view(heads[1:])).sum(-1, keepdim=True) * v_heads
        return ((y + bonus.flatten(1)) * g) @ w["output.weight"].t(), v_first

    def _channel_mix(self, index: int, x: Tensor) -> Tensor:
        prefix = f"blocks.{index}."
        u = self._norm(x, prefix + "ln2")
        shift = self.states[FFN_SHIFT][:, index]
        mixed = u + (shift - u) * self._w[prefix + "ffn.x_k"].flatten()
        self.states[FFN_SHIFT][:, index] = u
        hidden = torch.relu(mixed @ self._w[prefix + "ffn.key.weight"].t()).square()
        return hidden @ self._w[prefix + "ffn.value.weight"].t()
