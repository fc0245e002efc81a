"""Attention over the pages of a guest pool, on a CPU."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from wkvm.core.layout import PAGE_TOKENS
from wkvm.kernels.rows import Rows

QUERIES = 128
"""Tokens of a prompt that attend together: what a mask has that many rows of."""


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
    """See ``reference.attention``.

    What a row sees of its slot is copied out of the pages, one row after the other.

    Raises:
        ValueError: a token has no page.
    """
    n_values = q.shape[2] if v is None else v.shape[2]
    y = q.new_zeros(q.shape[0], q.shape[1], n_values)
    held = lengths.index_select(0, rows.live_slots).tolist()
    _write(k, v, pages, table, held, rows)
    for row, before in zip(rows.live, held, strict=True):
        start, end = rows.host_offsets[row], rows.host_offsets[row + 1]
        n_held = before + end - start
        first_page = 0 if window is None else max(0, before + 1 - window) // PAGE_TOKENS
        listed = table[rows.host_slots[row], first_page : -(-n_held // PAGE_TOKENS)]
        first = first_page * PAGE_TOKENS
        keys = _gather(pages[:, 0], listed, n_held - first, q.dtype)
        values = keys if v is None else _gather(pages[:, 1], listed, n_held - first, q.dtype)
        values = values[..., :n_values]
        for at in range(start, end, QUERIES):
            until = min(at + QUERIES, end)
            # Positions count from the first token that was gathered.
            last = before + until - start - first
            y[at:until] = _attend(q[at:until], keys[:, :last], values[:, :last], scale, window)
    # Values as wide as the keys that they are a part of: with one width the product is fused.
    return y if v is not None else y[..., :value_dim]


def _write(
    k: Tensor, v: Tensor | None, pages: Tensor, table: Tensor, held: list[int], rows: Rows
) -> None:
    """Put the tokens of the live rows into their pages, behind the ``held`` ones of each."""
    for row, before in zip(rows.live, held, strict=True):
        tokens = slice(rows.host_offsets[row], rows.host_offsets[row + 1])
        positions = torch.arange(before, before + rows.lengths[row])
        row_of_table = table[rows.host_slots[row]]
        numbers = row_of_table.index_select(0, positions // PAGE_TOKENS)
        if int(numbers.min()) < 0:
            raise ValueError(
                f"slot {rows.host_slots[row]} has no page for position {positions[-1]}"
            )
        places = positions % PAGE_TOKENS
        pages[numbers, 0, places] = k[tokens].to(pages.dtype)
        if v is not None:
            pages[numbers, 1, places, :, : v.shape[2]] = v[tokens].to(pages.dtype)


def _gather(part: Tensor, numbers: Tensor, n_tokens: int, dtype: torch.dtype) -> Tensor:
    """``[H, n_tokens, D]``: what some pages hold of their first tokens."""
    tokens = part.index_select(0, numbers).flatten(0, 1)[:n_tokens]
    return tokens.transpose(0, 1).to(dtype)


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """The last tokens of ``keys`` attend: ``q`` is ``[T, Hq, D]``, the result ``[T, Hq, Dv]``.

    The heads that share keys are an axis of their own, so that no key is repeated.
    """
    n_queries, n_heads, width = q.shape
    n_shared = keys.shape[0]
    per_head = n_heads // n_shared
    if window is not None:
        first = max(0, keys.shape[1] + 1 - n_queries - window)
        keys, values = keys[:, first:], values[:, first:]
    keys, values = keys.unsqueeze(1), values.unsqueeze(1)
    if n_queries == 1:
        queries = q.reshape(n_shared, 1, per_head, width)
        out = scaled_dot_product_attention(queries, keys, values, scale=scale)
        return out.reshape(1, n_heads, -1)
    keys = keys.expand(-1, per_head, -1, -1)
    values = values.expand(-1, per_head, -1, -1)
    n_keys = keys.shape[2]
    ages = torch.arange(n_keys - n_queries, n_keys).unsqueeze(1) - torch.arange(n_keys)
    visible = ages >= 0
    if window is not None:
        visible &= ages < window
    queries = q.reshape(n_queries, n_shared, per_head, width).permute(1, 2, 0, 3)
    out = scaled_dot_product_attention(queries, keys, values, attn_mask=visible, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(n_queries, n_heads, -1)
