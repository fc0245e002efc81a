"""Gated DeltaNet in plain torch, as fla's modules compute it: those themselves need a GPU.

To be read beside ``fla.models.gated_deltanet`` and ``fla.layers.gated_deltanet``, from which names
and defaults are. Nothing of wkvm is used. The classes have what ``transformers_oracle.py`` asks of
transformers' own.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize, pad, silu, softplus

DEFAULTS: dict[str, Any] = {
    "expand_v": 2.0,
    "use_gate": True,
    "allow_neg_eigval": False,
    "conv_size": 4,
    "num_v_heads": None,
    "hidden_ratio": 4,
    "intermediate_size": None,
    "norm_eps": 1e-6,
    "output_gate_activation": "swish",
    "tie_word_embeddings": False,
}


class GatedDeltaNetConfig(SimpleNamespace):
    """The fields of a ``config.json``."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**DEFAULTS, **fields})
        self.written = fields


class Layer(nn.Module):
    """A short convolution on each of q, k and v, the recurrence token by token, a gated norm."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        self.n_keys, self.n_values = config.num_heads, config.num_v_heads or config.num_heads
        self.size = int(config.head_dim * config.expand_v)
        keys, values = self.n_keys * config.head_dim, self.n_values * self.size
        outputs = {"q": keys, "k": keys, "v": values, "a": self.n_values, "b": self.n_values}
        if config.use_gate:
            outputs["g"] = values
        for part, n in outputs.items():
            self.add_module(f"{part}_proj", nn.Linear(config.hidden_size, n, bias=False))
        for part in "qkv":
            n, taps = outputs[part], config.conv_size
            conv = nn.Conv1d(n, n, taps, groups=n, bias=False, padding=taps - 1)
            self.add_module(f"{part}_conv1d", conv)
        self.A_log = nn.Parameter(torch.zeros(self.n_values))
        self.dt_bias = nn.Parameter(torch.zeros(self.n_values))
        self.o_norm = nn.RMSNorm(self.size, eps=config.norm_eps)
        self.o_proj = nn.Linear(values, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cache: SimpleNamespace) -> Tensor:
        """``[T, D]`` to ``[T, D]``."""
        config, n = self.config, x.shape[0]
        inputs = {part: self.get_submodule(f"{part}_proj")(x).t() for part in "qkv"}
        q, k, v = (
            silu(self.get_submodule(f"{part}_conv1d")(inputs[part])[:, :n]).t() for part in "qkv"
        )
        before = torch.cat(list(inputs.values()))
        cache.conv_states = {0: pad(before, (config.conv_size, 0))[None, :, -config.conv_size :]}
        q, k = (normalize(each.view(n, self.n_keys, -1), dim=2, eps=1e-6) for each in (q, k))
        shared = self.n_values // self.n_keys
        q, k = (each.repeat_interleave(shared, 1) for each in (q * config.head_dim**-0.5, k))
        v = v.view(n, self.n_values, self.size)
        beta = self.get_submodule("b_proj")(x).sigmoid() * (2 if config.allow_neg_eigval else 1)
        g = -self.A_log.exp() * softplus(self.get_submodule("a_proj")(x) + self.dt_bias)
        S = x.new_zeros(self.n_values, config.head_dim, self.size)
        outputs = []
        for t in range(n):
            S = S * g[t].exp()[:, None, None]
            delta = beta[t][:, None] * (v[t] - (S * k[t][:, :, None]).sum(1))
            S = S + k[t][:, :, None] * delta[:, None, :]
            outputs.append((S * q[t][:, :, None]).sum(1))
        cache.recurrent_states = {0: S[None]}
        y: Tensor = self.o_norm(torch.stack(outputs))
        if config.use_gate:
            gate = self.get_submodule("g_proj")(x).view_as(y)
            y = y * (gate.sigmoid() if config.output_gate_activation == "sigmoid" else silu(gate))
        out: Tensor = self.o_proj(y.flatten(1))
        return out


class Mlp(nn.Module):
    """``down(silu(gate) * up)``."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        D, inner = config.hidden_size, config.intermediate_size
        if inner is None:
            inner = 256 * ((int(D * (config.hidden_ratio or 4) * 2 / 3) + 255) // 256)
        self.gate_proj, self.up_proj = (nn.Linear(D, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, D]`` to ``[T, D]``."""
        y: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Block(nn.Module):
    """Two residuals."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = (
            nn.RMSNorm(config.hidden_size, eps=config.norm_eps) for _ in range(2)
        )
        self.attn, self.mlp = Layer(config), Mlp(config)

    def forward(self, x: Tensor, cache: SimpleNamespace) -> Tensor:
        """``[T, D]`` to ``[T, D]``."""
        x = x + self.attn(self.attn_norm(x), cache)
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class Model(nn.Module):
    """All but the head."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)


class GatedDeltaNetForCausalLM(nn.Module):
    """The whole model, for one sequence from its start."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embeddings.weight

    def get_input_embeddings(self) -> nn.Module:
        """As transformers' models have it."""
        return self.model.embeddings

    def get_output_embeddings(self) -> nn.Module:
        """As transformers' models have it."""
        return self.lm_head

    def save_pretrained(self, folder: Path) -> None:
        """Write it under the names that fla's have. A tied head is not stored."""
        folder.mkdir(parents=True)
        fields = {"model_type": "gated_deltanet", **self.config.written}
        (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        if self.config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def forward(self, ids: Tensor, use_cache: bool) -> Any:
        """``[1, T]`` ids to logits ``[1, T, V]`` and a cache."""
        caches = [SimpleNamespace() for _ in self.model.layers]
        x = self.model.embeddings(ids[0])
        for block, cache in zip(self.model.layers, caches, strict=True):
            x = block(x, cache)
        return Output(self.lm_head(self.model.norm(x))[None], SimpleNamespace(layers=caches))


class Output:
    """What the model returns."""

    def __init__(self, logits: Tensor, cache: SimpleNamespace) -> None:
        self.logits = logits
        self._cache = cache

    def get(self, name: str) -> SimpleNamespace | None:
        """``cache``, and nothing else."""
        return self._cache if name == "cache" else None
