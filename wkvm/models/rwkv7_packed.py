"""The weights of RWKV-7, packed as the kernels of a decode step take them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, pad

from wkvm.kernels import rwkv7_decode as kernels
from wkvm.kernels.rwkv7_decode import Group
from wkvm.kernels.weight import Weight, quantised
from wkvm.models.rwkv7_params import Rwkv7Shape
from wkvm.models.rwkv7_plans import Plan, plan_of

RANK_STEP = 32
"""Ranks are filled up with zeros to a multiple of this, which is what a product advances by."""

OVERHANG = 128
"""Rows of zeros after packed weights: a block at the end of a group reads beyond it."""

MIX_ORDER = (0, 2, 3, 1, 4, 5)
"""Where r, k, v, w, a, g are among the mixes of a checkpoint; the order here. So the inputs of the
three large products lie together."""


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """The weights of one layer, packed as the kernels take them; matrices are ``[out, in]``.

    Attributes:
        first: r, k, v and the first stages of the low-rank maps v, w, a, g, and ``OVERHANG``.
        second: the second stages of these four, flat, and an overhang; never quantised.
        vectors: ``[8, C]`` float32, as ``kernels.wkv`` takes them.
    """

    ln1: tuple[Tensor, Tensor]
    mixes: Tensor
    first: Weight
    second: Tensor
    vectors: Tensor
    output: Weight
    ln2: tuple[Tensor, Tensor]
    ffn_mix: Tensor
    ffn_key: Weight
    ffn_value: Weight


class Rwkv7Decode:
    """The packed weights of one model.

    Quantised are the large matrices of the layers, with them the first stages of the low-rank
    maps. The head is not: of all matrices it moves the most probable id most.

    Attributes:
        scratch: flat, as large as the largest quantised matrix: for ``dequantise.plain``. None
            where nothing is quantised.
    """

    def __init__(
        self,
        shape: Rwkv7Shape,
        parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        *,
        quantization: str = "none",
        deterministic: bool = False,
    ) -> None:
        """Pack a layer at a time.

        Args:
            parameters: as ``load_parameters`` yields them, in one dtype on a GPU. Of those that
                come one by one, a layer's are dropped when they have been packed.
            quantization, deterministic: as in ``EngineConfig``.
        """
        self.shape = shape
        self.quantization = quantization
        self.deterministic = deterministic
        self.ranks = tuple(-(-(shape.ranks[c] or 1) // RANK_STEP) * RANK_STEP for c in "vwag")
        items: Iterable[tuple[str, Tensor]]
        if isinstance(parameters, Mapping):
            items = cast("Mapping[str, Tensor]", parameters).items()
        else:
            items = parameters
        outer, layers = dict[str, Tensor](), list[PackedLayer]()
        for block, of_block in _by_block(items):
            if block:
                layers.append(self._packed(of_block, block))
            else:
                outer |= of_block
        self.vectors = torch.stack([layer.vectors for layer in layers])
        self.layers = tuple(
            replace(layer, vectors=vectors)
            for layer, vectors in zip(layers, self.vectors, strict=True)
        )
        embedding = outer["emb.weight"]
        self.dtype, self.device = embedding.dtype, embedding.device
        norm = outer["blocks.0.ln0.weight"], outer["blocks.0.ln0.bias"]
        self.table = layer_norm(embedding, (shape.width,), *norm, shape.layer_norm_eps)
        self.head = Weight(embedding if shape.tied else outer["head.weight"])
        self.ln_out = outer["ln_out.weight"], outer["ln_out.bias"]
        self.scratch: Tensor | None = None
        if quantization != "none":
            layer = self.layers[0]
            largest = max(layer.first.values.numel(), layer.ffn_key.values.numel())
            self.scratch = self.table.new_empty(largest)

    def plan_of(self, n_rows: int) -> Plan:
        """Which kernels make a decode step of ``n_rows`` rows."""
        return plan_of(
            n_rows,
            self.dtype.itemsize,
            width=self.shape.width,
            is_quantised=self.quantization != "none",
            is_deterministic=self.deterministic,
        )

    def first_groups(self, n_rows: int) -> list[Group]:
        """Of ``first``, for outputs ``[3, B, C]`` and after them ``[B, ranks]``."""
        C = self.shape.width
        groups = [Group(i, 0, i * C * C, C, C, i * n_rows * C, C, kernels.NONE) for i in range(3)]
        return groups + self.hidden_groups(3 * C * C, 3 * n_rows * C)

    def hidden_groups(self, weight: int = 0, out: int = 0) -> list[Group]:
        """Of the first stages of the low-rank maps, for outputs ``[B, ranks]``."""
        C = self.shape.width
        inputs = (2, 3, 4, 5)
        whats = (kernels.NONE, kernels.TANH, kernels.NONE, kernels.SIGMOID)
        groups = list[Group]()
        for index, rank, what in zip(inputs, self.ranks, whats, strict=True):
            groups.append(Group(index, 0, weight, C, rank, out, sum(self.ranks), what))
            weight += rank * C
            out += rank
        return groups

    def second_groups(self) -> list[Group]:
        """Of the second stages, for inputs ``[B, ranks]`` and outputs ``[B, 4, C]``."""
        C = self.shape.width
        groups, column, weight = list[Group](), 0, 0
        for index, rank in enumerate(self.ranks):
            groups.append(Group(0, column, weight, rank, C, index * C, 4 * C, kernels.NONE))
            column += rank
            weight += rank * C
        return groups

    def _packed(self, parameters: Mapping[str, Tensor], prefix: str) -> PackedLayer:
        C = self.shape.width

        def get(name: str) -> Tensor:
            return parameters[prefix + name]

        def norm(name: str) -> tuple[Tensor, Tensor]:
            return get(f"{name}.weight"), get(f"{name}.bias")

        like = get("ln1.weight")
        first = [get(f"att.{name}.weight") for name in ("receptance", "key", "value")]
        second = list[Tensor]()
        for letter, rank in zip("vwag", self.ranks, strict=True):
            # The first layer has no value residual.
            has_map = f"{prefix}att.{letter}1" in parameters
            one = get(f"att.{letter}1").t() if has_map else like.new_zeros(0, C)
            two = get(f"att.{letter}2").t() if has_map else like.new_zeros(C, 0)
            first.append(pad(one, (0, 0, 0, rank - one.shape[0])))
            second.append(pad(two, (0, rank - two.shape[1])).flatten())
        first.append(like.new_zeros(OVERHANG, C))
        second.append(like.new_zeros(OVERHANG * max(self.ranks)))
        zeros = torch.zeros(C, device=like.device)
        v0 = get("att.v0") if prefix + "att.v0" in parameters else zeros
        names = ("k_k", "k_a", "r_k", "ln_x.weight", "ln_x.bias")
        vectors = [get("att.w0"), get("att.a0"), v0, *(get(f"att.{name}") for name in names)]
        return PackedLayer(
            ln1=norm("ln1"),
            mixes=get("att.x")[list(MIX_ORDER)],
            first=quantised(torch.cat(first), self.quantization),
            second=torch.cat(second),
            vectors=torch.stack([vector.float().flatten() for vector in vectors]),
            output=quantised(get("att.output.weight"), self.quantization),
            ln2=norm("ln2"),
            ffn_mix=get("ffn.x_k").view(1, C),
            ffn_key=quantised(get("ffn.key.weight"), self.quantization),
            ffn_value=quantised(get("ffn.value.weight"), self.quantization),
        )


def _by_block(
    parameters: Iterable[tuple[str, Tensor]],
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """What comes together of each block, with its prefix; with none what is of no block.

    The norm of the embedding is of none, though it is named like one of the first block.
    """
    block, held = "", dict[str, Tensor]()
    for name, tensor in parameters:
        is_outer = not name.startswith("blocks.") or ".ln0." in name
        prefix = "" if is_outer else ".".join(name.split(".")[:2]) + "."
        if prefix != block:
            yield block, held
            block, held = prefix, {}
        held[name] = tensor
    yield block, held
