"""Prompts that go on from others, over a device whose state is the log of its tokens.

Whatever is reused, waited for, given up or failed, each request gives what it gives alone.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rig import VOCAB_SIZE, Rig, alone, length
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.marks import FIRST_BORDERS, MOST_BORDERS, MOST_STRIDES, marks_of
from wkvm.core.prefixes import Budget
from wkvm.core.request import RequestSpec, Status

RECORD = 1000


def budget(*, host: int = 100, device: int = 0, every: int = 0, has_guest: bool = False) -> Budget:
    """Room for so many records, with all the pages that go with them."""
    page = 10 if has_guest else 0
    return Budget(
        host_bytes=host * 5 * RECORD,
        device_bytes=device * (RECORD + 20 * page),
        every=every,
        record_bytes=RECORD,
        page_bytes=page,
    )


def stem(n: int, kind: int = 0) -> tuple[int, ...]:
    return tuple((at * (kind + 3) + kind) % (VOCAB_SIZE - 1) for at in range(n))


class Stems(Rig):
    def ask(self, prompt: tuple[int, ...], n: int = 3, **terms: object) -> int:
        return self.submit(RequestSpec(prompt=prompt, params=length(n), **terms))  # type: ignore[arg-type]

    def stat(self, name: str) -> int:
        return self.scheduler.stats()[name]


@given(n=st.integers(1, 5000), borders=st.lists(st.integers(-5, 6000), max_size=60))
def test_marks_lie_where_a_prompt_may_be_cut_and_leave_something(
    n: int, borders: list[int]
) -> None:
    marks = marks_of(n, borders, 512)
    assert all(mark % CUT_MULTIPLE == 0 and 0 < mark < n for mark in marks)
    assert len(marks) <= 1 + MOST_BORDERS + MOST_STRIDES
    if n > 2 * CUT_MULTIPLE:
        assert (n - 1) // CUT_MULTIPLE * CUT_MULTIPLE in marks


def test_the_first_borders_and_the_last_ones_are_marks() -> None:
    marks = sorted(marks_of(4000, range(64, 4000, 64), 0))
    assert len(marks) == MOST_BORDERS
    assert marks[:FIRST_BORDERS] == [64, 128, 192, 256]
    assert marks[-1] == 3968


def test_a_stride_is_as_long_as_it_has_to_be() -> None:
    assert sorted(marks_of(400, (), 128)) == [128, 256, 384]
    assert len(marks_of(1_000_000, (), 128)) <= MOST_STRIDES + 1
    assert marks_of(400, (), 0) == {384}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("device", [0, 2])
def test_a_hit_refreshes_what_was_used_and_not_what_is_before_it(depth: int, device: int) -> None:
    of_two = Budget(
        host_bytes=0 if device else 2 * (RECORD + 192 * 4),
        device_bytes=device * RECORD,
        every=0,
        record_bytes=RECORD,
    )
    rig = Stems(depth=depth, n_slots=6, budget=of_two)
    rig.run(RequestSpec(prompt=stem(200), params=length(1), borders=(70,)))
    rig.run(RequestSpec(prompt=stem(200), params=length(1)))  # uses 192; 64 is older now
    rig.run(RequestSpec(prompt=stem(200, 1), params=length(1)))
    assert rig.run(RequestSpec(prompt=stem(200), params=length(1))).reused == 192
    assert rig.run(RequestSpec(prompt=stem(70) + stem(90, 2), params=length(1))).reused == 0


@pytest.mark.parametrize("device", [0, 2])
def test_what_was_used_longest_ago_goes_first(device: int) -> None:
    of_two = Budget(
        host_bytes=0 if device else 2 * (RECORD + 192 * 4),
        device_bytes=device * RECORD,
        every=0,
        record_bytes=RECORD,
    )
    rig = Stems(depth=1, n_slots=6, budget=of_two)
    for kind in (0, 1, 0, 2):  # the first is used again before there is a third
        rig.run(RequestSpec(prompt=stem(200, kind), params=length(1)))
    again = [rig.run(RequestSpec(prompt=stem(200, kind), params=length(1))) for kind in (0, 2, 1)]
    assert [told.reused for told in again] == [192, 192, 0]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_who_waits_for_one_that_is_cancelled_takes_its_place(turns: int) -> None:
    rig = Stems(depth=1, budget=budget(), most_tokens=64)
    asked = [rig.ask(stem(400)) for _ in range(3)]
    rig.turn(turns)
    assert rig.stat("n_prefix_waiting") == 2
    rig.scheduler.cancel(asked[0], rig.now)
    rig.finish()
    assert rig.told[asked[1]].reused == 0
    assert rig.told[asked[2]].reused == 384


def test_copies_that_fail_keep_nobody_waiting() -> None:
    rig = Stems(depth=2, budget=budget(), most_tokens=128)
    rig.unsaved = True
    asked = [rig.ask(stem(400)) for _ in range(3)]
    rig.finish()
    assert [rig.told[one].ids for one in asked] == [alone(stem(400), 3)] * 3
    assert rig.stat("n_prefixes_host") == 0


@pytest.mark.parametrize("device", [0, 4])
def test_a_plan_that_fails_with_a_copy_wakes_those_that_wait_for_it(device: int) -> None:
    rig = Stems(depth=1, n_slots=4, budget=budget(device=device), most_tokens=128)
    first, second = rig.ask(stem(400)), rig.ask(stem(400))
    rig.turn(3)
    rig.fill()
    (plan,) = rig.in_flight
    assert plan.saves or plan.copies
    rig.fail()
    rig.finish()
    end = rig.told[first].end
    assert end is not None
    assert end.status is Status.FINISHED_ERROR
    assert rig.told[second].ids == alone(stem(400), 3)


def test_one_that_loses_its_slot_keeps_nobody_waiting() -> None:
    rig = Stems(depth=1, n_slots=1, max_hibernated=2, budget=budget(), most_tokens=64)
    low = rig.ask(stem(600), priority=5)
    rig.turn(2)
    high = rig.ask(stem(600), priority=0)
    while rig.told[high].end is None:
        rig.turn()
    assert rig.told[low].end is None
    rig.finish()
    for one in (low, high):
        assert rig.told[one].ids == alone(stem(600), 3)


def test_one_without_credit_leaves_its_checkpoints_all_the_same() -> None:
    rig = Stems(depth=2, budget=budget())
    rig.ask(stem(400), credit=0)
    second = rig.ask(stem(400))
    while rig.told[second].end is None:
        rig.turn()
    assert rig.told[second].reused == 384
    rig.scheduler.cancel(0, rig.now)
    rig.finish()


def test_nothing_waits_for_room_that_checkpoints_have() -> None:
    rig = Stems(depth=2, n_slots=3, n_pages=24, budget=budget(device=3, has_guest=True))
    for kind in range(3):
        rig.run(RequestSpec(prompt=stem(400, kind), params=length(1)))
    assert rig.stat("n_free_pages") == 24
    big = rig.ask(stem(24 * PAGE_TOKENS - 10, 7), n=10)
    rig.turn(2)
    assert rig.stat("n_running") == 1
    rig.finish()
    assert rig.told[big].ids == alone(stem(24 * PAGE_TOKENS - 10, 7), 10)


@given(data=st.data(), depth=st.integers(1, 3), has_guest=st.booleans())
@settings(max_examples=150, deadline=None)
def test_whatever_happens_each_request_is_the_run_that_it_would_be_alone(
    data: st.DataObject, depth: int, has_guest: bool
) -> None:
    rig = Stems(
        depth=depth,
        n_slots=data.draw(st.integers(1, 5)),
        max_hibernated=data.draw(st.integers(0, 2)),
        n_pages=data.draw(st.sampled_from([12, 16, 30])) if has_guest else 0,
        late=data.draw(st.sampled_from([0, 2])) if has_guest else 0,
        budget=budget(
            host=data.draw(st.sampled_from([0, 1, 3, 100])),
            device=data.draw(st.sampled_from([0, 1, 3])),
            every=data.draw(st.sampled_from([0, 128])),
            has_guest=has_guest,
        ),
        most_tokens=data.draw(st.sampled_from([64, 200, 2048])),
    )
    specs = dict[int, RequestSpec]()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from("sssstttttcfhi+")):
            case "s":
                shared = data.draw(st.sampled_from([0, 64, 100, 130, 200, 330]))
                prompt = stem(shared) + stem(
                    data.draw(st.sampled_from([1, 30, 70, 150])), data.draw(st.integers(1, 3))
                )
                spec = RequestSpec(
                    prompt=prompt,
                    params=length(data.draw(st.integers(1, 4))),
                    tenant=data.draw(st.sampled_from("aab")),
                    cache_salt=data.draw(st.sampled_from(["", "", "x"])),
                    priority=data.draw(st.sampled_from([0, 0, 1])),
                    credit=data.draw(st.sampled_from([None, None, 1])),
                    borders=(shared,),
                    save=data.draw(st.booleans()),
                )
                specs[rig.submit(spec)] = spec
            case "t":
                rig.turn(data.draw(st.integers(1, 3)))
            case "c" if specs:
                rig.scheduler.cancel(data.draw(st.sampled_from(sorted(specs))), rig.now)
                rig.note()
            case "i" if specs:
                rig.scheduler.interrupt(data.draw(st.sampled_from(sorted(specs))), rig.now)
                rig.note()
            case "f" if rig.in_flight:
                rig.fail(runs=len(rig.in_flight) > 1 or data.draw(st.booleans()))
            case "h":
                rig.now += 1.0
            case "+":
                rig.unsaved = not rig.unsaved
            case _:
                pass
    for one in specs:
        rig.scheduler.grant(one, 1000, rig.now)
    rig.unsaved = False
    rig.finish()
    assert rig.stat("n_prefix_waiting") == 0
    for one, spec in specs.items():
        told = rig.told[one]
        assert told.end is not None
        if told.end.status is Status.FINISHED_ERROR:
            continue
        expected = alone(tuple(spec.prompt), spec.params.max_tokens)
        assert told.ids == expected[: len(told.ids)]
        if told.end.status is Status.LENGTH:
            assert told.ids == expected
        saved = told.end.saved
        if saved is not None:
            absorbed = (*spec.prompt, *told.ids)[: saved.n_computed]
            assert tuple(saved.absorbed) == absorbed
            assert tuple(saved.record) == absorbed
        assert told.reused % CUT_MULTIPLE == 0
        assert told.reused < len(spec.prompt)
    assert rig.stat("n_prefixes_device") <= rig.stat("n_slots")
