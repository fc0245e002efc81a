"""Where and when kernels of a GPU read and write: aligned, inside their tensors, after others.

For released shapes, whose weights are tensors without memory.
"""

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from wkvm.core.layout import StateOptions
from wkvm.engine.graphs import BUCKETS
from wkvm.models.rwkv7 import layout_of
from wkvm.models.rwkv7_params import Rwkv7Shape
from wkvm.state.arena import Arena

if TYPE_CHECKING:
    from wkvm.kernels.rwkv7_decode import Tiles
    from wkvm.models.rwkv7_packed import Rwkv7Decode

# Found, not imported: Triton prints at the end of each process that imported it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

WIDEST = 16
"""Bytes of the widest access of a thread, and of what the copy engine moves."""

HINT = 16
"""Elements that the kernels take offsets of tiles to be multiples of."""

BOX = 256
"""Elements of an axis of a tensor map's block, at most."""

SIZES = {
    "bundled": (320, 4096, (32, 32, 32, 64)),
    "1.5B": (2048, 65_536, (96, 96, 64, 256)),
    "7.2B": (4096, 65_536, (128, 128, 96, 480)),
}
"""Width, ids, ranks of the maps w, a, v, g."""

KINDS = [
    (size, dtype, quantization, deterministic)
    for size, dtype, (quantization, deterministic) in product(
        SIZES,
        (torch.bfloat16, torch.float16, torch.float32),
        (("none", False), ("none", True), ("fp8", False), ("int8", True)),
    )
]


def shape_of(size: str) -> Rwkv7Shape:
    C, V, ranks = SIZES[size]
    return Rwkv7Shape(
        vocab_size=V,
        n_layers=2,
        width=C,
        n_heads=C // 64,
        head_size=64,
        ffn_width=4 * C,
        ranks=dict(zip("wavg", ranks, strict=True)),
        layer_norm_eps=1e-5,
        group_norm_eps=64e-5,
        tied=False,
        n_parameters=0,
    )


def weightless(
    size: str, dtype: torch.dtype, quantization: str, deterministic: bool
) -> "Rwkv7Decode":
    """A packed model of two layers on no device."""
    from wkvm.models.rwkv7_packed import Rwkv7Decode

    shape = shape_of(size)
    parameters = {
        name: torch.empty(sizes, dtype=dtype, device="meta") for name, sizes in parameters_of(shape)
    }
    return Rwkv7Decode(shape, parameters, quantization=quantization, deterministic=deterministic)


def parameters_of(shape: Rwkv7Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    C, V, F, H = shape.width, shape.vocab_size, shape.ffn_width, shape.n_heads
    yield "emb.weight", (V, C)
    for name in ("blocks.0.ln0", "ln_out"):
        yield f"{name}.weight", (C,)
        yield f"{name}.bias", (C,)
    yield "head.weight", (V, C)
    for index in range(shape.n_layers):
        block = f"blocks.{index}."
        for name in ("ln1", "ln2", "att.ln_x"):
            yield f"{block}{name}.weight", (C,)
            yield f"{block}{name}.bias", (C,)
        yield f"{block}att.x", (6, C)
        for letter in "wavg" if index else "wag":
            yield f"{block}att.{letter}1", (C, shape.ranks[letter])
            yield f"{block}att.{letter}2", (shape.ranks[letter], C)
        for name in ("w0", "a0", "k_k", "k_a", *(("v0",) if index else ())):
            yield f"{block}att.{name}", (C,)
        yield f"{block}att.r_k", (H, C // H)
        for name in ("receptance", "key", "value", "output"):
            yield f"{block}att.{name}.weight", (C, C)
        yield f"{block}ffn.x_k", (C,)
        yield f"{block}ffn.key.weight", (F, C)
        yield f"{block}ffn.value.weight", (C, F)


def place_of(tensor: Tensor) -> tuple[int, int]:
    """First byte and the one after the last, in the tensor's memory."""
    start = int(tensor.storage_offset()) * tensor.itemsize
    return start, start + tensor.nbytes


def assert_apart(tensors: Iterable[Tensor]) -> None:
    for (_, end), (start, _) in pairwise(sorted(map(place_of, tensors))):
        assert end <= start


def assert_fits(
    tiles: "Tiles",
    weight: Tensor,
    inputs: Tensor,
    out_size: int,
    n_rows: int,
    *,
    is_gemv: bool = False,
) -> None:
    """All rows, and all weights of a block, whatever is left of its group, but for ``gemv``."""
    for index, column, at, length, out, stride, columns in tiles.table.tolist():
        n = columns // 4
        assert at % HINT == 0
        if not is_gemv:
            assert [x % HINT for x in (column, length, out, stride, n)] == [0] * 5
        assert at + (n if is_gemv else tiles.n) * length <= weight.numel()
        assert index * inputs[0].numel() + column + length <= inputs.numel()
        assert out + (n_rows - 1) * stride + n <= out_size


@pytest.mark.parametrize(("size", "dtype", "quantization", "deterministic"), KINDS)
def test_decode_steps_of_all_buckets_stay_inside_their_memory(
    size: str, dtype: torch.dtype, quantization: str, deterministic: bool
) -> None:
    from wkvm.kernels.rwkv7_decode import Mapped, tiles_of
    from wkvm.models.rwkv7_buffers import ALIGNMENT, buffers_of, step_bytes, views_of
    from wkvm.models.rwkv7_plans import Gemv, Library

    model = weightless(size, dtype, quantization, deterministic)
    layer, C = model.layers[1], model.shape.width
    memory = torch.empty(step_bytes(model, BUCKETS[-1]), dtype=torch.uint8, device="meta")
    for B in BUCKETS:
        plan = model.plan_of(B)
        views = views_of(memory, buffers_of(model, B, plan))
        assert_apart(views.values())
        assert all(place_of(view)[0] % ALIGNMENT == 0 for view in views.values())
        first = views["firsts"][1]
        rkv, hidden = first[: 3 * B * C].view(3, B, C), first[3 * B * C :].view(B, -1)
        assert place_of(first)[0] % WIDEST == place_of(hidden)[0] % WIDEST == 0
        assert_apart([views["firsts"][0], rkv, hidden])
        mixed = views.get("mixed", torch.empty(6, B, C, device="meta"))
        if plan.hidden is not None:
            weight = layer.first.rows(3 * C)
            tiles = tiles_of(model.hidden_groups(), plan.hidden.n, "cpu")
            assert_fits(tiles, weight.values, mixed, hidden.numel(), B)
        elif not isinstance(plan.first, Library):
            cut, values = plan.first, layer.first.values
            is_gemv = isinstance(cut, Gemv)
            n = cut.n(C, values.itemsize) if isinstance(cut, Gemv) else cut.n
            tiles = tiles_of(model.first_groups(B), n, "cpu")
            assert_fits(tiles, values, mixed, first.numel(), B, is_gemv=is_gemv)
        if plan.second is not None:
            tiles = tiles_of(model.second_groups(), plan.second.n, "cpu")
            assert_fits(tiles, layer.second, hidden.unsqueeze(0), views["second"].numel(), B)
        for one in (plan.first, plan.output, plan.key, plan.value, plan.head):
            if isinstance(one, Mapped):
                assert max(one.n, one.b, one.k) <= BOX
                assert one.k * dtype.itemsize % WIDEST == 0


@pytest.mark.parametrize(("size", "dtype", "quantization", "deterministic"), KINDS)
def test_captured_prompts_stay_inside_their_memory(
    size: str, dtype: torch.dtype, quantization: str, deterministic: bool
) -> None:
    from wkvm.kernels.rwkv7_decode import tiles_of
    from wkvm.models.rwkv7_buffers import ALIGNMENT
    from wkvm.models.rwkv7_prefill import HIDDEN_NS, Buffers, Prefill
    from wkvm.models.rwkv7_prefill_step import STEP_ROWS, STEP_TOKENS, step_bytes

    model = weightless(size, dtype, quantization, deterministic)
    layer, C = model.layers[1], model.shape.width
    prefill = Prefill(model)
    memory = torch.empty(step_bytes(model, prefill), dtype=torch.uint8, device="meta")
    for T in STEP_TOKENS:
        buffers = Buffers(model, T, T // prefill.chunk + STEP_ROWS, memory)
        effects = [getattr(buffers.effects, field.name) for field in fields(buffers.effects)]
        own = [buffers.x, buffers.mixed, buffers.rkv, buffers.hidden, buffers.second]
        assert_apart([*own, buffers.entering, buffers.lasts, *effects[2:]])
        assert_apart([buffers.effects.reads, buffers.effects.own, buffers.y])
        assert_apart([buffers.ffn_mixed, buffers.ffn_hidden])
        starts = map(place_of, (*own, buffers.entering, buffers.lasts, *effects[2:]))
        assert all(start % ALIGNMENT == 0 for start, _ in starts)
        for n in HIDDEN_NS:
            tiles = tiles_of(model.hidden_groups(), n, "cpu")
            low = layer.first.rows(3 * C).values
            assert_fits(tiles, low, buffers.mixed, buffers.hidden.numel(), T)
        for n in (64, 128):
            tiles, hidden = tiles_of(model.second_groups(), n, "cpu"), buffers.hidden.unsqueeze(0)
            assert_fits(tiles, layer.second, hidden, buffers.second.numel(), T)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("deferred", [False, True])
def test_what_a_record_holds_of_each_layer_is_aligned(
    size: str, dtype: str, deferred: bool
) -> None:
    layout = layout_of(shape_of(size), dtype, StateOptions(dtype, deferred))
    arena = Arena(layout, 3, "meta")
    for view in arena.views.values():
        for of_layer in view.unbind(1):
            assert place_of(of_layer)[0] % WIDEST == 0
            assert of_layer.stride(0) * of_layer.itemsize % WIDEST == 0
            assert of_layer.stride(0) < 2**31


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("n_rows", [1, 8, 32, 64])
def test_the_first_launch_of_a_step_waits_for_who_wrote_its_slots(
    monkeypatch: pytest.MonkeyPatch, n_rows: int, deferred: bool
) -> None:
    """All launches read slots before they wait for the one before, which may have written them."""
    from wkvm.kernels import rwkv7_decode as kernels
    from wkvm.models.rwkv7_decode import DecodeStep

    overlaps = list[bool]()

    def launched(*_: object, pdl: bool = False, **__: object) -> None:
        overlaps.append(pdl)

    for name in ("mix", "gemv", "product", "mapped_product", "wkv"):
        monkeypatch.setattr(kernels, name, launched)
    monkeypatch.setattr(kernels, "begin_ring", lambda *_: None)
    model = weightless("1.5B", torch.bfloat16, "none", False)
    layout = layout_of(model.shape, "bfloat16", StateOptions(deferred=deferred))
    DecodeStep(model, n_rows).launch(Arena(layout, n_rows, "meta").views)
    assert overlaps[0] is False
    assert all(overlaps[1:])
