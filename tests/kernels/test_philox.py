import pytest
import torch

from wkvm.kernels.philox import Words, philox, philox_uniform, philox_words, uniform

F = 0xFFFFFFFF

# The known answers published with the generator: all zeros, all ones, the digits of pi.
KNOWN: list[tuple[Words, tuple[int, int], Words]] = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((F, F, F, F), (F, F), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
EDGES = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_integers_give_the_known_answers(
    counter: Words, key: tuple[int, int], answer: Words
) -> None:
    assert philox(counter, key) == answer


def test_tensors_give_the_known_answers() -> None:
    counters = torch.tensor([counter for counter, _, _ in KNOWN]).T
    keys = torch.tensor([key for _, key, _ in KNOWN]).T
    assert philox_words(counters, keys).T.tolist() == [list(answer) for _, _, answer in KNOWN]


def test_the_position_is_the_low_half_of_the_counter_and_the_branch_the_high_one() -> None:
    words = philox((1, 2, 3, 4), (5, 6))
    number = uniform(seed=5 + (6 << 32), branch=3 + (4 << 32), position=1 + (2 << 32))
    assert number == ((words[0] << 32 | words[1]) >> 11) / 2**53


def test_tensors_and_integers_give_equal_numbers_at_every_edge() -> None:
    keys = [(seed, branch, at) for seed in EDGES for branch in EDGES for at in EDGES]
    seed, branch, at = torch.tensor(
        [[word - 2**64 if word >= 2**63 else word for word in key] for key in keys]
    ).unbind(1)
    numbers = philox_uniform(seed, branch, at).tolist()
    assert numbers == [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(numbers)
    assert 0 <= min(numbers) <= max(numbers) < 1
