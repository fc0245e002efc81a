"""Prompts and decode steps on states with deferred writes, against writes at once.

On a GPU, and small in Triton's interpreter, in a process of its own.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.models.float64_step import relative
from tests.models.tiny_rwkv7 import Tiny, batch_of, random_weights, write_pth
from wkvm.core.layout import StateOptions
from wkvm.models.base import ModelInfo
from wkvm.models.rwkv7 import RING_FILL
from wkvm.models.rwkv7_params import load_parameters, read_shape
from wkvm.models.weights import open_checkpoint
from wkvm.state.arena import Arena

TOLERANCE = 1e-5
"""Relative norm, float32."""


class Session:
    """A model and its arena; prompts and decoded ids as an engine would absorb them."""

    def __init__(self, folder: Path, device: str, state: StateOptions) -> None:
        from wkvm.kernels.rwkv7_decode import Blocks
        from wkvm.models.rwkv7_decode import DecodeStep
        from wkvm.models.rwkv7_gpu import Rwkv7Gpu
        from wkvm.models.rwkv7_packed import Rwkv7Decode
        from wkvm.models.rwkv7_plans import Library, Plan

        width, size = (32, 16) if INTERPRETED else (128, 64)
        tiny = Tiny(width=width, head_size=size, ffn_width=64)
        checkpoint = open_checkpoint(write_pth(folder / "tiny.pth", random_weights(tiny)))
        shape = read_shape(checkpoint)
        parameters = {
            name: tensor.to(device).contiguous()
            for name, tensor in load_parameters(checkpoint, shape)
        }
        info = ModelInfo(
            name="rwkv7",
            vocab_size=shape.vocab_size,
            n_layers=shape.n_layers,
            width=shape.width,
            n_heads=shape.n_heads,
            head_size=shape.head_size,
            n_parameters=0,
            weight_bytes=0,
            dtype="float32",
            device=device,
            digest="0" * 64,
            eos_ids=(),
        )
        self.model = Rwkv7Gpu(info, Rwkv7Decode(shape, parameters), state=state)
        self.device = device
        self.arena = Arena(self.model.layout, 4, device)
        plan = None
        if INTERPRETED:
            # Products are tested elsewhere; here they are to take little time.
            own, library = Blocks(128, 16, 32), Library()
            plan = Plan(own, None, own, library, own, library, library, 1, pdl=False)
        self.step = DecodeStep(Rwkv7Decode(shape, parameters), 2, plan=plan)

    def prompt(self, slot: int, ids: Sequence[int]) -> Tensor:
        logits = self.model.forward(batch_of([(slot, list(ids))], self.device), self.arena.views)
        return logits.clone()

    def decode(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        self.step.slots.copy_(torch.tensor(slots))
        self.step.token_ids.copy_(torch.tensor(ids))
        self.step.launch(self.arena.views)
        return self.step.logits.clone()


@pytest.mark.parametrize("device", DEVICES)
def test_turns_of_prompts_and_answers_give_the_logits_of_writes_at_once(
    tmp_path: Path, device: str
) -> None:
    deferred, at_once = (
        Session(tmp_path, device, StateOptions(deferred=deferred)) for deferred in (True, False)
    )

    def check(logits: Sequence[Tensor]) -> None:
        assert relative(*logits) < TOLERANCE

    both = (deferred, at_once)
    check([one.prompt(2, [5, 7, 11, 13, 17]) for one in both])
    check([one.prompt(0, [3]) for one in both])
    for token_id in range(3):
        check([one.decode([0, 2], [token_id, token_id + 1]) for one in both])
    for token_id in range(7):
        check([one.decode([2, -1], [token_id, 0])[:1] for one in both])
    assert deferred.arena.views[RING_FILL][:3].tolist() == [[3], [0], [2]]
    # A prompt finds two tokens in the ring; a record is copied with three.
    check([one.prompt(2, [23, 29, 31]) for one in both])
    assert not deferred.arena.views[RING_FILL][2].any()
    for one in both:
        one.arena.copy(0, [3])
    for token_id in range(6):
        logits = [one.decode([0, 3], [token_id, token_id]) for one in both]
        check(logits)
        assert torch.equal(logits[0][0], logits[0][1])


@starts_the_interpreter
def test_deferred_writes_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "turns")
