"""Deterministic decode steps on a GPU: a row's bits are its own, whatever is beside it."""

import random

import pytest
import torch
from torch import Tensor

from tests.models.tiny_rwkv7 import Tiny, random_weights, write_pth
from wkvm.models.rwkv7 import layout_of
from wkvm.models.rwkv7_params import Rwkv7Shape, load_parameters, read_shape
from wkvm.models.weights import open_checkpoint
from wkvm.state.arena import Arena

pytestmark = pytest.mark.gpu

BUCKETS = (1, 3, 16, 20, 32, 40, 65, 128, 160, 300)
N_STEPS = 3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rwkv7Shape, dict[str, Tensor]]:
    """Sizes that fill no block, and sums long enough to be cut."""
    tiny = Tiny(width=320, ffn_width=1120, vocab_size=1000, ranks=(32, 40, 16, 64))
    path = write_pth(tmp_path_factory.mktemp("model") / "tiny.pth", random_weights(tiny))
    checkpoint = open_checkpoint(path)
    shape = read_shape(checkpoint)
    return shape, dict(load_parameters(checkpoint, shape))


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        ("bfloat16", "none"),
        ("float16", "none"),
        ("float32", "none"),
        ("bfloat16", "fp8"),
        ("bfloat16", "int8"),
    ],
)
def test_a_rows_bits_depend_on_no_bucket_slot_or_stranger(
    loaded: tuple[Rwkv7Shape, dict[str, Tensor]], dtype: str, quantization: str
) -> None:
    from wkvm.models.rwkv7_decode import DecodeStep
    from wkvm.models.rwkv7_packed import Rwkv7Decode

    shape, on_cpu = loaded
    torch_dtype = getattr(torch, dtype)
    parameters = {name: t.to("cuda", torch_dtype).contiguous() for name, t in on_cpu.items()}
    model = Rwkv7Decode(shape, parameters, quantization=quantization, deterministic=True)
    layout = layout_of(shape, dtype)
    draw = torch.Generator().manual_seed(1)
    subjects = torch.randn(2, layout.record_bytes // 4, generator=draw)
    ids = torch.randint(shape.vocab_size, (2, N_STEPS), generator=draw)
    found = dict[str, Tensor]()
    for n_rows in BUCKETS:
        chance = random.Random(n_rows)
        arena = Arena(layout, n_rows + 2, "cuda")
        for view in arena.views.values():
            size = view.shape
            view.copy_(torch.randn(size, generator=draw).to(view.dtype) * chance.choice((0.1, 10)))
        slots = chance.sample(range(n_rows + 2), n_rows)
        rows = chance.sample(range(n_rows), min(2, n_rows))
        for which, row in enumerate(rows):
            _put(arena, slots[row], subjects[which])
        step = DecodeStep(model, n_rows)
        is_pad = [row not in rows and chance.random() < 0.2 for row in range(n_rows)]
        padded = [-1 if pad else slot for pad, slot in zip(is_pad, slots, strict=True)]
        logits = list[Tensor]()
        for t in range(N_STEPS):
            token_ids = torch.randint(shape.vocab_size, (n_rows,), generator=draw)
            for which, row in enumerate(rows):
                token_ids[row] = ids[which, t]
            step.token_ids.copy_(token_ids)
            step.slots.copy_(torch.tensor(padded, dtype=torch.int32))
            step.launch(arena.views)
            logits.append(step.logits[rows].clone())
        for which, row in enumerate(rows):
            results = {f"logits {which}": torch.stack([part[which] for part in logits])}
            for name, view in arena.views.items():
                results[f"{name} {which}"] = view[slots[row]].clone()
            for name, value in results.items():
                assert value.isfinite().all(), (name, n_rows)
                assert torch.equal(found.setdefault(name, value), value), (name, n_rows)


def _put(arena: Arena, slot: int, numbers: Tensor) -> None:
    """Into every tensor of a slot, the first of these numbers."""
    for view in arena.views.values():
        target = view[slot]
        target.copy_(numbers[: target.numel()].view(target.shape).to(view.dtype))
