"""RWKV-7 for training: the recurrence over whole rows, and the model around it.

Written for autograd and for reading; serving has code of its own. Start values follow those of
the RWKV-7 authors' training code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CHUNK = 32
"""Tokens per chunk of the CPU recurrence. Decays lie in (0.545, 1), so that even the inverse of a
chunk's product, at most 0.545^-32 = 2.6e8, is far inside float32's range."""

Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one model. Low ranks are of the decay, in-context rate, value mix and gate."""

    vocab_size: int
    width: int
    n_layers: int
    head_size: int
    ffn_width: int
    decay_rank: int
    a_rank: int
    v_rank: int
    gate_rank: int

    @property
    def n_heads(self) -> int:
        """Heads of each layer."""
        return self.width // self.head_size


def wkv_chunked(
    r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, segments: Tensor
) -> Tensor:
    """Run the RWKV-7 recurrence over whole rows, a chunk of ``CHUNK`` tokens at a time.

    For each row and head, with S = 0 where a segment begins:

        S_t = S_{t-1} diag(w_t) + (S_{t-1} a_t) b_t^T + v_t k_t^T;    y_t = S_t r_t

    Within a chunk u_t = S_{t-1} a_t solves a unit lower triangular system, and the rest is
    matrix products; only the state at the chunks' borders is carried in a loop.

    Args:
        r, log_w, k, v, a, b: ``[B, T, H, K]`` float32; T is a multiple of ``CHUNK``.
        segments: ``[B, T]``, a number that changes where another document begins.

    Returns:
        ``[B, T, H, K]``.
    """
    rows, length, heads, size = r.shape
    n = length // CHUNK

    def split(x: Tensor) -> Tensor:
        return x.view(rows, n, CHUNK, heads, size).permute(0, 3, 1, 2, 4)  # [B, H, n, chunk, K]

    r, log_w, k, v, a, b = (split(x) for x in (r, log_w, k, v, a, b))
    seg = segments.view(rows, 1, n, CHUNK)
    last = seg[..., -1:]
    carried = torch.cat([last[:, :, :1] - 1, last[:, :, :-1]], dim=2)  # of the state that comes in

    through = log_w.cumsum(-2)
    to_end = through[..., -1:, :] - through
    grown_k, grown_b = k * (-through).exp(), b * (-through).exp()
    seen_a, seen_r = a * (through - log_w).exp(), r * through.exp()
    same = seg.unsqueeze(-1) == seg.unsqueeze(-2)
    upto, before = same.tril(), same.tril(-1)
    from_state = (seg == carried).unsqueeze(-1)
    to_state = (seg == last).unsqueeze(-1) * to_end.exp()
    kept = (last == carried).unsqueeze(-1) * through[..., -1:, :].exp()  # [B, H, n, 1, K]

    eye = torch.eye(CHUNK, device=r.device)
    system = eye - (seen_a @ grown_b.mT).masked_fill(~before, 0)
    right = torch.cat(
        [(seen_a @ grown_k.mT).masked_fill(~before, 0) @ v, seen_a * from_state], dim=-1
    )
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u_alone, u_state = solved.split(size, dim=-1)
    out_k = (seen_r @ grown_k.mT).masked_fill(~upto, 0) @ v
    out_b = (seen_r @ grown_b.mT).masked_fill(~upto, 0)
    out_s = seen_r * from_state
    new_k = (k * to_state).mT @ v
    new_b = (b * to_state).mT

    state = r.new_zeros(rows, heads, size, size)  # [K, V]: transposed, so that rows multiply it
    ys = []
    for i in range(n):
        u = u_alone[:, :, i] + u_state[:, :, i] @ state
        ys.append(out_k[:, :, i] + out_b[:, :, i] @ u + out_s[:, :, i] @ state)
        state = state * kept[:, :, i].mT + new_k[:, :, i] + new_b[:, :, i] @ u
    return torch.stack(ys, dim=2).permute(0, 2, 3, 1, 4).reshape(rows, length, heads, size)


def wkv_fla(
    r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, segments: Tensor
) -> Tensor:
    """As ``wkv_chunked``, on a GPU and in bfloat16: the rows become one packed sequence."""
    from fla.ops.rwkv7 import chunk_rwkv7  # needs a GPU, and takes seconds to import

    rows, length = segments.shape
    starts = segments.diff(dim=1, prepend=segments[:, :1] - 1) != 0
    starts[:, 0] = True
    bounds = nn.functional.pad(starts.flatten().nonzero().flatten(), (0, 1), value=rows * length)
    packed = (x.flatten(0, 1).unsqueeze(0).bfloat16() for x in (r, log_w, k, v, a, b))
    y, _ = chunk_rwkv7(
        *packed,
        scale=1.0,
        cu_seqlens=bounds,
        safe_gate=True,
        chunk_size=64,
        lower_bound=-math.exp(-0.5),
    )
    out: Tensor = y.view(rows, length, *y.shape[2:])
    return out


# ---------------------------------------------------------------- the model
# Attributes are named so that state_dict() has the tensor names of flash-linear-attention.


class LowRank(nn.Module):
    """``up(f(down(x)))``: the projections that make decay, rate, value mix and gate."""

    def __init__(self, width: int, rank: int, middle: nn.Module, bias: Tensor | None) -> None:
        super().__init__()
        down, up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=bias is not None)
        self.lora = nn.Sequential(down, middle, up)
        nn.init.zeros_(down.weight)
        nn.init.orthogonal_(up.weight, gain=0.1)
        if bias is not None:
            up.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., C]`` to ``[..., C]``."""
        out: Tensor = self.lora(x)
        return out


class TimeMix(nn.Module):
    """The recurrent half of a layer."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        width, size = shape.width, shape.head_size
        self.head_size = size
        depth = layer / max(1, shape.n_layers - 1)  # 0 in the first layer, 1 in the last
        rest = 1 - layer / shape.n_layers
        channel = torch.arange(width) / width
        ramp = torch.linspace(0, 1, width)
        zigzag = (torch.arange(width) % size - (size - 1) / 2) / ((size - 1) / 2)
        zigzag = zigzag * zigzag.abs()  # from -1 to 1 within each head: fast and slow channels

        for name, power in (("r", 0.2), ("w", 0.9), ("k", 0.7), ("v", 0.7), ("a", 0.9), ("g", 0.2)):
            mix = 1 - channel ** (power * rest)
            self.register_parameter(f"x_{name}", nn.Parameter(mix.view(1, 1, width)))
        self.k_k = nn.Parameter(0.71 - 0.1 * (ramp - 0.5))
        self.k_a = nn.Parameter(torch.full((width,), 1.02))
        self.r_k = nn.Parameter(torch.full((shape.n_heads, size), -0.04))

        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        for linear, scale in ((self.r_proj, 0.5), (self.k_proj, 0.05), (self.v_proj, 0.5)):
            nn.init.uniform_(linear.weight, -scale / width**0.5, scale / width**0.5)
        nn.init.zeros_(self.o_proj.weight)

        decay = -6 + 6 * ramp ** (1 + depth**0.3) + 0.5 + 2.5 * zigzag
        self.w_lora = LowRank(width, shape.decay_rank, nn.Tanh(), decay)
        rate = -0.19 + 0.3 * zigzag + 0.4 * (ramp - 0.5)
        self.a_lora = LowRank(width, shape.a_rank, nn.Identity(), rate)
        self.g_lora = LowRank(width, shape.gate_rank, nn.Sigmoid(), None)
        self.v_lora = (
            LowRank(width, shape.v_rank, nn.Identity(), 0.73 - 0.4 * (ramp - 0.5))
            if layer
            else None
        )
        self.g_norm = nn.GroupNorm(shape.n_heads, width, eps=size * 1e-5)
        nn.init.constant_(self.g_norm.weight, ((1 + layer) / shape.n_layers) ** 0.7)

    def forward(
        self, x: Tensor, segments: Tensor, v_first: Tensor | None, wkv: Recurrence
    ) -> tuple[Tensor, Tensor]:
        """The layer's output, and the values of the first layer."""
        rows, length, width = x.shape
        delta = shifted(x, segments) - x
        mixed = {n: x + delta * self.get_parameter(f"x_{n}") for n in "rwkvag"}

        def heads(t: Tensor) -> Tensor:
            return t.float().view(rows, length, -1, self.head_size)

        r, k, v = self.r_proj(mixed["r"]), self.k_proj(mixed["k"]), self.v_proj(mixed["v"])
        log_w = -math.exp(-0.5) * self.w_lora(mixed["w"]).float().sigmoid()
        a = self.a_lora(mixed["a"]).sigmoid()
        g = self.g_lora(mixed["g"])
        if self.v_lora is None or v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * self.v_lora(mixed["v"]).sigmoid()
        kap = nn.functional.normalize(heads(k * self.k_k), dim=-1, eps=1e-12)
        k = k * (1 + (a - 1) * self.k_a)

        r, k, v_heads = heads(r), heads(k), heads(v)
        y = wkv(r, heads(log_w), k, v_heads, -kap, kap * heads(a), segments)
        y = self.g_norm(y.reshape(rows * length, width)).view(rows, length, -1, self.head_size)
        y = y + (r * k * self.r_k).sum(-1, keepdim=True) * v_heads
        return self.o_proj(y.view(rows, length, width) * g), v_first


class ChannelMix(nn.Module):
    """The feed-forward half of a layer."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        channel = torch.arange(shape.width) / shape.width
        self.x_k = nn.Parameter(1 - channel ** ((1 - layer / shape.n_layers) ** 4))
        self.key = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.value = nn.Linear(shape.ffn_width, shape.width, bias=False)
        bound = 0.5 / shape.width**0.5
        nn.init.uniform_(self.key.weight, -bound, bound)
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor, segments: Tensor) -> Tensor:
        """``[B, T, C]`` to ``[B, T, C]``."""
        hidden = self.key(x + (shifted(x, segments) - x) * self.x_k)
        out: Tensor = self.value(hidden.relu() ** 2)
        return out


class Layer(nn.Module):
    """One layer; the first also normalises the embeddings."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.pre_norm = nn.LayerNorm(shape.width) if layer == 0 else None
        self.attn_norm, self.ffn_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attn = TimeMix(shape, layer)
        self.ffn = ChannelMix(shape, layer)

    def forward(
        self, x: Tensor, segments: Tensor, v_first: Tensor | None, wkv: Recurrence
    ) -> tuple[Tensor, Tensor]:
        """The residual stream after this layer, and the values of the first layer."""
        if self.pre_norm is not None:
            x = self.pre_norm(x)
        y, v_first = self.attn(self.attn_norm(x), segments, v_first, wkv)
        x = x + y
        return x + self.ffn(self.ffn_norm(x), segments), v_first


class RWKV7(nn.Module):
    """The whole model: ids and document numbers ``[B, T]`` to logits ``[B, T, V]``."""

    def __init__(self, shape: Shape, wkv: Recurrence) -> None:
        super().__init__()
        self.wkv = wkv
        embeddings = nn.Embedding(shape.vocab_size, shape.width)
        nn.init.normal_(embeddings.weight, std=0.02)
        layers = nn.ModuleList(Layer(shape, i) for i in range(shape.n_layers))
        norm = nn.LayerNorm(shape.width)
        self.model = nn.ModuleDict({"embeddings": embeddings, "layers": layers, "norm": norm})
        self.lm_head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        gain = 0.5 * max(1.0, (shape.vocab_size / shape.width) ** 0.5)
        nn.init.orthogonal_(self.lm_head.weight, gain=gain)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """Logits after each token; each document starts from a zero state."""
        x, v_first = self.model["embeddings"](ids), None
        for layer in self.model["layers"].children():
            x, v_first = layer(x, segments, v_first, self.wkv)
        logits: Tensor = self.lm_head(self.model["norm"](x))
        return logits


def shifted(x: Tensor, segments: Tensor) -> Tensor:
    """Each token's predecessor ``[B, T, C]``; zeros where a document or a row begins."""
    goes_on = (segments[:, 1:] == segments[:, :-1]).unsqueeze(-1)
    return nn.functional.pad(x[:, :-1] * goes_on, (0, 0, 1, 0))
