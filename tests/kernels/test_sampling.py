import math
import random

import pytest
import torch
from torch import Tensor

from wkvm.kernels import sampling
from wkvm.kernels.philox import philox_uniform
from wkvm.kernels.sampling import (
    add_bias,
    allow_only,
    ban,
    choose,
    choose_likeliest,
    finite_rows,
    keep_only,
    logprobs,
    penalize,
)

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
NAN, INF = float("nan"), float("inf")


def random_logits(n_rows: int, vocab_size: int, seed: int) -> Tensor:
    """Logits with many ties: multiples of a quarter."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n_rows, vocab_size, generator=generator) * 12).round() / 4


def naive_choice(
    logits: list[float], temperature: float, at: float, top_k: int, top_p: float, min_p: float
) -> int:
    """One row of ``choose``, over Python integers, from the same powers of two."""
    row = torch.tensor(logits)
    scaled = (row - row.max()) * sampling.scales(torch.tensor([temperature]))
    mass = [int(p * 2.0**31) for p in torch.exp2(scaled).tolist()]
    n = len(mass)
    order = list(range(n))
    if top_k < n or top_p < 1 or min_p > 0:
        order = sorted(order, key=lambda i: (-logits[i], i))[:top_k]
        if top_p < 1:
            whole = sum(mass[i] for i in order)
            reached, kept = 0, list[int]()
            while len(kept) < len(order) and reached < math.ceil(top_p * whole):
                kept.append(order[len(kept)])
                reached += mass[kept[-1]]
            order = kept
        order = [i for i in order if mass[i] >= math.ceil(min_p * mass[order[0]])]
    point = int(sum(mass[i] for i in order) * at)
    for i in sorted(order):
        point -= mass[i]
        if point < 0:
            return i
    raise AssertionError("the point lies beyond the mass")


def random_rows(rng: random.Random, n_rows: int, vocab_size: int) -> list[tuple[float, ...]]:
    """Temperature, uniform, top-k, top-p, min-p of each row; every filter is often off."""
    return [
        (
            rng.choice([0.1, 0.7, 1.0, 1.0, 3.0, 100.0]),
            rng.random(),
            rng.choice([vocab_size, vocab_size, 1, 3, vocab_size // 2]),
            rng.choice([1.0, 1.0, 0.01, 0.5, 0.9, 0.999999]),
            rng.choice([0.0, 0.0, 0.1, 1.0]),
        )
        for _ in range(n_rows)
    ]


def columns(
    rows: list[tuple[float, ...]],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    temperature, at, top_k, top_p, min_p = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return temperature.float(), at, top_k.long(), top_p, min_p


@pytest.mark.parametrize("vocab_size", [2, 7, 64, 65, 500, 3000])
def test_choices_equal_a_naive_reference_under_mixed_filters(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    rows = random_rows(rng, 200, vocab_size)
    logits = random_logits(200, vocab_size, seed=vocab_size)
    temperature, at, top_k, top_p, min_p = columns(rows)
    chosen = choose(logits, temperature, at, top_k=top_k, top_p=top_p, min_p=min_p).tolist()
    expected = [
        naive_choice(row, float(t), u, int(k), p, m)
        for row, t, (_, u, k, p, m) in zip(logits.tolist(), temperature, rows, strict=True)
    ]
    assert chosen == expected


def test_filters_that_all_rows_lack_may_be_left_out() -> None:
    logits = random_logits(50, 300, seed=1)
    ones = torch.ones(50, dtype=torch.float64)
    at = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    plain = choose(logits, ones.float(), at)
    off = choose(logits, ones.float(), at, top_k=ones.long() * 300, top_p=ones, min_p=ones * 0)
    assert plain.tolist() == off.tolist()


@DEVICES
@pytest.mark.parametrize("vocab_size", [64, 4096, 9000])
def test_no_row_depends_on_the_others(vocab_size: int, device: str) -> None:
    rng = random.Random(vocab_size)
    n_rows = 70  # more than fit into one block of the largest vocabulary
    logits = random_logits(n_rows, vocab_size, seed=3) + 0.001 * torch.randn(n_rows, vocab_size)
    logits = logits.to(device)
    rows = random_rows(rng, n_rows, vocab_size)
    temperature, at, top_k, top_p, min_p = (column.to(device) for column in columns(rows))
    together = choose(logits, temperature, at, top_k=top_k, top_p=top_p, min_p=min_p).tolist()
    alone = [
        int(
            choose(
                logits[b : b + 1],
                temperature[b : b + 1],
                at[b : b + 1],
                top_k=top_k[b : b + 1],
                top_p=top_p[b : b + 1],
                min_p=min_p[b : b + 1],
            )
        )
        for b in range(n_rows)
    ]
    assert together == alone


@DEVICES
def test_no_probability_depends_on_the_other_rows(device: str) -> None:
    logits = torch.randn(33, 4096, generator=torch.Generator().manual_seed(4)).to(device)
    ids = torch.arange(33, device=device)
    together = logprobs(logits, ids, 3)
    alone = [logprobs(logits[b : b + 1], ids[b : b + 1], 3) for b in range(33)]
    for part, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(part, torch.cat(parts))


def test_the_choice_follows_the_distribution() -> None:
    n = 40_000
    logits = torch.tensor([0.0, -1.0, 2.0, 0.5, -4.0, 1.0])
    position = torch.arange(n)
    at = philox_uniform(torch.full((n,), 7), torch.full((n,), 1), position)
    ids = choose(logits.expand(n, -1), torch.full((n,), 0.8), at)
    expected = torch.softmax(logits.double() / 0.8, -1) * n
    chi_square = ((torch.bincount(ids, minlength=6) - expected) ** 2 / expected).sum()
    # Five degrees of freedom: exceeded by chance once in 100,000 seeds.
    assert chi_square < 31


def test_the_choice_follows_what_top_p_leaves() -> None:
    n = 20_000
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    at = philox_uniform(*(torch.full((n,), 9),) * 2, torch.arange(n))
    share = torch.full((n,), 0.6, dtype=torch.float64)
    ids = choose(logits.expand(n, -1), torch.ones(n), at, top_p=share)
    counts = torch.bincount(ids, minlength=4)
    expected = torch.tensor([4, 3]) / 7 * n
    assert counts[2:].tolist() == [0, 0]
    assert ((counts[:2] - expected) ** 2 / expected).sum() < 20


@pytest.mark.parametrize(("top_p", "n_kept"), [(0.5, 1), (0.5 + 2**-53, 2), (0.75, 2), (0.875, 3)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, n_kept: int) -> None:
    # Of these probabilities every sum is exact.
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]]).log2() * math.log(2)
    seen = {
        int(
            choose(
                logits,
                torch.ones(1),
                torch.tensor([i / 64], dtype=torch.float64),
                top_p=torch.tensor([top_p], dtype=torch.float64),
            )
        )
        for i in range(64)
    }
    assert seen == set([1, 3, 0, 2][:n_kept])


def test_of_equally_likely_ids_the_filters_keep_the_lower_ones() -> None:
    # More equals than candidates are looked at.
    logits = torch.zeros(64, 3000)
    logits[:, 5] = -1
    at = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    by_k = choose(logits, torch.ones(64), at, top_k=torch.full((64,), 7))
    assert set(by_k.tolist()) == {0, 1, 2, 3, 4, 6, 7}
    least = torch.full((64,), 1e-9, dtype=torch.float64)
    by_p = choose(logits, torch.ones(64), at, top_p=least)
    assert set(by_p.tolist()) == {0}


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    logits = random_logits(40, 200, seed=5)
    at = torch.rand(40, dtype=torch.float64)
    one = torch.ones(40, dtype=torch.int64)
    for temperature in (1e-45, 1.0, 100.0):
        chosen = choose(logits, torch.full((40,), temperature), at, top_k=one)
        assert chosen.tolist() == choose_likeliest(logits).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy_and_never_nan(temperature: float) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [-3e38, 3e38, 0.0], [3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    for at in (0.0, 0.999):
        points = torch.full((4,), at, dtype=torch.float64)
        assert choose(logits, torch.full((4,), temperature), points).tolist() == [1, 1, 0, 2]


def test_the_ends_of_the_unit_interval_hit_only_ids_with_mass() -> None:
    logits = torch.tensor([[-INF, 0.0, -INF, 0.0, -INF]]).expand(2, -1)
    at = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert choose(logits, torch.ones(2), at).tolist() == [1, 3]


@DEVICES
def test_greedy_takes_the_lowest_of_equals(device: str) -> None:
    logits = torch.zeros(2, 5000, device=device)
    logits[1, 4000:] = 1
    assert choose_likeliest(logits).tolist() == [0, 4000]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 2500, 4999])
def test_a_row_with_one_value_that_is_not_finite_is_found(value: float, at: int) -> None:
    logits = torch.full((3, 5000), 3e38)
    logits[1, at] = value
    assert finite_rows(logits).tolist() == [True, False, True]


def test_rows_with_nan_disturb_no_other() -> None:
    logits = random_logits(9, 100, seed=6)
    rows = random_rows(random.Random(6), 9, 100)
    temperature, at, top_k, top_p, min_p = columns(rows)
    before = choose(logits, temperature, at, top_k=top_k, top_p=top_p, min_p=min_p).tolist()
    logits[4] = NAN
    after = choose(logits, temperature, at, top_k=top_k, top_p=top_p, min_p=min_p).tolist()
    assert 0 <= after[4] < 100
    assert before[:4] + before[5:] == after[:4] + after[5:]


def test_bias_allowed_and_banned_ids_touch_one_row() -> None:
    logits = torch.zeros(3, 6)
    add_bias(logits[0], torch.tensor([1, 4]), torch.tensor([2.0, -3.0]))
    allow_only(logits[1], torch.tensor([5, 2]))
    ban(logits[2], torch.tensor([0, 3]))
    assert logits.tolist() == [
        [0, 2, 0, 0, -3, 0],
        [-INF, -INF, 0, -INF, -INF, 0],
        [-INF, 0, 0, -INF, 0, 0],
    ]


def test_penalties_follow_the_sign_the_count_and_the_place() -> None:
    logits = torch.tensor([[4.0, -4.0, 4.0, 1.0, -INF]])
    penalize(
        logits,
        rows=torch.zeros(4, dtype=torch.int64),
        ids=torch.tensor([0, 1, 2, 4]),
        counts=torch.tensor([0.0, 1.5, 2.0, 1.0]),
        in_output=torch.tensor([False, True, True, True]),
        repetition=torch.full((4,), 2.0),
        presence=torch.full((4,), 0.5),
        frequency=torch.full((4,), 0.25),
    )
    assert logits.tolist() == [[2.0, -8.875, 1.0, 1.0, -INF]]


@pytest.mark.parametrize("repetition", [0.0, 1e-45, 1e-38])  # float32 makes 0 of 1e-46
def test_a_repetition_penalty_near_zero_makes_no_infinity_and_no_nan(repetition: float) -> None:
    logits = torch.tensor([[4.0, -4.0, 0.0, -INF]])
    ones, zeros = torch.ones(4), torch.zeros(4)
    at = torch.arange(4)
    penalize(logits, at * 0, at, zeros, zeros.bool(), ones * repetition, zeros, zeros)
    assert finite_rows(logits[:, :3]).tolist() == [True]
    assert logits[0, 3] == -INF


@pytest.mark.parametrize("n_top", [0, 1, 5, 20])
def test_logprobs_equal_a_naive_reference(n_top: int) -> None:
    logits = random_logits(300, 37, seed=7)
    ids = torch.randint(0, 37, (300,), generator=torch.Generator().manual_seed(8))
    of_ids, ranks, top_ids, of_top = logprobs(logits, ids, n_top)
    for b, row in enumerate(logits.tolist()):
        whole = math.log(sum(math.exp(x) for x in row))
        order = sorted(range(37), key=lambda i: (-row[i], i))
        assert ranks[b] == order.index(int(ids[b])) + 1
        assert top_ids[b].tolist() == order[:n_top]
        assert of_ids[b].item() == pytest.approx(row[int(ids[b])] - whole, abs=1e-5)
        expected = [row[i] - whole for i in order[:n_top]]
        assert of_top[b].tolist() == pytest.approx(expected, abs=1e-5)


@DEVICES
@pytest.mark.parametrize("vocab_size", [1, 8, 61, 300])
def test_keep_only_rules_out_what_has_no_bit_in_the_rows_it_is_told(
    device: str, vocab_size: int
) -> None:
    generator = random.Random(vocab_size)
    logits = random_logits(5, vocab_size, 1)
    logits[0, 0] = NAN
    kept = {row: {i for i in range(vocab_size) if generator.random() < 0.5} for row in (3, 1)}
    masks = [
        [sum(1 << i % 8 for i in kept[row] if i // 8 == at) for at in range(-(-vocab_size // 8))]
        for row in kept
    ]
    after = logits.to(device, copy=True)
    keep_only(
        after,
        torch.tensor(list(kept), device=device),
        torch.tensor(masks, dtype=torch.uint8, device=device),
    )
    for row in range(5):
        for i in range(vocab_size):
            is_out = row in kept and i not in kept[row]
            value, before = after[row, i].item(), logits[row, i].item()
            assert value == -INF if is_out else value == before or math.isnan(before), (row, i)
