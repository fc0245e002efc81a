"""Who is refused, or given up, because it would be over too late; and when to try again."""

import random
from collections import Counter

import pytest

from tests.core.driver import answer, ends, make_scheduler, step, submit
from wkvm.core.config import EngineConfig
from wkvm.core.errors import ConfigError, OverloadedError, QueueFullError, WkvmError
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

STEP_S = 0.1
TEN = SamplingParams(max_tokens=10, ignore_eos=True)
"""One second's worth."""


class Clocked:
    """A scheduler whose steps take ``STEP_S``, and what became of its requests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.step_s = STEP_S
        self.n = 0
        self.ended = dict[int, tuple[Status, WkvmError | None, int]]()
        self.refused = list[tuple[str, float | None]]()
        self.tenants = dict[int, str]()

    def submit(
        self,
        params: SamplingParams = TEN,
        *,
        timeout_s: float | None = None,
        tenant: str = "a",
        priority: int = 0,
    ) -> int | None:
        """A request's id; None if it is refused."""
        self.n += 1
        try:
            submit(
                self.scheduler,
                self.n,
                params=params,
                now=self.now,
                tenant=tenant,
                timeout_s=timeout_s,
                priority=priority,
            )
        except (OverloadedError, QueueFullError) as error:
            self.refused.append((tenant, error.retry_after_s))
            return None
        self.tenants[self.n] = tenant
        return self.n

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            plan = self.scheduler.plan(self.now)
            self.now += self.step_s
            if plan is not None:
                self.scheduler.commit(plan, answer(plan), self.now)
            for end in ends(self.scheduler.take_events()):
                self.ended[end.request_id] = end.status, end.error, end.n_output

    def fill(self, n: int, **fields: object) -> None:
        """Have ``n`` wait, whose time is long, once all slots are taken and the pace is known."""
        for _ in range(n):
            assert self.submit(timeout_s=1e6) is not None


def busy(n_waiting: int, *, n_slots: int = 2, max_queue: int = 1000) -> Clocked:
    """A scheduler that has run for long, and has so many waiting: two leave the line a second."""
    clocked = Clocked(make_scheduler(n_slots=n_slots, max_queue=max_queue))
    clocked.fill(n_slots * 12)
    clocked.step(100)
    while clocked.scheduler.stats()["n_queued"] < n_waiting:
        clocked.fill(1)
    return clocked


def test_who_would_be_over_too_late_is_refused_at_once() -> None:
    clocked = busy(20)
    assert clocked.submit(timeout_s=5) is None


def test_who_would_be_over_in_time_is_taken_although_many_wait() -> None:
    clocked = busy(20)
    one = clocked.submit(timeout_s=20)
    assert one is not None
    clocked.step(200)
    assert clocked.ended[one][0] is Status.LENGTH


def test_nobody_is_refused_for_want_of_time_at_an_idle_server() -> None:
    clocked = busy(0)
    clocked.step(100)
    assert clocked.submit(timeout_s=0.2) is not None


def test_who_asks_for_more_than_fits_in_its_time_gets_what_fits() -> None:
    clocked = busy(4)
    one = clocked.submit(SamplingParams(max_tokens=100, ignore_eos=True), timeout_s=6)
    assert one is not None
    clocked.step(100)
    status, _, n_output = clocked.ended[one]
    assert status is Status.TIMED_OUT
    assert n_output > 0


def test_a_request_whose_time_does_not_suffice_any_more_is_given_up_before_it_costs_anything() -> (
    None
):
    clocked = busy(0)
    clocked.step(100)
    long = SamplingParams(max_tokens=35, ignore_eos=True)
    for _ in range(2):
        clocked.submit(long, timeout_s=1e6)
    one = clocked.submit(timeout_s=4)  # by what ran before, a slot is free in half a second
    assert one is not None
    clocked.step(40)
    status, error, n_output = clocked.ended[one]
    assert status is Status.FINISHED_ERROR
    assert isinstance(error, OverloadedError)
    assert n_output == 0
    assert clocked.scheduler.stats()["too_late_total"] == 1


def test_a_refusal_says_when_those_that_wait_will_have_had_their_turns() -> None:
    clocked = busy(20)
    assert clocked.submit(timeout_s=5) is None
    (_, retry_after_s), *_ = clocked.refused
    assert retry_after_s == pytest.approx(10, rel=0.3)


def test_a_full_line_says_when_to_try_again() -> None:
    clocked = busy(20, max_queue=30)
    while clocked.submit(timeout_s=1e6) is not None:
        pass
    (_, retry_after_s), *_ = clocked.refused
    assert retry_after_s == pytest.approx(15, rel=0.3)


def test_a_server_that_has_measured_nothing_says_nothing() -> None:
    clocked = Clocked(make_scheduler(n_slots=1, max_queue=0))
    clocked.submit()
    clocked.step(1)
    assert clocked.submit() is None
    assert clocked.refused == [("a", None)]


def test_the_line_of_one_tenant_keeps_no_other_waiting() -> None:
    clocked = busy(40)
    assert clocked.submit(timeout_s=5) is None
    one = clocked.submit(timeout_s=5, tenant="b")
    assert one is not None
    clocked.step(50)
    assert clocked.ended[one][0] is Status.LENGTH


def test_those_of_a_later_priority_keep_nobody_waiting() -> None:
    clocked = busy(40)
    assert clocked.submit(timeout_s=5) is None
    one = clocked.submit(timeout_s=5, priority=-1)
    assert one is not None
    clocked.step(50)
    assert clocked.ended[one][0] is Status.LENGTH


@pytest.mark.parametrize(("n_waiting", "is_taken"), [(7, True), (8, True), (9, False)])
def test_a_limit_on_the_wait_is_held(n_waiting: int, is_taken: bool) -> None:
    # two leave the line a second, so that the next one waits half a second for each
    config = EngineConfig(n_slots=2, max_queue_s=4.6)
    clocked = Clocked(Scheduler(config, vocab_size=1000, eos_ids=(0, 1)))
    for _ in range(400):
        while clocked.scheduler.stats()["n_queued"] < 2:
            assert clocked.submit() is not None
        clocked.step()
    while clocked.scheduler.stats()["n_queued"] < n_waiting:
        assert clocked.submit() is not None
    assert (clocked.submit() is not None) == is_taken


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_no_wait_is_no_limit(seconds: float) -> None:
    with pytest.raises(ConfigError, match="max-queue-s"):
        EngineConfig(max_queue_s=seconds)


def test_outputs_that_stop_early_are_expected_to_stop_early() -> None:
    clocked = Clocked(make_scheduler(n_slots=2))
    stops = SamplingParams(max_tokens=100)
    for _ in range(24):
        clocked.submit(stops, timeout_s=1e6)
    for _ in range(30):
        step(clocked.scheduler, clocked.now, 500)
        clocked.now += STEP_S
        step(clocked.scheduler, clocked.now, 0)  # ends a turn: two steps of a hundred
        clocked.now += STEP_S
        clocked.scheduler.take_events()
        while clocked.scheduler.stats()["n_queued"] < 10:
            clocked.submit(stops, timeout_s=1e6)
    assert clocked.submit(stops, timeout_s=11) is not None


def test_who_names_no_time_of_its_own_gets_a_free_slot_of_a_server_that_became_slower() -> None:
    scheduler = make_scheduler(n_slots=4, request_timeout_s=100.0)
    clocked = Clocked(scheduler)
    long = SamplingParams(max_tokens=600, ignore_eos=True)
    assert clocked.submit(long) is not None
    clocked.step(20)
    clocked.step_s = 4 * STEP_S  # by now 600 steps take longer than the time that there is
    clocked.step(60)
    two = clocked.submit(long)
    assert two is not None
    clocked.step(3)
    assert two not in clocked.ended


def test_a_server_that_became_too_slow_for_everybody_finds_out_when_it_is_faster_again() -> None:
    clocked = busy(0)
    clocked.step(100)
    clocked.step_s = 1.0  # ten times as long: nobody is over in time
    for _ in range(60):
        clocked.submit(timeout_s=5.0)
        clocked.step()
    assert clocked.scheduler.stats()["timed_out_total"] < 16, "all slots worked for nobody"
    clocked.step_s = STEP_S
    for _ in range(100):
        clocked.submit(timeout_s=5.0)
        clocked.step()
    one = clocked.submit(timeout_s=10.0)
    assert one is not None
    clocked.step(100)
    assert clocked.ended[one][0] is Status.LENGTH


@pytest.mark.parametrize("load", [1, 2, 4])
def test_what_is_of_use_does_not_collapse_under_load(load: int) -> None:
    """Of ids that were computed, nine in ten belong to answers that came in time."""
    draw, clocked = random.Random(load), Clocked(make_scheduler(n_slots=4, max_queue=1000))
    n_steps, most_queued = 2000, 0
    due = draw.expovariate(load * 4.0)
    for _ in range(n_steps):
        while due <= clocked.now:
            clocked.submit(timeout_s=3.0, tenant=draw.choice("aab"))
            due += draw.expovariate(load * 4.0)
        clocked.step()
        most_queued = max(most_queued, clocked.scheduler.stats()["n_queued"])
    good = sum(n for status, _, n in clocked.ended.values() if status is Status.LENGTH)
    assert good >= (0.9 if load > 1 else 0.75) * 4 * n_steps
    assert most_queued <= 16, "the line is longer than anybody's time"
    if load > 1:
        served = Counter(
            clocked.tenants[one]
            for one, (status, _, _) in clocked.ended.items()
            if status is Status.LENGTH
        )
        assert served["b"] >= 0.45 * served.total(), "one has sent twice what the other has"


def test_where_a_full_server_is_too_slow_fewer_run_at_a_time() -> None:
    """Steps of all 16 slots would take 0.18 s, and ten of them longer than anybody's time."""
    draw, clocked = random.Random(1), Clocked(make_scheduler(n_slots=16, max_queue=1000))
    due = draw.expovariate(32)
    while clocked.now < 60:
        while due <= clocked.now:
            clocked.submit(timeout_s=1.5)
            due += draw.expovariate(32)
        clocked.step_s = 0.02 + 0.01 * clocked.scheduler.stats()["n_running"]
        clocked.step()
    n_good = sum(status is Status.LENGTH for status, _, _ in clocked.ended.values())
    assert n_good >= 5 * 60, "about seven a second could be over in time"
