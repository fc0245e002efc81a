"""RWKV-7 on a GPU, one token a row: a step without decisions, to be captured in a graph.

``Rwkv7Decode`` packs the weights of a model; ``DecodeStep`` launches the kernels of a step over the
buffers of one batch size. Which kernels, and how they are cut up, depends on the batch size alone.
Prompts go through ``wkvm.models.rwkv7_prefill``, on the same states.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from wkvm.kernels import rwkv7_decode as kernels
from wkvm.kernels.dequantise import plain
from wkvm.kernels.rwkv7_decode import Before, Blocks, Mapped, Move, Ring, Tiles, tiles_of
from wkvm.kernels.weight import Weight
from wkvm.models.base import StateViews
from wkvm.models.rwkv7 import ATT_SHIFT, FFN_SHIFT, RING, RING_FILL, WKV
from wkvm.models.rwkv7_buffers import buffers_of, memory_bytes, views_of
from wkvm.models.rwkv7_packed import PackedLayer, Rwkv7Decode
from wkvm.models.rwkv7_plans import Cut, Gemv, Library, Plan

_State: TypeAlias = tuple[Tensor, Ring | None]
"""The recurrence's matrices of one layer, and their rings where writes are deferred."""


class DecodeStep:
    """One step of ``n_rows`` rows of one token. See ``wkvm.models.base.DecodeStep``.

    Attributes:
        token_ids: ``[B]`` int64, input.
        slots: ``[B]`` int32, input: distinct where not negative; negative for a pad row.
        logits: ``[B, V]`` float32, output. Those of pad rows mean nothing.
        residual: ``[B, C]`` float32: what the last norm was applied to, after a launch.
    """

    def __init__(
        self,
        model: Rwkv7Decode,
        n_rows: int,
        *,
        plan: Plan | None = None,
        memory: Tensor | None = None,
    ) -> None:
        """``memory``: ``[n_bytes]`` uint8 for all buffers, inputs and outputs with them.

        Steps of which one begins when the other's logits have been used can share it; see
        ``step_bytes``. By default the step has memory of its own. Each row's slot is -1 at first.
        """
        self.model = model
        self.n_rows = n_rows
        self.plan = plan = plan or model.plan_of(n_rows)
        C, device = model.shape.width, model.device
        needs_side = plan.hidden is not None
        self._side = torch.cuda.Stream() if needs_side else None  # type: ignore[no-untyped-call]
        buffers = buffers_of(model, n_rows, plan)
        if memory is None:
            memory = torch.empty(memory_bytes(buffers.values()), dtype=torch.uint8, device=device)
        views = views_of(memory, buffers)
        self.token_ids, self.slots = views.pop("token_ids"), views.pop("slots")
        self.token_ids.zero_()
        self.slots.fill_(-1)
        self._buffers = list(views.values())
        self.logits, self.residual = views["logits"], views["residual"]
        self._firsts, self._y, self._hidden = views["firsts"], views["y"], views["hidden"]
        if isinstance(plan.first, Library):
            if plan.hidden is None:
                raise ValueError("the library makes no low-rank products")
            self._tiles = tiles_of(model.hidden_groups(), plan.hidden.n, device)
        else:
            item_bytes = model.layers[0].first.values.itemsize
            n = plan.first.n(C, item_bytes) if isinstance(plan.first, Gemv) else plan.first.n
            self._tiles = tiles_of(model.first_groups(n_rows), n, device)
        self._ring_rows = torch.empty(3, n_rows, dtype=torch.int32, device=device)
        if plan.fuses_norms:
            self._normed = views["normed"]
        else:
            self._mixed, self._ffn_mixed = views["mixed"], views["ffn_mixed"]
            self._outputs, self._values = views["outputs"], views["values"]
        if plan.second is not None:
            self._second = views["second"]
            self._second_tiles = tiles_of(model.second_groups(), plan.second.n, device)

    def buffers(self) -> list[Tensor]:
        """Everything that a launch overwrites before it reads it."""
        return self._buffers

    def launch(self, states: StateViews) -> None:
        """Absorb ``token_ids`` into the states of ``slots``, in place, and make ``logits``.

        Launches and returns. States of other slots are neither read nor written.
        """
        views = zip(*(states[name].unbind(1) for name in (WKV, ATT_SHIFT, FFN_SHIFT)), strict=True)
        rings = self._rings(states)
        for index, (wkv, att, ffn) in enumerate(views):
            if self.plan.fuses_norms:
                self._fused_layer(index, (wkv, rings[index]), att, ffn)
            else:
                self._layer(index, (wkv, rings[index]), att, ffn)
        model = self.model
        norm, eps = model.ln_out, model.shape.layer_norm_eps
        if self.plan.fuses_norms:
            self._gemv(
                self.residual, model.head, self.plan.head, out=self.logits, before=Before(norm, eps)
            )
        else:
            pdl = self.plan.pdl
            kernels.mix(
                self.residual,
                self._values,
                norm,
                eps,
                self._y,
                self.slots,
                n_warps=self.plan.mix_warps,
                pdl=pdl,
            )
            self._product(self._y, model.head, self.logits.unsqueeze(0), self.plan.head)

    def _rings(self, states: StateViews) -> list[Ring | None]:
        """Of each layer, where writes are deferred: then it launches what begins a step of them."""
        if RING not in states:
            return [None] * len(self.model.layers)
        entries, fill = states[RING], states[RING_FILL]
        kernels.begin_ring(self.slots, fill, self._ring_rows, entries.shape[3] + 1)
        return [Ring(of_layer, self._ring_rows) for of_layer in entries.unbind(1)]

    def _fused_layer(self, index: int, wkv: _State, att: Tensor, ffn: Tensor) -> None:
        model, layer, plan = self.model, self.model.layers[index], self.plan
        eps = model.shape.layer_norm_eps
        first = self._firsts[min(index, 1)]
        embedding = (model.table, self.token_ids) if index == 0 else None
        att_normed, ffn_normed = self._normed.unbind(0)
        before = Before(layer.ln1, eps, att, layer.mixes, att_normed, embedding)
        self._gemv(
            self.residual,
            layer.first,
            plan.first,
            out=first,
            residual=self.residual,
            tiles=self._tiles,
            before=before,
            ahead=layer.output.values,
            pdl=self._overlaps(index),
        )
        self._wkv(index, first, wkv, Move(att, att_normed))
        self._gemv(
            self._y, layer.output, plan.output, residual=self.residual, ahead=layer.ffn_value.values
        )
        self._gemv(
            self.residual,
            layer.ffn_key,
            plan.key,
            out=self._hidden,
            what=kernels.SQUARED_RELU,
            before=Before(layer.ln2, eps, ffn, layer.ffn_mix, ffn_normed),
        )
        self._gemv(
            self._hidden,
            layer.ffn_value,
            plan.value,
            residual=self.residual,
            move=Move(ffn, ffn_normed),
            ahead=self._next_first(index),
        )

    def _layer(self, index: int, wkv: _State, att: Tensor, ffn: Tensor) -> None:
        model, layer, plan = self.model, self.model.layers[index], self.plan
        x, slots, eps, pdl = self.residual, self.slots, model.shape.layer_norm_eps, plan.pdl
        first = self._firsts[min(index, 1)]
        kernels.mix(
            x,
            None if index == 0 else self._values,
            layer.ln1,
            eps,
            self._mixed,
            slots,
            shift=att,
            mixes=layer.mixes,
            embedding=(model.table, self.token_ids) if index == 0 else None,
            n_warps=plan.mix_warps,
            pdl=self._overlaps(index),
        )
        if isinstance(plan.first, Library):
            self._first_by_library(layer, first)
        else:
            if isinstance(plan.first, Gemv):
                self._gemv(self._mixed, layer.first, plan.first, out=first, tiles=self._tiles)
            else:
                kernels.product(
                    self._mixed,
                    layer.first.values,
                    first,
                    plan.first,
                    scales=layer.first.scales,
                    tiles=self._tiles,
                    pdl=pdl,
                )
            self._second_stage(layer, first)
        self._wkv(index, first, wkv, None)
        self._product(self._y, layer.output, self._outputs, plan.output)
        kernels.mix(
            x,
            self._outputs,
            layer.ln2,
            eps,
            self._ffn_mixed,
            slots,
            shift=ffn,
            mixes=layer.ffn_mix,
            n_warps=plan.mix_warps,
            pdl=pdl,
        )
        self._product(
            self._ffn_mixed[0],
            layer.ffn_key,
            self._hidden.unsqueeze(0),
            plan.key,
            kernels.SQUARED_RELU,
            ahead=layer.ffn_value.values,
        )
        self._product(
            self._hidden, layer.ffn_value, self._values, plan.value, ahead=self._next_first(index)
        )

    def _first_by_library(self, layer: PackedLayer, first: Tensor) -> None:
        """The low-rank maps are small and take long: they run beside the large products."""
        C = self.model.shape.width
        side, main = self._side, torch.cuda.current_stream()
        if side is None or self.plan.hidden is None:
            raise AssertionError("set with the library")
        hidden = layer.first.rows(3 * C)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            kernels.product(
                self._mixed,
                hidden.values,
                self._hidden_of(first),
                self.plan.hidden,
                scales=hidden.scales,
                tiles=self._tiles,
            )
            self._second_stage(layer, first)
        weights = plain(layer.first.rows(0, 3 * C), self.model.scratch).view(3, C, C)
        torch.bmm(self._mixed[:3], weights.transpose(1, 2), out=self._rkv_of(first))
        main.wait_stream(side)

    def _second_stage(self, layer: PackedLayer, first: Tensor) -> None:
        if self.plan.second is None:
            return
        kernels.product(
            self._hidden_of(first),
            layer.second,
            self._second,
            self.plan.second,
            tiles=self._second_tiles,
            pdl=self.plan.pdl,
        )

    def _wkv(self, index: int, first: Tensor, wkv: _State, move: Move | None) -> None:
        model, layer, plan = self.model, self.model.layers[index], self.plan
        v, w, a, g = model.ranks
        kernels.wkv(
            self._rkv_of(first),
            self._rkv_of(self._firsts[0]),
            self._hidden_of(first),
            layer.vectors,
            (v, w, a, g),
            self._y,
            wkv[0],
            self.slots,
            model.shape.group_norm_eps,
            second=None if plan.second is None else self._second,
            second_weight=layer.second if plan.second is None else None,
            is_first=index == 0,
            move=move,
            ring=wkv[1],
            ahead=self._ahead(layer.ffn_key.values),
            n_warps=plan.wkv_warps,
            pdl=plan.pdl,
        )

    def _overlaps(self, index: int) -> bool:
        """Whether a layer's first launch may begin before the one before it has ended.

        The first of a step may not: every launch reads ``slots`` before it waits, and what wrote
        them, or the order of the rings, is done only then.
        """
        return self.plan.pdl and index > 0

    def _ahead(self, weight: Tensor | None) -> Tensor | None:
        return weight if self.plan.looks_ahead else None

    def _next_first(self, index: int) -> Tensor:
        """The weights of the first products after a layer."""
        layers = self.model.layers
        return (layers[index + 1].first if index + 1 < len(layers) else self.model.head).values

    def _rkv_of(self, first: Tensor) -> Tensor:
        C = self.model.shape.width
        return first[: 3 * self.n_rows * C].view(3, self.n_rows, C)

    def _hidden_of(self, first: Tensor) -> Tensor:
        return first[3 * self.n_rows * self.model.shape.width :].view(self.n_rows, -1)

    def _product(
        self,
        x: Tensor,
        weight: Weight,
        out: Tensor,
        cut: Cut,
        what: int = kernels.NONE,
        *,
        ahead: Tensor | None = None,
    ) -> None:
        """``out`` is ``[n_splits, B, N]``."""
        pdl = self.plan.pdl
        if isinstance(cut, Gemv):
            self._gemv(x, weight, cut, out=out[0], what=what, ahead=ahead)
        elif isinstance(cut, Blocks):
            kernels.product(
                x,
                weight.values,
                out,
                cut,
                scales=weight.scales,
                what=what,
                pdl=pdl,
            )
        elif isinstance(cut, Mapped):
            if weight.scales is not None:
                raise ValueError("tensor maps are of weights in the model's dtype")
            kernels.mapped_product(x, weight.values, out, cut, what=what, pdl=pdl)
        elif what != kernels.NONE:
            raise ValueError("the library applies nothing to its products")
        else:
            n, matrix = cut.n_splits, plain(weight, self.model.scratch)
            if n == 1 and out.dtype != x.dtype:
                torch.mm(x, matrix.t(), out_dtype=out.dtype, out=out[0])
            elif n == 1:
                torch.mm(x, matrix.t(), out=out[0])
            else:
                left = x.view(self.n_rows, n, -1).transpose(0, 1)
                right = matrix.view(matrix.shape[0], n, -1).permute(1, 2, 0)
                torch.bmm(left, right, out_dtype=out.dtype, out=out)

    def _gemv(
        self,
        x: Tensor,
        weight: Weight,
        cut: Cut,
        *,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        what: int = kernels.NONE,
        tiles: Tiles | None = None,
        before: Before | None = None,
        move: Move | None = None,
        ahead: Tensor | None = None,
        pdl: bool | None = None,
    ) -> None:
        """``pdl``: None for what the plan says."""
        if not isinstance(cut, Gemv):
            raise ValueError(f"norms are fused into products of few rows only, not {cut}")
        kernels.gemv(
            x,
            weight.values,
            self.slots,
            scales=weight.scales,
            out=out,
            residual=residual,
            what=what,
            tiles=tiles,
            before=before,
            move=move,
            ahead=self._ahead(ahead),
            block_n=cut.n(x.shape[-1], weight.values.itemsize),
            n_warps=cut.n_warps,
            pdl=self.plan.pdl if pdl is None else pdl,
        )
