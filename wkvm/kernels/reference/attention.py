"""Attention over the pages of a guest pool."""

import torch
from torch import Tensor

from wkvm.core.layout import PAGE_TOKENS
from wkvm.kernels.rows import Rows


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    rows: Rows,
    *,
    scale: float,
    window: int | None = None,
    value_dim: int | None = None,
) -> Tensor:
    """Keep the keys and values of the rows' tokens, and attend to those of their slots.

    Token i of a row of slot s is at position ``p = lengths[s] + i``. Its key and its value go to
    place ``p % PAGE_TOKENS`` of page ``table[s, p // PAGE_TOKENS]``, and then, for each of its
    heads h, which reads the keys and values of head ``h // (Hq // Hkv)``:

        y = sum_j softmax_j(scale q . k_j) v_j       (j over the positions up to p)

    Args:
        q: ``[T, Hq, D]``; of it, of ``k`` and of ``v`` any strides but the last.
        k: ``[T, Hkv, D]``.
        v: ``[T, Hkv, Dv]``, Dv at most D; None where the first ``value_dim`` elements of a key are
            its value.
        pages: ``[n_pages, n_parts, PAGE_TOKENS, Hkv, D]``, one layer's view of the pool: any first
            stride, a part contiguous. n_parts is 2, keys and values, or 1 without ``v``. A value
            lies in the first Dv elements. Nothing but the places of these tokens is written, and
            only pages of these slots are read, up to their last token.
        table: ``[N, max_pages]`` int32: the page of each PAGE_TOKENS tokens of a slot.
        lengths: ``[N]`` int32, any stride: how many tokens the pages of a slot hold before this
            step. Not advanced: the layers of a model share it.
        rows: T is its ``n_tokens``.
        scale: of the scores.
        window: None, or how many tokens a token sees: itself and those right before it.
        value_dim: Dv where ``v`` is None; None otherwise.

    Returns:
        ``[T, Hq, Dv]``, the dtype of ``q``; the arithmetic is at least float32. Zeros for pad rows.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", arXiv:2309.06180; in the absorbed form of MLA, which has one part,
    DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    per_head = q.shape[1] // k.shape[1]
    n_values = (value_dim or 0) if v is None else v.shape[2]
    y = q.new_zeros(q.shape[0], q.shape[1], n_values)
    for row in rows.live:
        slot, before = rows.host_slots[row], int(lengths[rows.host_slots[row]])
        start = rows.host_offsets[row]
        for t in range(start, rows.host_offsets[row + 1]):
            position = before + t - start
            page, place = table[slot, position // PAGE_TOKENS], position % PAGE_TOKENS
            pages[page, 0, place] = k[t]
            if v is not None:
                pages[page, 1, place, :, : v.shape[2]] = v[t]
            first = 0 if window is None else max(0, position + 1 - window)
            seen = torch.arange(first, position + 1, device=pages.device)
            held = pages[table[slot, seen // PAGE_TOKENS], :, seen % PAGE_TOKENS].to(exact)
            keys = held[:, 0].repeat_interleave(per_head, 1)
            values = held[:, -1, :, :n_values].repeat_interleave(per_head, 1)
            weights = torch.softmax(scale * torch.einsum("hd,jhd->hj", q[t].to(exact), keys), 1)
            y[t] = torch.einsum("hj,jhv->hv", weights, values).to(q.dtype)
    return y
