"""Deferred writes against writes at once: in Triton's interpreter, small, and on a GPU."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.interpreter import DEVICES, INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from tests.models.float64_step import relative
from wkvm.kernels.ring import fold as plain_fold

H, K = (1, 16) if INTERPRETED else (3, 64)
N_STEPS = 17 if INTERPRETED else 400
N_SLOTS, R = 6, 8
TOLERANCE = 1e-5
"""Relative norm, float32, over hundreds of steps."""

STATE_BARS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Relative norm over hundreds of steps, of outputs and states, by the dtype of the states."""


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Kept:
    """One layer of states, as a kernel finds it: in records that are wider."""

    def __init__(self, device: str, *, deferred: bool, state: torch.dtype = torch.float32) -> None:
        self.device = device
        self.state = torch.zeros(N_SLOTS, 2, H, K, K, dtype=state, device=device)[:, 1]
        # What is not in use is never read.
        entries = torch.full((N_SLOTS, 2, H, R - 1, 4, K), float("nan"), device=device)
        self.entries = entries[:, 1]
        self.fill = torch.zeros(N_SLOTS, 3, dtype=torch.int32, device=device)[:, 1:2]
        self.deferred = deferred
        self.vectors = random(8, H * K, seed=1).to(device) * 0.5

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Absorb one token of each row; the inputs are a function of the token."""
        from wkvm.kernels.rwkv7_decode import Ring, begin_ring, wkv

        C = H * K
        drawn = torch.stack([random(10, C, seed=token) for token in tokens]).to(self.device)
        rkv, first = (drawn[:, i : i + 3].transpose(0, 1).contiguous() for i in (0, 3))
        second = drawn[:, 6:].contiguous()
        named = torch.tensor(slots, dtype=torch.int32, device=self.device)
        ring = None
        if self.deferred:
            rows = torch.empty(3, len(slots), dtype=torch.int32, device=self.device)
            begin_ring(named, self.fill, rows, R)
            ring = Ring(self.entries, rows)
        y = torch.full((len(slots), C), float("nan"), device=self.device)
        wkv(
            rkv,
            first,
            second,
            self.vectors,
            (32, 32, 32, 32),
            y,
            self.state,
            named,
            64e-5,
            second=second,
            is_first=False,
            ring=ring,
            n_warps=1,
        )
        return y

    def fold(self, slots: Sequence[int]) -> None:
        from wkvm.kernels.rwkv7_decode import fold

        named = torch.tensor(slots, dtype=torch.int32, device=self.device)
        entries, vectors = self.entries[:, None], self.vectors[None]
        fold(self.state[:, None], entries, self.fill, vectors, named)

    def bits(self, slot: int) -> list[Tensor]:
        """Everything that is kept of a slot and in use."""
        if not self.deferred:
            return [self.state[slot].clone()]
        fill = self.fill[slot]
        used = self.entries[slot, :, : int(fill[0])]
        return [self.state[slot].clone(), fill.clone(), used.clone()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_and_states_are_those_of_writes_at_once_in_any_phase(device: str) -> None:
    deferred, at_once = Kept(device, deferred=True), Kept(device, deferred=False)
    for kept in (deferred, at_once):
        kept.state[0] = float("nan")
    for t in range(N_STEPS):
        # Slot 4 takes part in two steps of three, so the rows are in different phases.
        slots = [5, -1, 4 if t % 3 else -1]
        tokens = [3 * t, 3 * t + 1, 3 * t + 2]
        y, expected = (kept.step(slots, tokens) for kept in (deferred, at_once))
        assert relative(y, expected) < TOLERANCE
        assert not y[1].any()
    assert (deferred.fill[5] == N_STEPS % R).all()
    deferred.fold([5, -1, 4])
    assert not deferred.fill.any()
    for slot in (4, 5):
        assert relative(deferred.state[slot], at_once.state[slot]) < TOLERANCE
    assert deferred.state[0].isnan().all()
    assert not deferred.state[1:4].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_full", [0, 1, 3, 5, 9])
def test_a_step_counts_its_tokens_and_takes_every_row_once(device: str, n_full: int) -> None:
    from wkvm.kernels.rwkv7_decode import begin_ring

    before = torch.tensor([7] * n_full + [0, 6, 1, 2, 3, 4, 5][: 10 - n_full], dtype=torch.int32)
    before = before[torch.randperm(len(before), generator=torch.Generator().manual_seed(n_full))]
    fill = before.to(device, copy=True).view(-1, 1)
    slots = torch.tensor([-1, *range(len(before) - 1)], dtype=torch.int32, device=device)
    rows = torch.full((3, len(slots)), -9, dtype=torch.int32, device=device)
    begin_ring(slots, fill, rows, R)
    taken, their_slots, n = rows.cpu()
    assert sorted(taken.tolist()) == list(range(len(slots)))
    assert torch.equal(their_slots, slots.cpu()[taken])
    assert torch.equal(n, torch.where(their_slots < 0, 0, before[their_slots]))
    expected = torch.where(before == 7, 0, before + 1)
    expected[-1] = before[-1]
    assert torch.equal(fill[:, 0].cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_is_written_once_in_eight_tokens(device: str) -> None:
    kept = Kept(device, deferred=True)
    before = kept.state[2].clone()
    for token in range(2 * R):
        kept.step([2], [token])
        if token % R == R - 1:
            assert not torch.equal(kept.state[2], before)
            before = kept.state[2].clone()
        assert torch.equal(kept.state[2], before)


@pytest.mark.parametrize("device", DEVICES)
def test_bits_are_a_function_of_the_tokens_and_the_folds(device: str) -> None:
    alone, among = Kept(device, deferred=True), Kept(device, deferred=True)
    among.step([1, 3], [70, 71])
    for token in range(13):
        if token == 5:
            alone.fold([2])
            among.fold([1, 2])
        y = alone.step([2], [token])
        assert torch.equal(among.step([3, 2, 1], [80 + token, token, 90])[1:2], y)
        assert same(alone.bits(2), among.bits(2))


@pytest.mark.parametrize("device", DEVICES)
def test_the_fold_in_plain_torch_is_that_of_the_kernel(device: str) -> None:
    kept = Kept(device, deferred=True)
    for token in range(13):
        kept.step([2, 4 if token % 3 else -1], [token, 100 + token])
    state, fill = kept.state.clone(), kept.fill.clone()
    named = torch.tensor([2, 4, -1], dtype=torch.int32)
    plain_fold(state[:, None], kept.entries[:, None], fill, kept.vectors[None], named)
    assert not torch.equal(state, kept.state)
    kept.fold([2, 4, -1])
    assert relative(kept.state, state) < TOLERANCE
    assert torch.equal(fill, kept.fill)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_before", [3, R, R + 7])
def test_a_copy_in_the_middle_of_a_ring_changes_no_later_bit(device: str, n_before: int) -> None:
    kept = Kept(device, deferred=True)
    for token in range(n_before):
        kept.step([1], [token])
    for tensor in (kept.state, kept.entries, kept.fill):
        tensor[4] = tensor[1]
    for token in range(n_before, n_before + R + 1):
        y = kept.step([1], [token])
        assert torch.equal(kept.step([-1, 4], [0, token])[1:], y)
        assert same(kept.bits(1), kept.bits(4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_states_of_two_bytes_stay_within_their_bar(
    device: str, deferred: bool, dtype: torch.dtype
) -> None:
    exact = Kept(device, deferred=False)
    kept = Kept(device, deferred=deferred, state=dtype)
    for t in range(N_STEPS):
        y, expected = (one.step([3, 1], [2 * t, 2 * t + 1]) for one in (kept, exact))
        assert relative(y, expected) < STATE_BARS[dtype]
    if deferred:
        kept.fold([1, 3])
    assert relative(kept.state, exact.state) < STATE_BARS[dtype]


@starts_the_interpreter
def test_deferred_writes_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "not interpreter")
