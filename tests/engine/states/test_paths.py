"""By which path ids were absorbed."""

import pytest

from wkvm.engine.states.paths import Path, path_of

IDS = list(range(10, 20))


@pytest.mark.parametrize(
    ("first", "n_given", "pending", "path"),
    [
        (0, 10, (), Path((), IDS, [])),
        (0, 4, (), Path((), IDS[:4], IDS[4:])),
        (3, 6, (13,), Path((13,), IDS[4:6], IDS[6:])),
        (3, 6, (99,), Path((), IDS[3:6], IDS[6:])),
        (3, 4, (13,), Path((13,), [], IDS[4:])),
        (4, 4, (), Path((14,), (), IDS[5:])),
        (7, 4, (), Path((17,), (), IDS[8:])),
        (9, 4, (), Path((19,), (), [])),
    ],
)
def test_given_ids_are_a_prompt_and_others_come_one_by_one(
    first: int, n_given: int, pending: tuple[int, ...], path: Path
) -> None:
    assert path_of(IDS, first, n_given, pending=pending) == path
