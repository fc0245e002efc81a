"""A model of every architecture through the kernels of a GPU, prompts and captured steps alike."""

import pytest
import torch

from tests.interpreter import INTERPRETED, run_in_the_interpreter, starts_the_interpreter


QUICK = ("mamba2", "qwen3_5_moe_text")
"""Which between them have experts, attention and both kinds of mixers; the others take minutes."""


@starts_the_interpreter
def test_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, f"cpu and ({' or '.join(QUICK)})")


@pytest.mark.slow
@starts_the_interpreter
def test_all_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "cpu")


if INTERPRETED or torch.cuda.is_available():
    from wkvm_bench.random_weights import random_decoder

    from tests.engine.families import CONFIGS
    from tests.interpreter import DEVICES
    from wkvm.kernels import gpu
    from wkvm.kernels.rows import Rows
    from wkvm.models.base import Batch
    from wkvm.models.decoder import Decoder, DecoderStep
    from wkvm.state.arena import Arena

    LENGTHS, SLOTS = (3, 1, 9), (2, 0, 3)

    def arena_of(model: Decoder) -> Arena:
        """Four slots of two pages each, which do not follow each other."""
        if model.layout.guest is None:
            return Arena(model.layout, 4, model.info.device)
        arena = Arena(model.layout, 4, model.info.device, n_pages=8)
        assert arena.pool is not None
        for slot in range(4):
            arena.pool.grant(slot, (7 - slot, slot))
        return arena

    def absorbed(model: Decoder, arena: Arena, ids: torch.Tensor) -> torch.Tensor:
        """The logits after each token of a prompt in each slot of ``SLOTS``, and of a pad row."""
        device = model.info.device
        slots = (*SLOTS, -1)
        batch = Batch(
            ids.to(device),
            torch.tensor(slots, dtype=torch.int32, device=device),
            (*LENGTHS, 2),
            slots,
            torch.arange(sum(LENGTHS), device=device),
        )
        return model.forward(batch, arena.views)

    def stepped(model: Decoder, arena: Arena, ids: torch.Tensor) -> torch.Tensor:
        """The logits after one more token each, and a pad row's, as a graph would replay it."""
        device = model.info.device
        step = DecoderStep(model, torch.zeros(4, model.info.vocab_size, device=device))
        step.token_ids[:3] = ids
        step.slots[:3] = torch.tensor(SLOTS, dtype=torch.int32)
        step.launch(arena.views)
        return step.logits[:3]

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("model_type", list(CONFIGS))
    def test_it_is_what_the_kernels_of_a_cpu_give(model_type: str, device: str) -> None:
        config = CONFIGS[model_type]
        exact = random_decoder(config, device="cpu", dtype=torch.float32)
        given = random_decoder(
            config, device=device, dtype=torch.float32, drawn_on="cpu", kernels=gpu
        )
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(3, 90, (sum(LENGTHS) + 2,), generator=draw)
        arenas = arena_of(exact), arena_of(given)
        logits = [
            absorbed(model, arena, ids) for model, arena in zip((exact, given), arenas, strict=True)
        ]
        for _ in range(2):
            more = torch.randint(3, 90, (3,), generator=draw)
            logits.append(decoded(exact, arenas[0], more))
            logits.append(stepped(given, arenas[1], more))
        for one, two in zip(logits[::2], logits[1::2], strict=True):
            torch.testing.assert_close(two.cpu(), one, atol=2e-4, rtol=2e-4)
        for spec in exact.layout.tensors:
            one, two = (arena.views[spec.name].cpu() for arena in arenas)
            torch.testing.assert_close(two, one, atol=2e-4, rtol=2e-4)

    def decoded(model: Decoder, arena: Arena, ids: torch.Tensor) -> torch.Tensor:
        """The same step by the kernels of a CPU."""
        slots = torch.tensor(SLOTS, dtype=torch.int32)
        with torch.inference_mode():
            return model.run(ids, Rows(slots, SLOTS, (1, 1, 1)), arena.views)
