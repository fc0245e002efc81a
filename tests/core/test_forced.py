"""An output that is known beforehand leaves one id at a time."""

import pytest

from wkvm.core.checks import check_spec
from wkvm.core.errors import TokenOutOfRangeError
from wkvm.core.forced import Forced
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams


def allowed(mask: bytes) -> list[int]:
    return [i for i in range(8 * len(mask)) if mask[i // 8] >> i % 8 & 1]


def test_each_id_is_the_only_one_when_its_turn_has_come() -> None:
    forced = Forced((3, 16, 3), vocab_size=17)
    for token_id in (3, 16, 3):
        mask = forced.next_ids(may_stop=True)
        assert len(mask) == 3
        assert allowed(mask) == [token_id]
        assert not forced.advance(token_id)
        assert not forced.may_end


def test_the_ids_are_checked_and_have_to_be_the_whole_output() -> None:
    def check(spec: RequestSpec) -> None:
        check_spec(spec, 10, (), max_model_len=None)

    params = SamplingParams(max_tokens=2)
    check(RequestSpec(prompt=(1,), forced=(2, 9), params=params))
    with pytest.raises(TokenOutOfRangeError, match="prompt: id 10"):
        check(RequestSpec(prompt=(1,), forced=(2, 10), params=params))
    for wrong in (
        RequestSpec(prompt=(1,), forced=(2,), params=params),
        RequestSpec(prompt=(1,), forced=(2, 3), params=SamplingParams(max_tokens=2, n=2)),
        RequestSpec(prompt=(1,), forced=(2, 3), params=params, grammar=Grammar("regex", "a")),
    ):
        with pytest.raises(ValueError, match="forced"):
            check(wrong)
