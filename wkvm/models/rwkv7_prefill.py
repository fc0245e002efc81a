"""RWKV-7 on a GPU, packed rows of any lengths: how prompts are absorbed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from wkvm.kernels import rwkv7_decode as decode
from wkvm.kernels import rwkv7_prefill as kernels
from wkvm.kernels.rwkv7_decode import Blocks, tiles_of
from wkvm.kernels.rwkv7_prefill import CHUNK, EXACT_CHUNK, Effects, Move, Tables
from wkvm.models.base import Batch, StateViews
from wkvm.models.rwkv7 import ATT_SHIFT, FFN_SHIFT, WKV
from wkvm.models.rwkv7_buffers import Buffer, memory_bytes, views_of
from wkvm.models.rwkv7_packed import Rwkv7Decode
from wkvm.models.rwkv7_params import Rwkv7Shape
from wkvm.models.rwkv7_products import Products

MAX_CHUNKS = 512
"""Chunks that are under way at a time. More tokens are absorbed piece by piece, so that the
workspace has a bound."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of a batch that are absorbed together.

    Attributes:
        start: of them, the first.
        slots, lengths: the rows that they belong to, and how many tokens of each.
    """

    start: int
    slots: tuple[int, ...]
    lengths: tuple[int, ...]


def pieces_of(
    slots: Sequence[int], lengths: Sequence[int], chunk: int, max_chunks: int
) -> Iterator[Piece]:
    """Packed rows in order, cut at multiples of a chunk so that no piece has too many chunks."""
    start, room = 0, max_chunks
    piece_slots, piece_lengths = list[int](), list[int]()
    for slot, length in zip(slots, lengths, strict=True):
        left = length
        while left > 0:
            if room == 0:
                yield Piece(start, tuple(piece_slots), tuple(piece_lengths))
                start += sum(piece_lengths)
                piece_slots, piece_lengths, room = [], [], max_chunks
            n = min(left, room * chunk)
            piece_slots.append(slot)
            piece_lengths.append(n)
            room -= -(-n // chunk)
            left -= n
    yield Piece(start, tuple(piece_slots), tuple(piece_lengths))


HIDDEN_NS = (64, 128)
"""Outputs of a block of the first stages of the low-rank maps."""

MOST_TOKENS = MAX_CHUNKS * CHUNK
"""That are absorbed together."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """How the products that are not the library's are cut up."""

    hidden: Blocks
    key: Blocks


@cache
def cuts_of(n_tokens: int, item_bytes: int) -> Cuts:
    """What measured best on an H200; see ``bench/NOTES.md``. Wider weights take shorter blocks."""
    k = 64 * 2 // item_bytes
    if n_tokens <= 64:
        return Cuts(Blocks(64, 64, k, 1, 4, 6), Blocks(64, 64, k, 1, 4, 8))
    if n_tokens <= 512:
        return Cuts(Blocks(64, 64, 2 * k, 1, 4, 4), Blocks(64, 256, k, 1, 8, 4))
    return Cuts(Blocks(128, 128, k, 1, 8, 3), Blocks(256, 128, k, 1, 8, 3))


class Buffers:
    """Everything that a layer's launches write and later ones read, in one allocation.

    Attributes:
        x: ``[T, C]`` float32, the residual.
        mixed: ``[6, T, C]``. Once the products have read it, ``effects.own``, ``effects.reads`` and
            ``y`` lie there, and ``ffn_mixed`` when these were read.
        rkv: ``[2, 3, T, C]``: of the first layer, whose v is the residual of the others; of others.
        hidden: ``[T, ranks]``.
        second: ``[T, 4, C]``; ``ffn_hidden`` ``[T, F]`` lies there too.
        entering: ``[n_chunks, H, K, K]``.
        lasts: ``[2, n_chunks, C]``: of each row, what its token shifts become.
    """

    def __init__(
        self, model: Rwkv7Decode, n_tokens: int, n_chunks: int, memory: Tensor | None = None
    ) -> None:
        buffers = _buffers_of(model, n_tokens, n_chunks)
        if memory is None:
            n_bytes = memory_bytes(buffers.values())
            memory = torch.empty(n_bytes, dtype=torch.uint8, device=model.device)
        tensors = views_of(memory, buffers)
        T, C, F = n_tokens, model.shape.width, model.shape.ffn_width
        self.x = tensors["x"]
        self.mixed = tensors["mixed"]
        self.rkv = tensors["rkv"]
        self.hidden = tensors["hidden"]
        scratch = tensors["scratch"]
        self.second = scratch[: T * 4 * C].view(T, 4, C)
        self.ffn_hidden = scratch[: T * F].view(T, F)
        self.ffn_mixed = self.mixed[0]
        self.entering = tensors["entering"]
        self.lasts = tensors["lasts"]
        narrow = _narrow(model.dtype)
        memory = self.mixed.view(torch.uint8).flatten()
        n_own, n_reads = T * C * 4, T * C * narrow.itemsize
        self.y = self.mixed[5]
        self.effects = Effects(
            memory[n_own : n_own + n_reads].view(narrow).view(T, C),
            memory[:n_own].view(torch.float32).view(T, C),
            tensors["moves"],
            tensors["adds"],
            tensors["decays"],
            tensors["bonuses"],
        )


def _buffers_of(model: Rwkv7Decode, n_tokens: int, n_chunks: int) -> dict[str, Buffer]:
    shape, dtype = model.shape, model.dtype
    T, C, H, K = n_tokens, shape.width, shape.n_heads, shape.head_size
    narrow = _narrow(dtype)
    return {
        "x": Buffer((T, C), torch.float32),
        "mixed": Buffer((6, T, C), dtype),
        "rkv": Buffer((2, 3, T, C), dtype),
        "hidden": Buffer((T, sum(model.ranks)), dtype),
        "scratch": Buffer((T * max(4 * C, shape.ffn_width),), dtype),
        "moves": Buffer((n_chunks, H, K, K), narrow),
        "adds": Buffer((n_chunks, H, K, K), torch.float32),
        "entering": Buffer((n_chunks, H, K, K), narrow),
        "decays": Buffer((n_chunks, H, K), torch.float32),
        "bonuses": Buffer((T, H), torch.float32),
        "lasts": Buffer((2, n_chunks, C), dtype),
    }


def _narrow(dtype: torch.dtype) -> torch.dtype:
    """Of what is multiplied once more: with the digits of float16, as tf32 units have them."""
    return torch.float32 if dtype == torch.float32 else torch.float16


def buffer_bytes(model: Rwkv7Decode, n_tokens: int, n_chunks: int) -> int:
    """What ``Buffers`` take."""
    return memory_bytes(_buffers_of(model, n_tokens, n_chunks).values())


class Prefill:
    """The forward pass over packed rows, with the weights of ``model``."""

    def __init__(
        self, model: Rwkv7Decode, *, chunk: int | None = None, max_chunks: int = MAX_CHUNKS
    ) -> None:
        """Other chunks and fewer of them are for tests.

        Args:
            model: the weights.
            chunk: tokens of a chunk, 16 or 64; None: what the dtype asks for.
            max_chunks: that are under way at a time.
        """
        self._max_chunks = max_chunks
        self._model = model
        self._products = Products(model)
        is_exact = model.dtype == torch.float32
        self.chunk = chunk or (EXACT_CHUNK if is_exact else CHUNK)
        device = model.device
        groups = model.hidden_groups()
        self._hidden_tiles = {n: tiles_of(groups, n, device) for n in HIDDEN_NS}

    @property
    def shape(self) -> Rwkv7Shape:
        """The sizes of the model."""
        return self._model.shape

    def workspace_bytes(self, n_tokens: int, n_logit_rows: int) -> int:
        """See ``Model.workspace_bytes``."""
        model, shape = self._model, self.shape
        n_tokens = min(n_tokens, self._max_chunks * self.chunk)
        n_chunks = min(n_tokens, self._max_chunks)
        buffers = buffer_bytes(model, n_tokens, n_chunks)
        # Residual and its choice among pieces, normed and rounded; logits, and as they are made.
        per_row = shape.width * (4 * 4 + model.dtype.itemsize) + shape.vocab_size * 4
        return buffers + n_logit_rows * per_row + (1 << 21)

    @torch.inference_mode()
    def __call__(self, batch: Batch, states: StateViews) -> Tensor:
        """See ``Model.forward``."""
        pieces = list(pieces_of(batch.slot_list, batch.lengths, self.chunk, self._max_chunks))
        rows: Tensor | None = None
        for piece in pieces:
            n_tokens = sum(piece.lengths)
            ids = batch.token_ids[piece.start : piece.start + n_tokens]
            tables = self.tables(piece.slots, piece.lengths)
            x = self.absorb(ids, tables, states)
            if batch.hidden is not None:
                batch.hidden.take(x, self.normed, piece.start)
            if len(pieces) == 1:
                rows = x.index_select(0, batch.logit_rows)
                continue
            at = batch.logit_rows - piece.start
            found = x.index_select(0, at.clamp(0, n_tokens - 1))
            del x, tables  # the next piece has as much again
            rows = found if rows is None else torch.where((at >= 0)[:, None], found, rows)
        if rows is None:
            raise AssertionError("there is always a piece")
        return self.logits(rows)

    def tables(self, slots: Sequence[int], lengths: Sequence[int]) -> Tables:
        """The tables of packed rows that are one piece."""
        return kernels.tables_of(slots, lengths, self.chunk, self._model.device)

    def absorb(
        self,
        token_ids: Tensor,
        tables: Tables,
        states: StateViews,
        buffers: Buffers | None = None,
    ) -> Tensor:
        """Absorb the tokens of ``tables`` in place; the residual after the last layer, float32.

        Args:
            token_ids: ``[T]`` int64; those that no chunk names are not absorbed.
            tables: of the packed rows.
            states: where their slots are.
            buffers: of T tokens and as many chunks; without them, new ones.
        """
        model, shape = self._model, self.shape
        if buffers is None:
            buffers = Buffers(model, len(token_ids), len(tables.chunks))
        wkv, att, ffn = (states[name].unbind(1) for name in (WKV, ATT_SHIFT, FFN_SHIFT))
        eps, x = shape.layer_norm_eps, buffers.x
        att_last, ffn_last = buffers.lasts.unbind(0)
        for index, layer in enumerate(model.layers):
            kernels.mix(
                x,
                layer.ln1,
                eps,
                layer.mixes,
                buffers.mixed,
                att[index],
                att_last,
                tables,
                embedding=(model.table, token_ids) if index == 0 else None,
                move=Move(ffn[index - 1], ffn_last) if index else None,
            )
            self._time_mix(index, buffers, wkv[index], tables)
            kernels.mix(
                x,
                layer.ln2,
                eps,
                layer.ffn_mix,
                buffers.ffn_mixed.unsqueeze(0),
                ffn[index],
                ffn_last,
                tables,
                move=Move(att[index], att_last),
            )
            self._products.squared(
                buffers.ffn_mixed,
                layer.ffn_key,
                buffers.ffn_hidden,
                self._cuts(len(x)).key,
            )
            self._products.add(x, buffers.ffn_hidden, layer.ffn_value)
        kernels.move_last(Move(ffn[-1], ffn_last), tables)
        return x

    def _cuts(self, n_tokens: int) -> Cuts:
        """By the number of tokens, unless no bit may depend on it."""
        model = self._model
        return cuts_of(MOST_TOKENS if model.deterministic else n_tokens, model.dtype.itemsize)

    def _time_mix(self, index: int, buffers: Buffers, wkv: Tensor, tables: Tables) -> None:
        """From the mixes to the residual."""
        shape, layer = self.shape, self._model.layers[index]
        C = shape.width
        cuts = self._cuts(len(buffers.x))
        rkv, effects = buffers.rkv[min(index, 1)], buffers.effects
        self._products.rkv(buffers.mixed[:3], layer.first, rkv)
        lows = layer.first.rows(3 * C)
        decode.product(
            buffers.mixed,
            lows.values,
            buffers.hidden,
            cuts.hidden,
            scales=lows.scales,
            tiles=self._hidden_tiles[cuts.hidden.n],
        )
        self._products.second(buffers.hidden, layer.second, buffers.second)
        kernels.within(
            rkv,
            buffers.rkv[0, 2],
            buffers.second,
            layer.vectors,
            effects,
            tables,
        )
        kernels.pass_states(effects, buffers.entering, wkv, tables)
        kernels.outputs(
            effects,
            buffers.entering,
            rkv[2],
            buffers.second[:, 3],
            layer.vectors,
            buffers.y,
            shape.group_norm_eps,
            tables,
        )
        self._products.add(buffers.x, buffers.y, layer.output)

    def logits(self, x: Tensor) -> Tensor:
        """``[R, V]`` float32 of residuals ``[R, C]``."""
        model, shape = self._model, self.shape
        if len(x) == 0:
            return torch.empty(0, shape.vocab_size, dtype=torch.float32, device=x.device)
        logits = torch.empty(len(x), shape.vocab_size, dtype=torch.float32, device=x.device)
        self._products.logits(self.normed(x).to(model.dtype), logits)
        return logits

    def normed(self, x: Tensor) -> Tensor:
        """What the head is given of residuals ``[R, C]``, before it is rounded."""
        weight, bias = self._model.ln_out
        eps = self.shape.layer_norm_eps
        return layer_norm(x, (self.shape.width,), weight.float(), bias.float(), eps)
