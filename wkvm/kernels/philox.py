"""Random numbers that are a function of a key and a counter, with no state to lose or to copy.

Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC11), over Python integers for a few rows and over tensors for many. Both give the same
bits, and so does ``tl.philox`` of Triton with the same words.
"""

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Encrypt a counter of four 32-bit words under a key of two: about 4 us."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        a = c0 * MULTIPLIERS[0]
        b = c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & WORD, (a >> 32) ^ c3 ^ k1, a & WORD
        k0 = (k0 + KEY_STEPS[0]) & WORD
        k1 = (k1 + KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, branch: int, position: int) -> float:
    """One number in [0, 1) with 53 random bits, for one row.

    Args:
        seed: the key, in [0, 2^64).
        branch, position: the counter, each in [0, 2^64).
    """
    high, low, _, _ = philox(
        (position & WORD, position >> 32, branch & WORD, branch >> 32), (seed & WORD, seed >> 32)
    )
    return ((high << 21) | (low >> 11)) * 2.0**-53


def philox_words(counter: Tensor, key: Tensor) -> Tensor:
    """Encrypt ``B`` counters, each under its own key, on the device of the arguments.

    Args:
        counter: ``[4, B]`` int64, words in [0, 2^32).
        key: ``[2, B]`` int64, likewise.

    Returns:
        ``[4, B]`` int64, words in [0, 2^32).
    """
    # Two multiplications make a round. Their operands, words 0 and 2, are kept together, and
    # so are words 1 and 3. A product wraps around in 64 bits, which leaves its bits right.
    factors = counter.new_tensor(MULTIPLIERS)[:, None]
    steps = counter.new_tensor(KEY_STEPS)[:, None]
    even, odd = counter[0::2], counter[1::2]
    for _ in range(ROUNDS):
        swapped = (even * factors).flip(0)
        even = ((swapped >> 32) & WORD) ^ odd ^ key
        odd = swapped & WORD
        key = (key + steps) & WORD
    return torch.stack((even, odd), 1).view(4, -1)


def philox_uniform(seed: Tensor, branch: Tensor, position: Tensor) -> Tensor:
    """One number in [0, 1) for each row, equal to ``uniform`` of the row.

    Args:
        seed, branch, position: ``[B]`` int64, read as unsigned: 2^64 - 1 is written as -1.

    Returns:
        ``[B]`` float64, multiples of 2^-53.
    """
    counter = torch.stack((position, position >> 32, branch, branch >> 32)) & WORD
    key = torch.stack((seed, seed >> 32)) & WORD
    words = philox_words(counter, key)
    return ((words[0] << 21) | (words[1] >> 11)).to(torch.float64) * 2.0**-53
