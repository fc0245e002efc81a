"""States at both ends of requests: what begins from one, what leaves one, and who gives up a slot.

The steps run on a fake device, up to three of them in flight.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rig import VOCAB_SIZE, Rig, Told, alone, check, length, start_of
from wkvm.core.admission import MAX_ENTRIES
from wkvm.core.errors import InvalidParameterError, NonFiniteError, StepFailedError
from wkvm.core.lives import PATIENCE_S
from wkvm.core.request import (
    RequestSpec,
    Status,
)
from wkvm.core.saving import MAX_SAVES
from wkvm.core.start import Saved

depths = pytest.mark.parametrize("depth", [1, 2, 3])
PROMPT = (11, 12, 13)


@depths
@pytest.mark.parametrize("n", [1, 2, 7])
def test_an_interrupted_request_loses_no_id_and_doubles_none(depth: int, n: int) -> None:
    rig = Rig(depth=depth)
    request_id = rig.submit(RequestSpec(prompt=PROMPT, params=length(50), save=True))
    rig.turn(n)
    rig.scheduler.interrupt(request_id, rig.now)
    rig.finish()
    told = rig.told[request_id]
    assert told.end is not None
    assert told.end.status is Status.CANCELLED
    saved = told.last
    check(saved)
    assert [*saved.absorbed, *saved.pending] == [*PROMPT, *told.ids]
    went_on = rig.run(RequestSpec(prompt=(), params=length(9), start=start_of(saved)))
    assert told.ids + went_on.ids == alone(PROMPT, len(told.ids) + 9)


@depths
def test_an_interrupt_in_a_prompt_leaves_what_was_absorbed(depth: int) -> None:
    rig = Rig(depth=depth)
    prompt = tuple(i % VOCAB_SIZE for i in range(9000))
    request_id = rig.submit(RequestSpec(prompt=prompt, params=length(5), save=True))
    rig.turn()
    rig.scheduler.interrupt(request_id, rig.now)
    rig.finish()
    saved = rig.told[request_id].last
    check(saved)
    n = len(saved.absorbed)
    assert 0 < n < 9000
    assert (tuple(saved.absorbed), saved.pending) == (prompt[:n], ())
    went_on = rig.run(RequestSpec(prompt=prompt[n:], params=length(5), start=start_of(saved)))
    assert went_on.ids == alone(prompt, 5)


@depths
def test_a_request_that_waits_is_interrupted_with_the_state_that_it_brought(depth: int) -> None:
    rig = Rig(depth=depth, n_slots=1)
    saved = rig.run(RequestSpec(prompt=PROMPT, params=length(3), save=True)).last
    rig.submit(RequestSpec(prompt=PROMPT, params=length(40)))
    rig.turn()
    request_id = rig.submit(
        RequestSpec(prompt=(5,), params=length(3), start=start_of(saved), save=True)
    )
    rig.scheduler.interrupt(request_id, rig.now)
    rig.finish()
    again = rig.told[request_id].last
    assert (again.record, again.pending) == (saved.record, saved.pending)
    assert (again.n_computed, list(again.absorbed)) == (saved.n_computed, [])
    assert again.memory == saved.memory


@depths
def test_a_stop_in_flight_ends_an_interrupted_request_as_it_would_have_ended(depth: int) -> None:
    stop = alone(PROMPT, 3)[2]
    rig = Rig(depth=depth)
    spec = RequestSpec(prompt=PROMPT, params=length(50, stop_ids=(stop,)), save=True)
    request_id = rig.submit(spec)
    rig.turn(2)
    rig.fill()
    rig.scheduler.interrupt(request_id, rig.now)
    rig.finish()
    told = rig.told[request_id]
    check(told.last)
    assert [*told.last.absorbed, *told.last.pending][: 3 + len(told.ids)] == [*PROMPT, *told.ids]
    if depth > 1:
        assert told.end is not None
        assert (told.end.status, told.end.stop_id) == (Status.STOPPED, stop)
        assert told.last.pending == (stop,)


@depths
@given(at=st.lists(st.integers(0, 12), max_size=4), prompt=st.sampled_from([1, 3, 64, 200]))
@settings(max_examples=30, deadline=None)
def test_snapshots_show_one_state_between_two_steps(depth: int, at: list[int], prompt: int) -> None:
    rig = Rig(depth=depth)
    ids = tuple(7 + i % 90 for i in range(prompt))
    request_id = rig.submit(RequestSpec(prompt=ids, params=length(12), save=True))
    for n in range(13):
        for _ in range(at.count(n)):
            rig.scheduler.snapshot(request_id)
        rig.turn()
    rig.finish()
    told = rig.told[request_id]
    assert told.ids == alone(ids, 12)
    check(told.last)
    for event in told.saved:
        assert event.saved is not None
        assert not event.is_checkpoint
        log = [*event.saved.absorbed, *event.saved.pending]
        assert log == [*ids, *told.ids][: len(log)]
        assert len(event.saved.pending) == 1 or len(event.saved.absorbed) < prompt or not log
        check(event.saved)


def test_a_snapshot_needs_a_request_that_keeps_its_output() -> None:
    rig = Rig()
    request_id = rig.submit(RequestSpec(prompt=PROMPT, params=length(5)))
    with pytest.raises(InvalidParameterError, match="save"):
        rig.scheduler.snapshot(request_id)


def test_nobody_waits_for_a_snapshot_of_a_request_that_is_over() -> None:
    rig = Rig()
    request_id = rig.submit(RequestSpec(prompt=PROMPT, params=length(1), save=True))
    rig.fill()
    rig.land()
    assert not rig.scheduler.snapshot(request_id)
    rig.finish()
    assert not rig.scheduler.snapshot(request_id)
    assert not rig.scheduler.snapshot(99)


@depths
@pytest.mark.parametrize("every", [1, 5, 64, 100])
@pytest.mark.parametrize("n_prompt", [1, 64, 150, 300])
def test_checkpoints_are_at_multiples_in_output_and_at_cuts_in_prompts(
    depth: int, every: int, n_prompt: int
) -> None:
    rig = Rig(depth=depth)
    prompt = tuple(7 + i % 90 for i in range(n_prompt))
    params = length(130)
    told = rig.run(RequestSpec(prompt=prompt, params=params, checkpoint_every=every))
    assert told.ids == alone(prompt, 130)
    places = list[int]()
    for event in told.saved:
        assert event.is_checkpoint
        assert event.saved is not None
        check(event.saved)
        log = [*event.saved.absorbed, *event.saved.pending]
        assert log == [*prompt, *told.ids][: len(log)]
        places.append(event.saved.n_computed)
    multiples = range(every, n_prompt + 130, every)
    cuts = {min(-(-at // 64) * 64, n_prompt) for at in multiples if at < n_prompt}
    expected = cuts | {at for at in multiples if at >= n_prompt}
    # Of the last states the request does not go on.
    assert places == sorted(at for at in expected if at < n_prompt + 129)[: len(places)]
    assert len(places) >= len(expected) - 3


def test_checkpoints_that_are_due_all_the_time_keep_no_end_waiting() -> None:
    rig = Rig(depth=1, n_slots=40)
    for at in range(39):
        rig.submit(RequestSpec(prompt=(at + 1,), params=length(60), checkpoint_every=1))
    rig.turn(20)
    last = rig.submit(RequestSpec(prompt=PROMPT, params=length(3), save=True))
    rig.turn(4)
    assert rig.told[last].end is not None
    rig.finish()
    n_checkpoints = [len(one.saved) for one in rig.told.values()][:39]
    assert min(n_checkpoints) >= max(n_checkpoints) - 2 > 0
    for one in rig.told.values():
        for event in one.saved:
            assert event.saved is not None
            check(event.saved)


def test_snapshots_that_are_asked_for_at_once_are_one() -> None:
    rig = Rig(depth=2)
    request_id = rig.submit(RequestSpec(prompt=PROMPT, params=length(9), save=True))
    rig.turn(2)
    assert all(rig.scheduler.snapshot(request_id) for _ in range(50))
    rig.finish()
    assert len(rig.told[request_id].saved) == 1


def test_checkpoints_count_from_the_first_token_of_all() -> None:
    rig = Rig()
    saved = rig.run(RequestSpec(prompt=PROMPT, params=length(4), save=True)).last
    spec = RequestSpec(prompt=(), params=length(20), start=start_of(saved), checkpoint_every=10)
    places = [one.saved.n_computed for one in rig.run(spec).saved if one.saved is not None]
    assert places == [10, 20]


@depths
def test_a_copy_that_fails_ends_its_request_and_no_other(depth: int) -> None:
    rig = Rig(depth=depth)
    first = rig.submit(RequestSpec(prompt=PROMPT, params=length(2), save=True))
    other = rig.submit(RequestSpec(prompt=PROMPT, params=length(9)))
    rig.unsaved = True
    rig.finish()
    end = rig.told[first].end
    assert end is not None
    assert (end.status, end.saved) == (Status.FINISHED_ERROR, None)
    assert rig.told[other].ids == alone(PROMPT, 9)


@depths
def test_a_plan_that_fails_ends_those_whose_copies_it_had(depth: int) -> None:
    rig = Rig(depth=depth)
    first = rig.submit(RequestSpec(prompt=PROMPT, params=length(1), save=True))
    rig.turn()
    while not any(plan.saves for plan in rig.in_flight):
        rig.fill()
        if not any(plan.saves for plan in rig.in_flight):
            rig.land()
    while not rig.in_flight[0].saves:
        rig.land()
    rig.fail()
    end = rig.told[first].end
    assert end is not None
    assert isinstance(end.error, StepFailedError)
    rig.finish()


@depths
def test_a_row_that_is_not_finite_leaves_no_state(depth: int) -> None:
    rig = Rig(depth=depth)
    request_id = rig.submit(RequestSpec(prompt=PROMPT, params=length(9), save=True))
    rig.turn(2)
    rig.bad = {request_id}
    rig.scheduler.interrupt(request_id, rig.now)
    rig.finish()
    end = rig.told[request_id].end
    assert end is not None
    if depth > 1:
        assert isinstance(end.error, NonFiniteError)
        assert end.saved is None


@depths
def test_a_cancel_comes_too_late_for_a_request_that_lacks_its_copy_alone(depth: int) -> None:
    rig = Rig(depth=depth)
    request_id = rig.submit(RequestSpec(prompt=PROMPT, params=length(1), save=True))
    rig.fill()
    rig.land()
    rig.scheduler.cancel(request_id, rig.now)
    rig.scheduler.grant(request_id, 3, rig.now)
    rig.finish()
    assert rig.told[request_id].end.status is Status.LENGTH  # type: ignore[union-attr]
    check(rig.told[request_id].last)


def test_one_plan_has_few_copies_and_few_records() -> None:
    rig = Rig(depth=1, n_slots=20)
    saved = [
        rig.run(RequestSpec(prompt=(at, 3), params=length(2), save=True)).last for at in range(10)
    ]
    for one in saved:
        rig.submit(RequestSpec(prompt=(), params=length(2), start=start_of(one), save=True))
    n_begun = list[int]()
    n_saves = list[int]()
    while any(one.end is None for one in rig.told.values()):
        rig.fill()
        if rig.in_flight:
            plan = rig.in_flight[0]
            n_begun.append(len({id(row.entry.record) for row in plan.rows if row.entry}))
            n_saves.append(len(plan.saves))
            rig.land()
    assert (max(n_begun), sum(n_begun)) == (MAX_ENTRIES, 10)
    assert (max(n_saves), sum(n_saves)) == (MAX_SAVES, 10)


def test_many_requests_from_one_record_begin_in_one_plan() -> None:
    rig = Rig(depth=1, n_slots=64)
    start = start_of(rig.run(RequestSpec(prompt=PROMPT, params=length(2), save=True)).last)
    for _ in range(64):
        rig.submit(RequestSpec(prompt=(), params=length(2), start=start))
    rig.fill()
    assert len(rig.in_flight[0].rows) == 64
    assert {id(row.entry.record) for row in rig.in_flight[0].rows if row.entry} == {
        id(start.record)
    }
    rig.finish()


# --- who gives up a slot ------------------------------------------------------------------------


@depths
def test_a_request_without_credit_gives_up_its_slot_and_goes_on_as_if_it_had_not(
    depth: int,
) -> None:
    rig = Rig(depth=depth, n_slots=1, max_hibernated=2)
    paused = rig.submit(RequestSpec(prompt=PROMPT, params=length(9), credit=3))
    rig.turn(8)
    assert len(rig.told[paused].ids) == 3
    other = rig.submit(RequestSpec(prompt=(4, 4), params=length(5)))
    rig.turn(4)
    assert rig.told[other].ids == [], "it had patience"
    assert rig.scheduler.next_deadline() == PATIENCE_S
    rig.now = PATIENCE_S
    while rig.told[other].end is None:
        rig.turn()
    assert rig.told[paused].end is None
    assert rig.scheduler.stats()["n_hibernated"] == 1
    rig.turn(5)
    assert len(rig.told[paused].ids) == 3, "it has no credit"
    rig.scheduler.grant(paused, 100, rig.now)
    rig.finish()
    assert rig.told[paused].ids == alone(PROMPT, 9)
    assert rig.told[other].ids == alone((4, 4), 5)
    assert rig.scheduler.stats()["hibernated_total"] == 1


@depths
def test_a_request_gives_way_to_one_of_its_tenant_that_comes_before(depth: int) -> None:
    rig = Rig(depth=depth, n_slots=1, max_hibernated=2)
    late = rig.submit(RequestSpec(prompt=PROMPT, params=length(20), priority=5))
    rig.turn(6)
    n_before = len(rig.told[late].ids)
    first = rig.submit(RequestSpec(prompt=(4, 4), params=length(5), priority=1))
    while rig.told[first].end is None:
        rig.turn()
    assert n_before <= len(rig.told[late].ids) <= n_before + depth
    rig.finish()
    assert rig.told[late].ids == alone(PROMPT, 20)
    assert rig.told[first].ids == alone((4, 4), 5)


@depths
def test_a_request_that_has_not_begun_gives_up_its_slot_without_a_copy(depth: int) -> None:
    rig = Rig(depth=depth, n_slots=1, max_hibernated=1)
    paused = rig.submit(RequestSpec(prompt=PROMPT, params=length(5), credit=0))
    rig.turn()
    other = rig.submit(RequestSpec(prompt=(4, 4), params=length(5)))
    rig.now = 1.0
    rig.turn(8)
    assert rig.told[other].end is not None
    rig.scheduler.grant(paused, 50, rig.now)
    rig.finish()
    assert rig.told[paused].ids == alone(PROMPT, 5)
    assert rig.scheduler.stats()["saves_total"] == 0


@depths
def test_a_single_pending_id_is_decoded_as_it_would_have_been(depth: int) -> None:
    rig = Rig(depth=depth)
    saved = rig.run(RequestSpec(prompt=PROMPT, params=length(2), save=True)).last
    penalties = length(2, presence_penalty=1.0)
    for params in (length(2), penalties):
        request_id = rig.submit(RequestSpec(prompt=(), params=params, start=start_of(saved)))
        rig.fill()
        (row,) = rig.in_flight[0].rows
        assert (row.fresh, row.ids, row.n_prompt) == (True, saved.pending, 0)
        rig.finish()
        assert rig.told[request_id].end is not None
    rig.submit(RequestSpec(prompt=(5,), params=penalties, start=start_of(saved)))
    rig.fill()
    assert rig.in_flight[0].rows[0].n_prompt == 2
    rig.finish()


def test_an_id_of_a_prompt_is_not_decoded_where_penalties_would_count_it_as_output() -> None:
    rig = Rig(depth=1)
    spec = RequestSpec(prompt=PROMPT, params=length(0), save=True, hold_back_last=True)
    saved = rig.run(spec).last
    for params, n_prompt in ((length(2), 0), (length(2, presence_penalty=1.0), 1)):
        rig.submit(RequestSpec(prompt=(), params=params, start=start_of(saved)))
        rig.fill()
        (row,) = rig.in_flight[0].rows
        assert row.n_prompt == n_prompt
        rig.finish()


def test_nobody_gives_way_to_another_tenant_or_to_an_equal() -> None:
    rig = Rig(depth=1, n_slots=1, max_hibernated=2)
    rig.submit(RequestSpec(prompt=PROMPT, params=length(20), priority=5, tenant="a"))
    rig.turn()
    other = rig.submit(RequestSpec(prompt=(4,), params=length(5), priority=1, tenant="b"))
    equal = rig.submit(RequestSpec(prompt=(4,), params=length(5), priority=5, tenant="a"))
    rig.turn(10)
    assert rig.told[other].ids == rig.told[equal].ids == []
    rig.finish()
    assert rig.scheduler.stats()["hibernated_total"] == 0


def test_a_tenant_at_its_limit_has_slots_of_its_own_given_up() -> None:
    rig = Rig(depth=1, n_slots=4, max_hibernated=2, limit=1)
    paused = rig.submit(RequestSpec(prompt=PROMPT, params=length(9), credit=1, tenant="a"))
    elsewhere = rig.submit(RequestSpec(prompt=PROMPT, params=length(9), credit=1, tenant="b"))
    rig.turn(3)
    rig.now = 1.0
    other = rig.submit(RequestSpec(prompt=(4,), params=length(2), tenant="a"))
    rig.turn(8)
    assert rig.told[other].end is not None
    assert rig.scheduler.stats()["hibernated_total"] == 1
    for one in (paused, elsewhere):
        rig.scheduler.grant(one, 50, rig.now)
    rig.finish()
    assert rig.told[paused].ids == rig.told[elsewhere].ids == alone(PROMPT, 9)


def test_no_more_requests_hibernate_than_may() -> None:
    rig = Rig(depth=1, n_slots=3, max_hibernated=2)
    paused = [rig.submit(RequestSpec(prompt=PROMPT, params=length(9), credit=1)) for _ in range(3)]
    rig.turn(3)
    rig.now = 1.0
    others = [rig.submit(RequestSpec(prompt=(at,), params=length(40))) for at in range(3)]
    rig.turn(12)
    assert [len(rig.told[one].ids) > 0 for one in others] == [True, True, False]
    assert rig.scheduler.stats()["n_hibernated"] == 2
    deadline = rig.scheduler.next_deadline()
    assert deadline is not None
    assert deadline > rig.now, "the loop would spin"
    for one in paused:
        rig.scheduler.grant(one, 50, rig.now)
    rig.finish()
    assert all(rig.told[one].ids == alone(PROMPT, 9) for one in paused)


def test_a_request_that_got_credit_while_it_left_waits_without_the_clock_of_a_stall() -> None:
    rig = Rig(depth=1, n_slots=1, max_hibernated=1)
    paused = rig.submit(RequestSpec(prompt=PROMPT, params=length(9), credit=2))
    rig.turn(5)
    rig.submit(RequestSpec(prompt=(4, 4), params=length(20)))
    rig.now = 1.0
    rig.fill()
    assert rig.in_flight[0].saves
    rig.scheduler.grant(paused, 50, rig.now)
    rig.land()
    rig.now = 100.0
    rig.finish()
    assert rig.told[paused].ids == alone(PROMPT, 9)


@pytest.mark.parametrize("how", ["cancel", "interrupt", "snapshot", "deadline"])
@pytest.mark.parametrize("n_turns", range(6))
def test_a_request_that_hibernates_can_be_ended_and_looked_at(how: str, n_turns: int) -> None:
    rig = Rig(depth=2, n_slots=1, max_hibernated=2)
    spec = RequestSpec(prompt=PROMPT, params=length(9), credit=2, save=True, timeout_s=50)
    paused = rig.submit(spec)
    rig.turn(6)
    other = rig.submit(RequestSpec(prompt=(4, 4), params=length(9)))
    rig.now = 1.0
    rig.turn(n_turns)
    match how:
        case "cancel":
            rig.scheduler.cancel(paused, rig.now)
        case "interrupt":
            rig.scheduler.interrupt(paused, rig.now)
        case "snapshot":
            assert rig.scheduler.snapshot(paused)
            rig.turn(3)
            (event,) = rig.told[paused].saved
            assert event.saved is not None
            check(event.saved)
            assert [*event.saved.absorbed, *event.saved.pending] == [*PROMPT, *alone(PROMPT, 2)]
            rig.scheduler.grant(paused, 50, rig.now)
        case _:
            rig.now = 50.0
    rig.finish()
    assert rig.told[other].ids == alone((4, 4), 9)
    told = rig.told[paused]
    if how == "interrupt":
        check(told.last)
        assert [*told.last.absorbed, *told.last.pending] == [*PROMPT, *alone(PROMPT, 2)]
    elif how == "snapshot":
        assert told.ids == alone(PROMPT, 9)
        check(told.last)


@given(data=st.data(), depth=st.integers(1, 3), n_slots=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_a_chain_of_turns_is_one_run(
    data: st.DataObject, depth: int, n_slots: int
) -> None:
    """Sessions of a few turns, each from the state before it, among others that hibernate."""
    rig = Rig(
        depth=depth,
        n_slots=n_slots,
        max_hibernated=data.draw(st.integers(0, 2)),
        n_pages=data.draw(st.sampled_from([0, 0, 40, 60])),
        late=data.draw(st.sampled_from([0, 0, 1, 3])),
    )
    sessions = data.draw(st.integers(1, 4))
    logs = [list[int]() for _ in range(sessions)]
    saved: list[Saved | None] = [None] * sessions
    turns = dict[int, int]()
    pending_of = [list[int]() for _ in range(sessions)]
    for _ in range(data.draw(st.integers(3, 25))):
        what = data.draw(st.sampled_from(["turn", "begin", "begin", "interrupt", "grant", "time"]))
        if what == "time":
            rig.now += data.draw(st.sampled_from([0.1, 0.3]))
        elif what == "turn":
            rig.turn(data.draw(st.integers(1, 5)))
        elif what == "begin":
            session = data.draw(st.integers(0, sessions - 1))
            if session in turns.values():
                continue
            before = saved[session]
            can_be_empty = before is not None and before.pending
            n = data.draw(st.sampled_from([0, 1, 2, 70] if can_be_empty else [1, 2, 70]))
            prompt = tuple(7 + (session * 31 + i) % 300 for i in range(n))
            n_out = data.draw(st.integers(0, 6))
            if not n and not n_out:
                continue
            spec = RequestSpec(
                prompt=prompt,
                params=length(n_out),
                start=None if before is None else start_of(before),
                save=True,
                hold_back_last=n > 0 and n_out == 0 and data.draw(st.booleans()),
                credit=data.draw(st.none() | st.integers(0, 2)),
                priority=data.draw(st.integers(0, 1)),
            )
            turns[rig.submit(spec, key=session)] = session
            pending_of[session] = list(prompt)
        elif turns:
            request_id = data.draw(st.sampled_from(sorted(turns)))
            if what == "grant":
                rig.scheduler.grant(request_id, 2, rig.now)
            else:
                rig.scheduler.interrupt(request_id, rig.now)
                rig.note()
        for request_id, session in list(turns.items()):
            if rig.told[request_id].end is not None:
                _take(rig.told[request_id], session, logs, saved)
                del turns[request_id]
    for request_id in turns:
        rig.scheduler.grant(request_id, 50, rig.now)
    rig.finish()
    for request_id, session in turns.items():
        _take(rig.told[request_id], session, logs, saved)


def _take(told: Told, session: int, logs: list[list[int]], saved: list[Saved | None]) -> None:
    before = logs[session]
    now = told.last
    assert now.record == (*before, *now.absorbed)
    assert now.n_computed == len(now.record)
    logs[session] = [*before, *now.absorbed]
    output = told.ids
    known = [*logs[session], *now.pending]
    if output:
        assert known[-len(output) :] == output
        n = len(known) - len(output)
        assert output == alone(tuple(known[:n]), len(output), key=session)
    saved[session] = now
