"""How much may wait for a client that does not read its answer."""

import pytest

from wkvm.gateway.streams.choices import MAX_WAITING, credit_for


@pytest.mark.parametrize(
    ("keywords", "credit"),
    [
        ({}, MAX_WAITING),
        ({"logprobs": None, "n": None}, MAX_WAITING),
        ({"logprobs": 0}, MAX_WAITING),
        ({"logprobs": 20}, MAX_WAITING // 21),
        ({"logprobs": MAX_WAITING - 1}, 2),
        ({"logprobs": 20, "n": 64}, 128),
        ({"logprobs": -1}, 2),
        ({"n": 10**6}, MAX_WAITING),
    ],
)
def test_fewer_ids_wait_the_more_is_told_of_each_and_two_of_each_choice(
    keywords: dict[str, int], credit: int
) -> None:
    assert credit_for(keywords) == credit
