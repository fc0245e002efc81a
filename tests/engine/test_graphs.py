"""Which graphs there are, and which of them a step replays."""

import pytest

from tests.engine.fake_gpu import GreedySlots, SteppingModel
from tests.fakes import FakeModel
from wkvm.engine.graphs import BUCKETS, DecodeGraphs, buckets_for, replays_of
from wkvm.state.arena import Arena


def test_buckets_rise_and_reach_as_far_as_the_slots_need() -> None:
    assert list(BUCKETS) == sorted(set(BUCKETS))
    assert buckets_for(1) == (1,)
    assert buckets_for(3) == (1, 2, 4)
    assert buckets_for(64) == (1, 2, 4, 8, 16, 32, 48, 64)
    assert buckets_for(65)[-1] == 96
    assert buckets_for(1024) == buckets_for(100_000) == BUCKETS


@pytest.mark.parametrize("n_slots", [1, 3, 64, 1024])
def test_replays_hold_each_row_once_and_only_the_last_has_pad_rows(n_slots: int) -> None:
    buckets = buckets_for(n_slots)
    for n_rows in (*range(1, 3 * buckets[-1], max(1, buckets[-1] // 50)), 2 * buckets[-1]):
        replays = replays_of(n_rows, buckets)
        assert [at for r in replays for at in range(r.start, r.start + r.n_rows)] == list(
            range(n_rows)
        )
        assert all(r.n_rows == r.bucket == buckets[-1] for r in replays[:-1])
        last = replays[-1]
        assert last.bucket == min(bucket for bucket in buckets if bucket >= last.n_rows)


def test_no_rows_are_no_replays() -> None:
    assert replays_of(0, BUCKETS) == []


def test_a_model_without_decode_steps_has_no_graphs() -> None:
    model = FakeModel()
    arena = Arena(model.layout, 2, "cpu")
    with pytest.raises(ValueError, match="no decode step"):
        DecodeGraphs(model, arena.views, GreedySlots(2), n_slots=2)


def test_what_is_captured_leaves_all_states_as_they_are() -> None:
    model = SteppingModel()
    arena = Arena(model.layout, 3, "cpu")
    arena.views["fake.hash"].fill_(5)
    graphs = DecodeGraphs(model, arena.views, GreedySlots(3), n_slots=3)
    graphs.capture()
    graphs.replay(4)
    assert (arena.views["fake.hash"] == 5).all()
