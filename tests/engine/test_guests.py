"""States with a guest: their pages go with them, whole, and nobody else's do.

On a CPU, and through the runner of a GPU, which moves full pages beside its steps. The model reads
every entry of its pages again in each step, and what is wrong with one changes all ids after it.
"""

from dataclasses import replace

import pytest
import torch

from tests.engine.driver import Driver
from tests.engine.fake_gpu import AheadDriver
from tests.engine.test_exactness import crowd, crowded
from tests.engine.test_states import (
    Make,
    greedy,
    save,
    start_of,
    with_guest_on_cpu,
    with_guest_on_gpu,
)
from tests.fakes import GuestModel, fake_continuation
from wkvm.core.errors import InvalidParameterError, PromptTooLongError
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.request import RequestSpec, Status
from wkvm.core.start import Saved
from wkvm.state.guest import n_tokens_of, pages_in

LAYOUT = GuestModel().layout
LONG = tuple((7 * i + i // 9) % 60 for i in range(150))

both = pytest.mark.parametrize("make", [with_guest_on_cpu, with_guest_on_gpu])


def land(driver: Driver) -> None:
    if isinstance(driver, AheadDriver):
        driver.land()


def check_image(saved: Saved) -> None:
    """It is as long as its tokens need, and says how many they are."""
    assert saved.record.shape == (LAYOUT.image_bytes(saved.n_computed),)
    assert n_tokens_of(LAYOUT, saved.record) == saved.n_computed
    n_in_last = saved.n_computed % PAGE_TOKENS
    if n_in_last:
        assert not pages_in(LAYOUT, saved.record)[-1, :, :, n_in_last:].any()


def test_64_requests_that_come_and_go_get_the_ids_of_the_oracle() -> None:
    prompts = [tuple((at + 3 * i) % 60 for i in range(1 + 5 * at)) for at in range(40)]
    config = replace(crowded(7), guest_tokens=PAGE_TOKENS * 9)
    for prompt, n, ids, status in crowd(GuestModel(), prompts, seed=2, config=config).values():
        assert ids == fake_continuation(prompt, n)[: len(ids)]
        assert status is Status.CANCELLED or len(ids) == n


@both
@pytest.mark.parametrize("n", [1, 62, 63, 64, 65, 127, 128, 129])
def test_an_image_has_the_pages_of_its_tokens_and_zeros_behind_them(make: Make, n: int) -> None:
    driver = make(n_slots=1, guest_tokens=3 * PAGE_TOKENS)
    driver.run(LONG, greedy(40))  # every page has been somebody's
    saved = save(driver, LONG[:n], greedy(2)).last
    assert saved.n_computed == n + 1
    check_image(saved)


@both
def test_states_of_the_same_tokens_have_the_same_bytes_whatever_was_in_their_pages(
    make: Make,
) -> None:
    driver = make(n_slots=2)
    whole = save(driver, LONG, greedy(30)).last
    driver.run(LONG[::-1], greedy(40))
    first = save(driver, LONG, greedy(7)).last
    second = driver.run_spec(
        RequestSpec(prompt=(), params=greedy(23), start=start_of(first), save=True)
    )
    assert torch.equal(second.last.record, whole.record)


@both
def test_forks_of_one_image_share_its_full_pages_and_each_leaves_a_state_of_its_own(
    make: Make,
) -> None:
    driver = make(n_slots=8, guest_tokens=16 * PAGE_TOKENS)
    stem = save(driver, LONG, greedy(3))
    before, start = stem.last.record.clone(), start_of(stem.last)
    specs = [
        RequestSpec(prompt=(at,), params=greedy(30), start=start, save=True) for at in range(8)
    ]
    forks = [driver.begin(spec)[0] for spec in specs]
    for _ in range(4):
        driver.step()
    assert driver.engine.stats()["n_running"] == 8
    # Two pages for all of them, and for each the one that is not full.
    assert driver.engine.stats()["n_free_pages"] == 16 - 2 - 8
    driver.finish()
    for at, fork in enumerate(forks):
        outcome = driver.outcomes[fork]
        assert outcome.ids == fake_continuation((*LONG, *stem.ids, at), 30)
        check_image(outcome.last)
        again = start_of(outcome.last, stem.last)
        more = driver.run_spec(RequestSpec(prompt=(), params=greedy(9), start=again))
        assert more.ids == fake_continuation((*LONG, *stem.ids, at, *outcome.ids), 9)
    assert torch.equal(stem.last.record, before)
    land(driver)
    assert driver.engine.stats()["n_free_pages"] == 16


@both
def test_a_request_that_gave_up_its_pages_goes_on_as_if_it_had_not(make: Make) -> None:
    driver = make(n_slots=2, guest_tokens=4 * PAGE_TOKENS, max_hibernated=1)
    (paused,) = driver.begin(RequestSpec(prompt=LONG[:100], params=greedy(25), credit=3))
    for _ in range(8):
        driver.step()
    (other,) = driver.begin(RequestSpec(prompt=LONG, params=greedy(20)))
    while driver.outcomes[other].end is None:
        driver.step()
    assert driver.outcomes[other].ids == fake_continuation(LONG, 20)
    assert driver.engine.stats()["hibernated_total"] == 1
    driver.engine.grant(paused, 99, driver.now)
    driver.finish()
    assert driver.outcomes[paused].ids == fake_continuation(LONG[:100], 25)


@both
@pytest.mark.parametrize("n_steps", range(1, 8))
def test_whoever_is_cancelled_while_its_image_comes_or_goes_disturbs_nobody(
    make: Make, n_steps: int
) -> None:
    driver = make(n_slots=3, guest_tokens=7 * PAGE_TOKENS)
    start = start_of(save(driver, LONG, greedy(3)).last)
    fork = RequestSpec(prompt=(1,), params=greedy(2), start=start, save=True)
    (gone,) = driver.begin(fork)
    (kept,) = driver.begin(fork)
    (other,) = driver.begin(RequestSpec(prompt=LONG[:100], params=greedy(20)))
    for _ in range(n_steps):
        driver.step()
    driver.cancel(gone)
    (last,) = driver.begin(RequestSpec(prompt=LONG[:90], params=greedy(20)))
    driver.finish()
    log = [*start.log, *start.pending, 1]
    assert driver.outcomes[kept].ids == fake_continuation(log, 2)
    check_image(driver.outcomes[kept].last)
    assert driver.outcomes[other].ids == fake_continuation(LONG[:100], 20)
    assert driver.outcomes[last].ids == fake_continuation(LONG[:90], 20)
    land(driver)
    assert driver.engine.stats()["n_free_pages"] == 7


def test_steps_go_on_while_full_pages_are_on_their_way() -> None:
    driver = with_guest_on_gpu(n_slots=2)
    (saving,) = driver.begin(RequestSpec(prompt=LONG, params=greedy(1), save=True))
    (other,) = driver.begin(RequestSpec(prompt=(1,), params=greedy(60)))
    n_before = list[int]()
    while driver.outcomes[saving].end is None:
        n_before.append(len(driver.outcomes[other].ids))
        driver.step()
    assert n_before[-1] > n_before[0] + 2
    driver.finish()
    assert driver.outcomes[other].ids == fake_continuation((1,), 60)


@both
@pytest.mark.parametrize("wrong", [-1, 0, 151, 2**31 - 1])
def test_a_count_of_tokens_that_is_not_the_states_is_refused(make: Make, wrong: int) -> None:
    driver = make()
    start = start_of(save(driver, LONG, greedy(1)).last)
    record = start.record.clone()
    at = LAYOUT.offsets[[spec.name for spec in LAYOUT.tensors].index("guest.n_tokens")]
    record[at : at + 4].view(torch.int32)[0] = wrong
    with pytest.raises(InvalidParameterError, match="tokens in its pages"):
        driver.begin(
            RequestSpec(prompt=(1,), params=greedy(1), start=replace(start, record=record))
        )


@both
@pytest.mark.parametrize("n_bytes", [-1, 256, -2048, 2048])
def test_an_image_with_too_many_or_too_few_bytes_is_refused(make: Make, n_bytes: int) -> None:
    driver = make()
    start = start_of(save(driver, LONG, greedy(1)).last)
    record = torch.zeros(len(start.record) + n_bytes, dtype=torch.uint8)
    with pytest.raises(InvalidParameterError, match="150 tokens"):
        driver.begin(
            RequestSpec(prompt=(1,), params=greedy(1), start=replace(start, record=record))
        )


@both
def test_what_the_pool_could_never_hold_is_refused_and_the_limit_is_told(make: Make) -> None:
    driver = make(guest_tokens=3 * PAGE_TOKENS + 10)
    assert driver.engine.info.max_model_len == 3 * PAGE_TOKENS
    assert driver.engine.info.n_pages == 3
    with pytest.raises(PromptTooLongError, match="192 tokens"):
        driver.submit(LONG, greedy(43))
    assert driver.run(LONG, greedy(42)).ids == fake_continuation(LONG, 42)
