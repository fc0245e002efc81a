"""Pages of requests: all that one may need, or none; shared where they are full and the same.

The steps run on a fake device whose slots keep their tokens in pages, and nowhere else.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rig import Rig, alone, check, length
from wkvm.core.config import EngineConfig
from wkvm.core.errors import PromptTooLongError, StepFailedError
from wkvm.core.layout import MAX_SLOT_PAGES, PAGE_TOKENS
from wkvm.core.request import RequestSpec, Status
from wkvm.core.scheduler import Scheduler
from wkvm.core.start import Grant, Start

depths = pytest.mark.parametrize("depth", [1, 2, 3])
LONG = tuple(7 + i % 300 for i in range(150))


def spec(n_prompt: int = 100, n: int = 28, **others: object) -> RequestSpec:
    return RequestSpec(prompt=LONG[:n_prompt], params=length(n), **others)  # type: ignore[arg-type]


def free_pages(rig: Rig) -> int:
    return rig.scheduler.stats()["n_free_pages"]


def grants_of(rig: Rig) -> list[Grant]:
    return [grant for plan in rig.in_flight for grant in plan.grants]


def start_at(n_tokens: int) -> Start:
    """A state after so many tokens, of a request that left nothing pending."""
    return Start(record=LONG[:n_tokens], n_computed=n_tokens)


def test_a_request_gets_pages_for_all_that_it_may_absorb_and_gives_them_back() -> None:
    rig = Rig(depth=1, n_pages=8)
    request_id = rig.submit(spec(100, 28))
    rig.turn()
    assert free_pages(rig) == 6
    other = rig.submit(spec(100, 29))
    rig.turn()
    assert free_pages(rig) == 3
    rig.finish()
    assert free_pages(rig) == 8
    assert rig.told[request_id].ids == rig.told[other].ids[:28] == alone(LONG[:100], 28)


@depths
def test_a_request_waits_for_pages_though_slots_are_free(depth: int) -> None:
    rig = Rig(depth=depth, n_pages=3)
    first, second = rig.submit(spec()), rig.submit(spec())
    rig.turn(5)
    stats = rig.scheduler.stats()
    assert (stats["n_running"], stats["n_queued"], stats["n_free_slots"]) == (1, 1, 3)
    assert rig.told[second].ids == []
    rig.finish()
    assert rig.told[first].ids == rig.told[second].ids == alone(LONG[:100], 28)


def test_one_that_waits_for_pages_is_overtaken_by_nobody() -> None:
    rig = Rig(depth=1, n_pages=4)
    rig.submit(spec(tenant="a"))
    rig.turn()
    long = rig.submit(spec(150, 106, tenant="b"))
    short = rig.submit(spec(1, 40, tenant="c"))
    rig.turn(20)
    assert rig.told[short].ids == []
    while rig.told[long].end is None:
        assert rig.told[short].ids == []
        rig.turn()
    rig.finish()


@pytest.mark.parametrize(("n_prompt", "fits"), [(128, True), (129, False)])
def test_what_could_never_fit_is_refused_and_changes_nothing(n_prompt: int, fits: bool) -> None:
    rig = Rig(n_pages=3)
    if fits:
        rig.submit(spec(n_prompt, 64))
        rig.finish()
        return
    before = rig.scheduler.stats()
    with pytest.raises(PromptTooLongError) as caught:
        rig.submit(spec(n_prompt, 64))
    assert (caught.value.n_prompt, caught.value.max_tokens, caught.value.limit) == (129, 64, 192)
    assert rig.scheduler.stats() == before


def test_a_start_counts_with_what_is_pending() -> None:
    rig = Rig(n_pages=3)
    start = Start(record=LONG, n_computed=150, pending=(3,))
    with pytest.raises(PromptTooLongError) as caught:
        rig.submit(RequestSpec(prompt=(4,), params=length(41), start=start))
    assert caught.value.n_prompt == 152


def test_a_tenant_may_hold_its_share_of_the_pages_and_others_go_before_it() -> None:
    rig = Rig(depth=1, n_slots=4, n_pages=8, limit=2)
    first = rig.submit(spec(100, 92, tenant="a"))
    second = rig.submit(spec(100, 92, tenant="a"))
    other = rig.submit(spec(100, 92, tenant="b"))
    rig.turn(3)
    assert rig.told[first].ids
    assert rig.told[other].ids
    assert not rig.told[second].ids
    with pytest.raises(PromptTooLongError):
        rig.submit(spec(150, 107, tenant="a"))
    rig.finish()


def test_the_share_of_a_tenant_is_at_least_a_page_and_at_most_all() -> None:
    shares = [
        EngineConfig(n_slots=n, max_slots_per_tenant=m, guest_tokens=640).max_pages_per_tenant
        for n, m in ((4, 2), (100, 1), (4, 9))
    ]
    assert shares == [5, 1, 10]
    assert EngineConfig(guest_tokens=700).max_pages_per_tenant == 10


def test_one_request_gets_a_million_tokens_at_most() -> None:
    config = EngineConfig(guest_tokens=10 * MAX_SLOT_PAGES * PAGE_TOKENS)
    assert config.max_pages_per_slot == MAX_SLOT_PAGES
    scheduler = Scheduler(config, vocab_size=1000, eos_ids=(), has_guest=True)
    long = RequestSpec(prompt=(1,), params=length(MAX_SLOT_PAGES * PAGE_TOKENS))
    with pytest.raises(PromptTooLongError, match="1048576 tokens"):
        scheduler.submit((1,), long, seed=0, branches=(0,), now=0.0)


@depths
def test_full_pages_of_one_record_are_shared_and_the_last_one_is_copied(depth: int) -> None:
    rig = Rig(depth=depth, n_slots=8, n_pages=12)
    start = start_at(150)
    ids = [
        rig.submit(RequestSpec(prompt=(at,), params=length(20), start=start), key=at)
        for at in range(8)
    ]
    rig.fill()
    first, *others = grants_of(rig)
    assert first.n_shared == 0
    assert all(grant.n_shared == 2 for grant in others)
    assert {grant.pages[:2] for grant in others} == {first.pages[:2]}
    assert len({grant.pages[2] for grant in (first, *others)}) == 8
    assert free_pages(rig) == 2
    rig.finish()
    for at in ids:
        assert rig.told[at].ids == alone((*LONG, at), 20, key=at)


def test_equal_records_that_are_two_objects_share_nothing() -> None:
    rig = Rig(depth=1, n_pages=12)
    for _ in range(2):
        start = Start(record=LONG[:75] + LONG[75:], n_computed=150)
        rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.fill()
    assert [grant.n_shared for grant in grants_of(rig)] == [0, 0]
    rig.finish()


@depths
def test_what_is_shared_outlives_who_brought_it(depth: int) -> None:
    rig = Rig(depth=depth, n_pages=12)
    start = start_at(150)
    first = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.turn(2)
    second = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.turn()
    rig.scheduler.cancel(first, rig.now)
    stranger = rig.submit(spec())
    third = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.fill()
    assert {grant.n_shared for grant in grants_of(rig)} == {0, 2}
    rig.finish()
    assert rig.told[second].ids == rig.told[third].ids == alone((*LONG, 1), 20)
    assert rig.told[stranger].ids == alone(LONG[:100], 28)


@pytest.mark.parametrize("runs", [True, False])
def test_a_plan_that_fails_takes_those_with_it_that_share_what_it_was_to_fill(runs: bool) -> None:
    rig = Rig(depth=2, n_slots=8, n_pages=14)
    start = start_at(150)
    stranger = rig.submit(spec(100, 40))
    rig.turn(2)
    rig.fill()
    rig.land()
    filler = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.fill()
    rig.land()
    sharer = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.fill()
    assert [grant.n_shared for grant in grants_of(rig)] == [0, 2]
    waiting = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start))
    rig.fail(runs=runs)
    for one in (filler, sharer):
        end = rig.told[one].end
        assert end is not None
        assert isinstance(end.error, StepFailedError)
    if not runs:
        rig.in_flight.clear()  # its rows are of no request any more but the stranger's
        return
    rig.finish()
    assert rig.told[waiting].ids == alone((*LONG, 1), 20)
    assert rig.told[stranger].end is not None


@pytest.mark.parametrize("late", [0, 2])
def test_a_copy_keeps_its_pages_until_it_has_come(late: int) -> None:
    rig = Rig(depth=2, n_pages=4, late=late)
    first = rig.submit(spec(130, 5, save=True))
    while not any(plan.saves for plan in rig.in_flight):
        rig.turn()
        rig.fill()
    (save,) = (save for plan in rig.in_flight for save in plan.saves)
    assert len(save.pages) == 3
    other = rig.submit(spec(100, 100))
    assert free_pages(rig) == 1
    while rig.told[first].end is None:
        assert rig.told[other].ids == []
        rig.turn()
    check(rig.told[first].last)
    rig.finish()
    assert rig.told[other].ids == alone(LONG[:100], 100)


def test_a_copy_that_is_late_comes_though_nothing_else_is_to_be_run() -> None:
    rig = Rig(depth=2, n_pages=4, late=5)
    request_id = rig.submit(spec(130, 2, save=True))
    rig.finish()
    check(rig.told[request_id].last)
    assert rig.told[request_id].ids == alone(LONG[:130], 2)


@depths
def test_a_request_without_credit_gives_up_pages_that_another_lacks(depth: int) -> None:
    rig = Rig(depth=depth, n_slots=4, max_hibernated=2, n_pages=4)
    paused = rig.submit(spec(100, 28, credit=3))
    rig.turn(8)
    other = rig.submit(spec(130, 60))
    rig.turn(4)
    assert rig.told[other].ids == [], "it had patience"
    rig.now = 1.0
    while rig.told[other].end is None:
        rig.turn()
    assert rig.told[paused].end is None
    assert free_pages(rig) == 4
    rig.scheduler.grant(paused, 100, rig.now)
    rig.finish()
    assert rig.told[paused].ids == alone(LONG[:100], 28)
    assert rig.told[other].ids == alone(LONG[:130], 60)


def test_freed_pages_are_named_in_the_next_plan() -> None:
    rig = Rig(depth=1, n_pages=4)
    rig.submit(spec(100, 1))
    rig.submit(spec(30, 9))
    rig.turn()
    rig.fill()
    assert sorted(rig.in_flight[0].freed_pages) == [0, 1]
    rig.finish()


def test_without_a_guest_nothing_is_granted_and_no_page_is_counted() -> None:
    rig = Rig(depth=1)
    rig.submit(spec(100, 2))
    rig.fill()
    assert (rig.in_flight[0].grants, rig.in_flight[0].freed_pages) == ((), ())
    assert "n_pages" not in rig.scheduler.stats()
    rig.finish()


def test_who_loads_beside_the_steps_runs_when_it_is_loaded_and_keeps_nobody_waiting() -> None:
    rig = Rig(depth=2, n_slots=4, n_pages=12, late=3)
    stranger = rig.submit(spec(100, 60))
    rig.turn(2)
    start = start_at(150)
    two = [rig.submit(RequestSpec(prompt=(1,), params=length(9), start=start)) for _ in range(2)]
    n_before = len(rig.told[stranger].ids)
    rig.turn(3)
    assert len(rig.told[stranger].ids) == n_before + 3
    assert not any(rig.told[one].ids for one in two)
    rig.finish()
    assert [rig.told[one].ids for one in two] == [alone((*LONG, 1), 9)] * 2


def test_pages_that_are_being_loaded_are_not_given_to_others() -> None:
    rig = Rig(depth=2, n_pages=4, late=4)
    gone = rig.submit(RequestSpec(prompt=(1,), params=length(20), start=start_at(150)))
    rig.turn()
    rig.scheduler.cancel(gone, rig.now)
    other = rig.submit(spec(100, 28))
    rig.turn(2)
    assert free_pages(rig) == 1
    assert rig.told[other].ids == []
    rig.finish()
    assert rig.told[other].ids == alone(LONG[:100], 28)


def test_an_image_that_cannot_be_loaded_ends_those_that_count_on_it() -> None:
    rig = Rig(depth=2, n_pages=12, late=2)
    start = start_at(150)
    ids = [rig.submit(RequestSpec(prompt=(1,), params=length(9), start=start)) for _ in range(2)]
    stranger = rig.submit(spec())
    rig.unloaded = True
    rig.finish()
    for one in ids:
        end = rig.told[one].end
        assert end is not None
        assert isinstance(end.error, StepFailedError)
    assert rig.told[stranger].ids == alone(LONG[:100], 28)
    rig.unloaded = False
    assert rig.run(RequestSpec(prompt=(1,), params=length(9), start=start)).ids == alone(
        (*LONG, 1), 9
    )


@given(data=st.data(), depth=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_to_forks_each_is_the_run_that_it_would_be_alone(
    data: st.DataObject, depth: int
) -> None:
    rig = Rig(
        depth=depth,
        n_slots=data.draw(st.integers(1, 5)),
        max_hibernated=data.draw(st.integers(0, 2)),
        n_pages=data.draw(st.sampled_from([5, 8, 12])),
        late=data.draw(st.sampled_from([0, 2])),
    )
    starts = [start_at(n) for n in (150, 128, 60)]
    wanted = dict[int, list[int]]()
    for _ in range(data.draw(st.integers(3, 25))):
        match data.draw(st.sampled_from(["turn", "fork", "fork", "end", "fail", "time"])):
            case "turn":
                rig.turn(data.draw(st.integers(1, 4)))
            case "time":
                rig.now += 0.3
            case "fork":
                start = data.draw(st.sampled_from(starts))
                n, key = data.draw(st.integers(1, 30)), len(rig.told)
                request = RequestSpec(
                    prompt=(key,),
                    params=length(n),
                    start=start,
                    save=True,
                    credit=data.draw(st.none() | st.integers(0, 3)),
                    priority=data.draw(st.integers(0, 1)),
                )
                wanted[rig.submit(request, key=key)] = alone((*start.record, key), n, key=key)
            case "fail" if rig.in_flight:
                rig.fail()
            case _ if wanted:
                which = data.draw(st.sampled_from(sorted(wanted)))
                how = data.draw(st.sampled_from(["cancel", "interrupt", "snapshot", "grant"]))
                match how:
                    case "cancel":
                        rig.scheduler.cancel(which, rig.now)
                    case "interrupt":
                        rig.scheduler.interrupt(which, rig.now)
                    case "snapshot":
                        rig.scheduler.snapshot(which)
                    case _:
                        rig.scheduler.grant(which, 2, rig.now)
                rig.note()
            case _:
                pass
    for request_id in wanted:
        rig.scheduler.grant(request_id, 50, rig.now)
    rig.finish()
    for request_id, ids in wanted.items():
        told = rig.told[request_id]
        assert told.end is not None
        assert told.ids == ids[: len(told.ids)]
        if told.end.status is Status.LENGTH:
            assert told.ids == ids
