"""The captured decode step against float64, and what it must leave alone.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.interpreter import (
    DEVICES,
    INTERPRETED,
    needs_triton,
    run_in_the_interpreter,
    starts_the_interpreter,
)
from tests.models.float64_step import Float64Step, relative
from tests.models.tiny_rwkv7 import Tiny, random_weights, write_pth
from wkvm.core.layout import StateLayout
from wkvm.kernels.weight import quantised
from wkvm.models.rwkv7 import layout_of
from wkvm.models.rwkv7_params import Rwkv7Shape, load_parameters, read_shape
from wkvm.models.weights import open_checkpoint
from wkvm.state.arena import Arena

TOLERANCE = 1e-5
"""Relative norm, float32; the bar of one layer."""

Loaded = tuple[Rwkv7Shape, dict[str, Tensor], StateLayout]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A random model whose sizes fill no block."""
    tiny = Tiny(width=128, head_size=64, ffn_width=160)
    path = write_pth(tmp_path_factory.mktemp("model") / "tiny.pth", random_weights(tiny))
    checkpoint = open_checkpoint(Path(path))
    shape = read_shape(checkpoint)
    parameters = dict(load_parameters(checkpoint, shape))
    return shape, parameters, layout_of(shape, "float32")


def unquantised(parameters: dict[str, Tensor], quantization: str) -> dict[str, Tensor]:
    """The matrices that a quantised model multiplies with."""
    large = ("receptance.weight", "key.weight", "value.weight", "output.weight")
    result = dict(parameters)
    for name, tensor in parameters.items():
        is_map = name.endswith(("att.w1", "att.a1", "att.v1", "att.g1"))
        if is_map or name.endswith(large):
            weight = quantised(tensor.t().contiguous() if is_map else tensor, quantization)
            scales = 1 if weight.scales is None else weight.scales[:, None]
            matrix = weight.values.float() * scales
            result[name] = matrix.t() if is_map else matrix
    return result


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("n_rows", "quantization"),
    [(3, "none"), (5, "none"), (6, "none"), (2, "int8"), (5, "fp8")]
    if INTERPRETED
    else [(n, q) for n in (1, 2, 4, 5, 17, 40, 70, 130) for q in ("none", "fp8", "int8")],
)
def test_a_step_meets_float64_and_touches_only_its_slots(
    loaded: Loaded, n_rows: int, quantization: str, device: str
) -> None:
    from wkvm.kernels.rwkv7_decode import Blocks, Mapped
    from wkvm.models.rwkv7_decode import DecodeStep
    from wkvm.models.rwkv7_packed import Rwkv7Decode
    from wkvm.models.rwkv7_plans import Cut, Gemv, Plan

    shape, on_cpu, layout = loaded
    parameters = {name: tensor.to(device).contiguous() for name, tensor in on_cpu.items()}
    model = Rwkv7Decode(shape, parameters, quantization=quantization)
    parameters = unquantised(parameters, quantization)
    plan = None
    if INTERPRETED:
        # To the interpreter a program with large blocks is little more than one with small ones.
        few = Gemv(16_384)
        block = Blocks(64, 16, 64)
        key: Cut = block
        split: Cut = Blocks(64, 16, 64, n_splits=2)
        if n_rows == 6 and quantization == "none":
            key, split = Mapped(64, 16, 64, n_programs=2), Mapped(64, 16, 64, n_splits=2)
        plan = Plan(block, None, block, split, key, split, key, wkv_warps=1, pdl=False)
        if n_rows <= 3:
            plan = Plan(few, None, None, few, few, few, few, 1, fuses_norms=True, pdl=False)
    step = DecodeStep(model, n_rows, plan=plan)
    draw = torch.Generator().manual_seed(n_rows)
    arena = Arena(layout, n_rows + 2, device)
    arena.poison(range(n_rows + 2))
    order = torch.randperm(n_rows + 2, generator=draw)[:n_rows]
    is_pad = torch.arange(n_rows) % 3 == 1
    live = (~is_pad).nonzero()[:, 0]
    named = order[live].to(device)
    for view in arena.views.values():
        view[named] = torch.randn(len(live), *view.shape[1:], generator=draw).to(device)
    before = arena.records.clone()
    step.slots.copy_(torch.where(is_pad, -1, order))
    states = {name: view[named] for name, view in arena.views.items()}
    exact = Float64Step(shape, parameters, model.table, states)
    for _ in range(2):
        ids = torch.randint(shape.vocab_size, (n_rows,), generator=draw)
        step.token_ids.copy_(ids)
        for buffer in step.buffers():
            buffer.fill_(float("nan"))
        step.launch(arena.views)
        residuals, logits = exact(ids[live].to(device))
        assert relative(step.logits[live], logits) < TOLERANCE
        assert relative(step.residual[live], residuals[-1]) < TOLERANCE
        for name, view in arena.views.items():
            assert relative(view[named], exact.states[name]) < TOLERANCE
    others = torch.ones(n_rows + 2, dtype=torch.bool)
    others[named.cpu()] = False
    assert torch.equal(arena.records[others], before[others])
    assert step.logits.isfinite().all()


@needs_triton
def test_memory_for_the_most_rows_holds_the_buffers_of_fewer_apart(loaded: Loaded) -> None:
    from wkvm.models.rwkv7_buffers import buffers_of, step_bytes, views_of
    from wkvm.models.rwkv7_packed import Rwkv7Decode

    shape, parameters, _ = loaded
    model = Rwkv7Decode(shape, parameters)
    memory = torch.zeros(step_bytes(model, 70), dtype=torch.uint8)
    for n_rows in (1, 5, 64, 70):
        buffers = buffers_of(model, n_rows, model.plan_of(n_rows))
        views = views_of(memory, buffers)
        for value, view in enumerate(views.values()):
            view.fill_(value)
        assert all(bool((view == value).all()) for value, view in enumerate(views.values()))
        with pytest.raises(ValueError, match="do not fit"):
            views_of(memory[:1000], buffers)


@starts_the_interpreter
def test_the_step_passes_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "float64")
