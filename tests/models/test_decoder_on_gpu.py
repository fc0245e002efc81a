"""A model of every architecture on a GPU: prompts as they come, decode steps as a graph replays."""

import pytest
import torch

from tests.engine.families import CONFIGS

pytestmark = pytest.mark.gpu

if torch.cuda.is_available():
    from wkvm_bench.random_weights import random_decoder

    from wkvm.kernels.rows import Rows
    from wkvm.models.base import Batch
    from wkvm.models.decoder import Decoder
    from wkvm.state.arena import Arena

    LENGTHS, SLOTS = (3, 1, 70), (2, 0, 3)
    TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-3}
    """By relative norm."""

    TIMES_A_CPU = 1.5
    """How much larger the error may be than that of a CPU in the same dtype: of some of these small
    models half of their digits are lost in bfloat16, and experts are chosen by what is left."""

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
        """The logits after each token of a prompt in each slot of ``SLOTS``, beside a pad row."""
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

    class Replayed:
        """A decode step of four rows in a graph, captured on pad rows."""

        def __init__(self, model: Decoder, arena: Arena) -> None:
            step = model.decode_step(4)
            assert step is not None
            self._step = step
            self._graph = torch.cuda.CUDAGraph()
            with torch.inference_mode():
                step.launch(arena.views)
                torch.cuda.synchronize()
                with torch.cuda.graph(self._graph):
                    step.launch(arena.views)
                step.slots[:3] = torch.tensor(SLOTS, dtype=torch.int32)

        def __call__(self, ids: torch.Tensor) -> torch.Tensor:
            """The logits after one more token each."""
            with torch.inference_mode():
                self._step.token_ids[:3] = ids.to("cuda")
                self._graph.replay()
                return self._step.logits[:3].clone()

    def decoded(model: Decoder, arena: Arena, ids: torch.Tensor) -> torch.Tensor:
        """The same step on a CPU."""
        slots = torch.tensor(SLOTS, dtype=torch.int32)
        with torch.inference_mode():
            return model.run(ids, Rows(slots, SLOTS, (1, 1, 1)), arena.views)

    def error(given: torch.Tensor, expected: torch.Tensor) -> float:
        """By relative norm."""
        exact = expected.double()
        return float((given.cpu().double() - exact).norm() / exact.norm().clamp(min=1e-30))

    @pytest.mark.parametrize("dtype", list(TOLERANCE))
    @pytest.mark.parametrize("model_type", list(CONFIGS))
    def test_it_gives_what_a_cpu_gives(model_type: str, dtype: torch.dtype) -> None:
        config = CONFIGS[model_type]
        exact = random_decoder(config, device="cpu", dtype=torch.float32)
        on_cpu = random_decoder(config, device="cpu", dtype=dtype)
        model = random_decoder(config, device="cuda", dtype=dtype, drawn_on="cpu")
        # No two experts of a token are as good as each other but for rounding.
        draw = torch.Generator().manual_seed(2)
        ids = torch.randint(3, 90, (sum(LENGTHS) + 2,), generator=draw)
        arenas = [arena_of(one) for one in (model, on_cpu, exact)]
        step = Replayed(model, arenas[0])
        found = [
            [absorbed(one, arena, ids)]
            for one, arena in zip((model, on_cpu, exact), arenas, strict=True)
        ]
        for _ in range(3):
            more = torch.randint(3, 90, (3,), generator=draw)
            found[0].append(step(more))
            found[1].append(decoded(on_cpu, arenas[1], more))
            found[2].append(decoded(exact, arenas[2], more))
        for spec in exact.layout.tensors:
            for tensors, arena in zip(found, arenas, strict=True):
                tensors.append(arena.views[spec.name])
        errors, of_cpu = (list(map(error, found[at], found[2])) for at in (0, 1))
        assert max(errors) < TOLERANCE[dtype] + TIMES_A_CPU * max(of_cpu)
