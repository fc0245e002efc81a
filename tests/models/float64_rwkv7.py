"""RWKV-7 in float64 numpy, one token at a time, written from the formulas and sharing no code."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[np.float64]

LAYER_NORM_EPS = 1e-5
GROUP_NORM_EPS = 64e-5
"""That of ``.pth`` files."""


class Float64Rwkv7:
    """A model under BlinkDL's names, and the state of one sequence."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._w: dict[str, Array] = {
            name: np.squeeze(tensor.double().numpy()) for name, tensor in weights.items()
        }
        self._n_layers = 1 + max(int(n.split(".")[1]) for n in weights if n.startswith("blocks."))
        n_heads, size = weights["blocks.0.att.r_k"].shape
        self._heads = (n_heads, size)
        width = n_heads * size
        self._att = np.zeros((self._n_layers, width))
        self._ffn = np.zeros((self._n_layers, width))
        self._wkv = np.zeros((self._n_layers, n_heads, size, size))
        """``[value, key]``."""

    def feed(self, ids: Iterable[int]) -> Array:
        """Absorb ids; the logits after the last."""
        logits = np.zeros(0)
        for token_id in ids:
            logits = self._token(token_id)
        return logits

    def _token(self, token_id: int) -> Array:
        x = self._norm(self._w["emb.weight"][token_id], "blocks.0.ln0")
        v_first = np.zeros(0)
        for layer in range(self._n_layers):
            u = self._norm(x, f"blocks.{layer}.ln1")
            y, v_first = self._time_mix(layer, u, v_first)
            x = x + y
            u = self._norm(x, f"blocks.{layer}.ln2")
            x = x + self._channel_mix(layer, u)
        return self._w["head.weight"] @ self._norm(x, "ln_out")

    def _time_mix(self, layer: int, u: Array, v_first: Array) -> tuple[Array, Array]:
        w = {
            name.split(".att.")[1]: value
            for name, value in self._w.items()
            if name.startswith(f"blocks.{layer}.att.")
        }
        delta = self._att[layer] - u
        self._att[layer] = u
        xr, xw, xk, xv, xa, xg = (u + delta * w[f"x_{letter}"] for letter in "rwkvag")
        r, k, v = w["receptance.weight"] @ xr, w["key.weight"] @ xk, w["value.weight"] @ xv
        decay = np.exp(-np.exp(-0.5) * _sigmoid(w["w0"] + np.tanh(xw @ w["w1"]) @ w["w2"]))
        a = _sigmoid(w["a0"] + (xa @ w["a1"]) @ w["a2"])
        g = _sigmoid(xg @ w["g1"]) @ w["g2"]
        kap = (k * w["k_k"]).reshape(self._heads)
        kap = (kap / np.linalg.norm(kap, axis=1, keepdims=True)).ravel()
        k = k * (1 + (a - 1) * w["k_a"])
        if layer == 0:
            v_first = v
        else:
            v = v + (v_first - v) * _sigmoid(w["v0"] + (xv @ w["v1"]) @ w["v2"])
        y = np.zeros(self._heads)
        rows = [t.reshape(self._heads) for t in (r, decay, k, v, kap, a)]
        for h, (rh, wh, kh, vh, kaph, ah) in enumerate(zip(*rows, strict=True)):
            S = self._wkv[layer, h]
            S = S * wh - np.outer(S @ kaph, kaph * ah) + np.outer(vh, kh)
            self._wkv[layer, h] = S
            y[h] = S @ rh
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + GROUP_NORM_EPS)
        y = y.ravel() * w["ln_x.weight"] + w["ln_x.bias"]
        bonus = (r * k).reshape(self._heads) * w["r_k"].reshape(self._heads)
        y = y + (bonus.sum(1, keepdims=True) * v.reshape(self._heads)).ravel()
        return w["output.weight"] @ (y * g), v_first

    def _channel_mix(self, layer: int, u: Array) -> Array:
        prefix = f"blocks.{layer}.ffn."
        mixed = u + (self._ffn[layer] - u) * self._w[prefix + "x_k"]
        self._ffn[layer] = u
        hidden = np.maximum(self._w[prefix + "key.weight"] @ mixed, 0) ** 2
        out: Array = self._w[prefix + "value.weight"] @ hidden
        return out

    def _norm(self, x: Array, name: str) -> Array:
        normalized = (x - x.mean()) / np.sqrt(x.var() + LAYER_NORM_EPS)
        result: Array = normalized * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return result


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result
