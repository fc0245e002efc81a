"""Prompts that go on from others, over a device whose state is the log of its tokens.

Whatever is reused, waited for, given up or failed, each request gives what it gives alone.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rig import KEY, VOCAB_SIZE, Rig, Told, alone, length
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.marks import FIRST_BORDERS, MOST_BORDERS, MOST_STRIDES, marks_of
from wkvm.core.prefixes import Budget
from wkvm.core.request import RequestSpec, Status

RECORD = 1000


def budget(
    *,
    host: int = 100,
    device: int = 0,
    every: int = 0,
    has_guest: bool = False,
    off_grid: bool = False,
) -> Budget:
    """Room for so many records, with all the pages that go with them."""
    page = 10 if has_guest else 0
    return Budget(
        host_bytes=host * 5 * RECORD,
        device_bytes=device * (RECORD + 20 * page),
        every=every,
        record_bytes=RECORD,
        page_bytes=page,
        off_grid=off_grid,
    )


def stem(n: int, kind: int = 0) -> tuple[int, ...]:
    return tuple((at * (kind + 3) + kind) % (VOCAB_SIZE - 1) for at in range(n))


class Stems(Rig):
    def ask(self, prompt: tuple[int, ...], n: int = 3, **terms: object) -> int:
        return self.submit(RequestSpec(prompt=prompt, params=length(n), **terms))  # type: ignore[arg-type]

    def ask_choices(self, spec: RequestSpec) -> tuple[int, ...]:
        """A request of several choices, with keys from ``KEY`` on."""
        asked = tuple(range(len(self.told), len(self.told) + spec.params.n))
        branches = tuple(range(spec.params.n))
        self.scheduler.submit(asked, spec, seed=KEY, branches=branches, now=self.now)
        self.told.update((one, Told()) for one in asked)
        return asked

    def check_choices(self, asked: tuple[int, ...], prompt: tuple[int, ...], n: int) -> None:
        """Each gives what it gives alone, but those that were cancelled."""
        for branch, one in enumerate(asked):
            end = self.told[one].end
            assert end is not None
            if end.status is Status.LENGTH:
                assert self.told[one].ids == alone(prompt, n, key=KEY + branch)

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


def test_what_others_wait_for_is_computed_before_what_is_over_later() -> None:
    rig = Stems(depth=1, n_slots=4, budget=budget(), most_tokens=512)
    rig.ask(stem(5000, 2))
    rig.ask(stem(4000), 1)
    middle = rig.ask(stem(3000, 1), 1)
    rig.turn()
    waiter = rig.ask(stem(320) + stem(10, 3), 1)
    while rig.told[waiter].end is None:
        rig.turn()
    assert rig.told[waiter].reused == 320
    assert rig.told[middle].end is None


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


def choices(n: int, prompt: tuple[int, ...], **terms: object) -> RequestSpec:
    return RequestSpec(prompt=prompt, params=length(3, n=n), **terms)  # type: ignore[arg-type]


DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
TIERS = pytest.mark.parametrize("device", [0, 8], ids=["host", "device"])


@DEPTHS
@TIERS
@pytest.mark.parametrize("n_tokens", [65, 66, 100, 128, 129, 130, 191, 192, 193, 400])
def test_choices_compute_their_prompt_once_and_one_token_each(
    n_tokens: int, device: int, depth: int
) -> None:
    rig = Stems(depth=depth, n_slots=20, budget=budget(device=device, off_grid=True))
    asked = rig.ask_choices(choices(16, stem(n_tokens)))
    rig.finish()
    assert rig.n_computed == n_tokens + 15
    assert [rig.told[one].reused for one in asked] == [0] + 15 * [n_tokens - 1]
    rig.check_choices(asked, stem(n_tokens), 3)


@TIERS
def test_choices_that_wait_for_slots_go_on_from_it_too(device: int) -> None:
    rig = Stems(depth=2, n_slots=5, budget=budget(device=device, off_grid=True))
    asked = rig.ask_choices(choices(16, stem(400)))
    rig.finish()
    # One of them takes over the very slot that it is in; the next one leaves it again.
    assert rig.n_computed == 415 + (15 if device else 0)
    rig.check_choices(asked, stem(400), 3)


@DEPTHS
@TIERS
def test_what_the_choices_share_goes_when_the_last_of_them_has_begun(
    device: int, depth: int
) -> None:
    rig = Stems(depth=depth, n_slots=20, budget=budget(device=device, off_grid=True))
    rig.ask_choices(choices(4, stem(400)))
    rig.finish()
    kept = rig.stat("n_prefixes_device") + rig.stat("n_prefixes_host")
    assert kept == 1, "the last cut of the prompt, which others may go on from"
    assert rig.stat("prefix_evictions_total") == 0
    assert rig.run(RequestSpec(prompt=stem(450), params=length(1))).reused == 384


@DEPTHS
@TIERS
def test_what_the_choices_share_is_nobody_elses(device: int, depth: int) -> None:
    rig = Stems(depth=depth, n_slots=20, budget=budget(device=device, off_grid=True))
    rig.ask_choices(choices(4, stem(400)))
    longer, salted = rig.ask(stem(401)), rig.ask(stem(400), cache_salt="x")
    tenant = rig.ask(stem(400), tenant="b")
    rig.finish()
    assert [rig.told[one].reused for one in (longer, salted, tenant)] == [384, 0, 0]
    again = rig.ask_choices(choices(2, stem(400)))
    rig.finish()
    assert [rig.told[one].reused for one in again] == [384, 399]
    rig.check_choices(again, stem(400), 3)


@DEPTHS
@TIERS
def test_requests_with_one_prompt_are_as_choices_are(device: int, depth: int) -> None:
    rig = Stems(
        depth=depth, n_slots=20, budget=budget(device=device, off_grid=True), most_tokens=64
    )
    asked = [rig.ask(stem(400))]
    rig.turn(2)
    asked += [rig.ask(stem(400)) for _ in range(3)]
    rig.finish()
    assert [rig.told[one].reused for one in asked] == [0, 399, 399, 399]
    assert [rig.told[one].ids for one in asked] == [alone(stem(400), 3)] * 4
    assert rig.stat("n_prefixes_device") + rig.stat("n_prefixes_host") == 1


def test_nobody_waits_for_the_prompt_of_a_lower_priority() -> None:
    rig = Stems(depth=1, budget=budget(off_grid=True), most_tokens=64)
    low = rig.ask(stem(400), priority=1)
    rig.turn(2)
    rig.ask(stem(400), priority=1)
    high = rig.ask(stem(400), priority=0)
    while rig.told[high].end is None:
        rig.turn()
    assert rig.told[low].end is None
    rig.finish()


@TIERS
@pytest.mark.parametrize("turns", [1, 4, 7, 8, 9])
def test_the_second_choice_takes_the_place_of_one_that_is_cancelled(
    turns: int, device: int
) -> None:
    rig = Stems(depth=1, n_slots=8, budget=budget(device=device, off_grid=True), most_tokens=64)
    asked = rig.ask_choices(choices(4, stem(400)))
    rig.turn(turns)
    rig.scheduler.cancel(asked[0], rig.now)
    rig.finish()
    assert [rig.told[one].reused for one in asked[2:]] == [399, 399]
    rig.check_choices(asked, stem(400), 3)


def test_nothing_is_left_for_choices_that_were_cancelled() -> None:
    rig = Stems(depth=1, budget=budget(off_grid=True), most_tokens=64)
    asked = rig.ask_choices(choices(3, stem(400)))
    rig.turn(2)
    for one in asked[1:]:
        rig.scheduler.cancel(one, rig.now)
    while rig.told[asked[0]].end is None:
        rig.turn()
        assert rig.stat("n_prefixes_host") <= 1
    rig.finish()
    rig.check_choices(asked, stem(400), 3)


@TIERS
def test_choices_go_on_from_the_grid_if_their_copy_fails(device: int) -> None:
    rig = Stems(depth=1, n_slots=8, budget=budget(device=device, off_grid=True), most_tokens=128)
    asked = rig.ask_choices(choices(3, stem(400)))
    while not rig.stat("n_prefixes_host") + rig.stat("n_prefixes_device"):
        rig.turn()
    rig.unsaved = True
    rig.finish()
    assert [rig.told[one].reused for one in asked] == [0, 384, 384]
    rig.check_choices(asked, stem(400), 3)


def test_a_choice_without_credit_leaves_what_the_others_go_on_from() -> None:
    rig = Stems(depth=2, budget=budget(off_grid=True))
    asked = rig.ask_choices(choices(3, stem(400), credit=0))
    for one in asked[1:]:
        rig.scheduler.grant(one, 9, rig.now)
    rig.turn(20)
    assert [rig.told[one].reused for one in asked[1:]] == [399, 399]
    assert not rig.told[asked[0]].ids
    rig.scheduler.grant(asked[0], 9, rig.now)
    rig.finish()
    rig.check_choices(asked, stem(400), 3)


def test_what_the_choices_share_stays_until_the_last_has_had_a_row() -> None:
    rig = Stems(depth=1, n_slots=6, budget=budget(device=8, off_grid=True))
    asked = rig.ask_choices(choices(3, stem(400), credit=0))
    rig.turn(20)
    for kind in range(1, 4):
        other = rig.ask(stem(300, kind))
        while rig.told[other].end is None:
            rig.turn()
    for one in asked:
        rig.scheduler.grant(one, 9, rig.now)
    rig.finish()
    assert [rig.told[one].reused for one in asked] == [0, 399, 399]
    rig.check_choices(asked, stem(400), 3)


def test_a_choice_that_loses_its_slot_keeps_the_others_from_nothing() -> None:
    rig = Stems(depth=1, n_slots=1, max_hibernated=2, budget=budget(off_grid=True), most_tokens=64)
    asked = rig.ask_choices(choices(3, stem(400), priority=5))
    rig.turn(3)
    high = rig.ask(stem(300, 2))
    rig.finish()
    assert rig.told[high].ids == alone(stem(300, 2), 3)
    rig.check_choices(asked, stem(400), 3)
    assert rig.told[asked[2]].reused == 399


def test_a_state_before_the_last_token_is_waited_for_however_many_are_due() -> None:
    """Each plan has room for few copies to the host; the others stay where they are meanwhile."""
    rig = Stems(depth=1, n_slots=9, budget=budget())
    firsts = [rig.ask(stem(193, kind), n=30) for kind in range(9)]
    seconds = [rig.ask(stem(193, kind), n=1) for kind in range(9)]
    while any(rig.told[one].end is None for one in firsts):
        rig.turn()
    assert rig.stat("n_prefixes_host") == 9
    rig.finish()
    assert [rig.told[one].reused for one in seconds] == 9 * [192]


def test_choices_keep_the_grid_where_prompts_are_cut_there_alone() -> None:
    for has_guest, off_grid in ((False, False), (True, True)):
        rig = Stems(
            depth=2,
            n_slots=8,
            n_pages=60 if has_guest else 0,
            budget=budget(device=8, has_guest=has_guest, off_grid=off_grid),
        )
        asked = rig.ask_choices(choices(4, stem(400)))
        rig.finish()
        assert [rig.told[one].reused for one in asked] == [0, 384, 384, 384]
        rig.check_choices(asked, stem(400), 3)


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
            off_grid=data.draw(st.booleans()),
        ),
        most_tokens=data.draw(st.sampled_from([64, 200, 2048])),
    )
    specs, keys = dict[int, RequestSpec](), dict[int, int]()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from("sssstttttcfhi+")):
            case "s":
                shared = data.draw(st.sampled_from([0, 64, 100, 130, 200, 330]))
                prompt = stem(shared) + stem(
                    data.draw(st.sampled_from([1, 30, 70, 150])), data.draw(st.integers(1, 3))
                )
                spec = RequestSpec(
                    prompt=prompt,
                    params=length(
                        data.draw(st.integers(1, 4)), n=data.draw(st.sampled_from([1, 1, 2, 4]))
                    ),
                    tenant=data.draw(st.sampled_from("aab")),
                    cache_salt=data.draw(st.sampled_from(["", "", "x"])),
                    priority=data.draw(st.sampled_from([0, 0, 1])),
                    credit=data.draw(st.sampled_from([None, None, 1])),
                    borders=(shared,),
                    save=data.draw(st.booleans()),
                )
                for branch, one in enumerate(rig.ask_choices(spec)):
                    specs[one], keys[one] = spec, KEY + branch
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
        expected = alone(tuple(spec.prompt), spec.params.max_tokens, key=keys[one])
        assert told.ids == expected[: len(told.ids)]
        if told.end.status is Status.LENGTH:
            assert told.ids == expected
        saved = told.end.saved
        if saved is not None:
            absorbed = (*spec.prompt, *told.ids)[: saved.n_computed]
            assert tuple(saved.absorbed) == absorbed
            assert tuple(saved.record) == absorbed
        if has_guest or told.reused != len(spec.prompt) - 1:
            assert told.reused % CUT_MULTIPLE == 0
        assert told.reused < len(spec.prompt)
    assert rig.stat("n_prefixes_device") <= rig.stat("n_slots")
