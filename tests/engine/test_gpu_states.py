"""On a GPU: a state that leaves its slot and comes back has the same bits, and nobody waits."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.engine.conftest import BUNDLED
from tests.engine.fake_gpu import AheadDriver
from tests.engine.test_exactness import text_ids
from tests.engine.test_states import start_of
from wkvm.core.config import EngineConfig
from wkvm.core.plan import StepPlan
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.state_mover import N_BUFFERS, StateMover
from wkvm.models.base import Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena

pytestmark = pytest.mark.gpu

PROMPT = tuple(text_ids()[:70])
N = 40
PARAMS = [
    SamplingParams(temperature=0, ignore_eos=True),
    SamplingParams(seed=5, top_p=0.9, ignore_eos=True),
    SamplingParams(
        seed=5,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        penalty_decay=0.9,
        ignore_eos=True,
    ),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(BUNDLED, device="cuda", dtype="bfloat16")


@pytest.fixture(scope="module")
def driver(model: Model) -> AheadDriver:
    # One row at a time: its products are the same ones in every step.
    return AheadDriver(Engine(model, EngineConfig(n_slots=1, poison_freed_slots=True)))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises."""
    try:
        with warnings.catch_warnings(action="ignore"):  # that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("k", [1, 7, 33])
def test_a_state_that_went_on_is_that_of_one_run_to_the_bit(
    driver: AheadDriver, params: SamplingParams, k: int
) -> None:
    whole = driver.run_spec(
        RequestSpec(prompt=PROMPT, params=replace(params, max_tokens=N), save=True)
    )
    first = driver.run_spec(
        RequestSpec(prompt=PROMPT, params=replace(params, max_tokens=k), save=True)
    )
    second = driver.run_spec(
        RequestSpec(
            prompt=(),
            params=replace(params, max_tokens=N - k, seed=None),
            start=start_of(first.last),
            save=True,
        )
    )
    assert first.ids + second.ids == whole.ids
    assert torch.equal(second.last.record, whole.last.record)
    assert second.last.pending == whole.last.pending
    assert second.last.memory is not None
    assert whole.last.memory is not None
    assert second.last.memory.counts == whole.last.memory.counts
    assert second.last.record.is_pinned()


def test_with_deferred_writes_a_state_goes_on_with_its_ring(model: Model) -> None:
    model = load_model(
        BUNDLED,
        device="cuda",
        dtype="bfloat16",
        state=EngineConfig(deferred_writes=True).state,
    )
    driver = AheadDriver(Engine(model, EngineConfig(n_slots=1)))
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    whole = driver.run_spec(RequestSpec(prompt=PROMPT, params=params, save=True))
    for k in (1, 5, 8, 9):
        first = driver.run_spec(
            RequestSpec(prompt=PROMPT, params=replace(params, max_tokens=k), save=True)
        )
        second = driver.run_spec(
            RequestSpec(
                prompt=(),
                params=replace(params, max_tokens=30 - k),
                start=start_of(first.last),
                save=True,
            )
        )
        assert first.ids + second.ids == whole.ids
        assert torch.equal(second.last.record, whole.last.record)


def test_a_request_that_gave_up_its_slot_ends_in_the_same_state(driver: AheadDriver) -> None:
    params = replace(PARAMS[2], max_tokens=N)
    whole = driver.run_spec(RequestSpec(prompt=PROMPT, params=params, save=True))
    spec = RequestSpec(prompt=PROMPT, params=params, credit=9, save=True)
    (paused,) = driver.begin(spec)
    while len(driver.outcomes[paused].ids) < 9:
        driver.step()
    other = driver.submit(PROMPT[:9], replace(PARAMS[1], max_tokens=20))
    while driver.outcomes[other].end is None:
        driver.step()
    driver.engine.grant(paused, N, driver.now)
    driver.finish()
    assert driver.outcomes[paused].ids == whole.ids
    assert torch.equal(driver.outcomes[paused].last.record, whole.last.record)


def test_a_record_is_the_same_in_sixty_four_slots_and_in_no_other(model: Model) -> None:
    arena = Arena(model.layout, 66, "cuda")
    mover = StateMover(model.layout.record_bytes, "cuda")
    record = torch.randint(0, 256, (model.layout.record_bytes,), dtype=torch.uint8).pin_memory()
    with mover.up(record) as there:
        arena.fill(there, range(1, 65))
    host = arena.records.cpu()
    assert (host[1:65] == record).all()
    assert not host[[0, 65]].any()


def test_forks_of_one_state_in_one_step_give_the_ids_of_one_that_runs_alone(model: Model) -> None:
    model = load_model(BUNDLED, device="cuda", dtype="float32", deterministic=True)
    config = EngineConfig(n_slots=64, poison_freed_slots=True, deterministic=True)
    driver = AheadDriver(Engine(model, config))
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    start = start_of(driver.run_spec(RequestSpec(prompt=PROMPT, params=params, save=True)).last)
    spec = RequestSpec(prompt=(), params=params, start=start)
    alone = driver.run_spec(spec)
    forks = [driver.begin(spec)[0] for _ in range(64)]
    driver.finish()
    assert all(driver.outcomes[one].ids == alone.ids for one in forks)


def test_no_launch_waits_for_states_that_come_and_go(model: Model) -> None:
    engine = Engine(model, EngineConfig(n_slots=8, poison_freed_slots=True))
    driver, launch = AheadDriver(engine), engine.launch

    def guarded(plan: StepPlan) -> None:
        with no_waiting():
            launch(plan)

    engine.launch = guarded  # type: ignore[method-assign]
    for params in PARAMS:
        saved = [
            driver.run_spec(
                RequestSpec(
                    prompt=PROMPT[: 9 + at], params=replace(params, max_tokens=6), save=True
                )
            ).last
            for at in range(6)
        ]
        later = [
            driver.begin(
                RequestSpec(
                    prompt=PROMPT[:at],
                    params=replace(params, max_tokens=5, seed=None),
                    start=start_of(one),
                    save=True,
                    checkpoint_every=8,
                )
            )[0]
            for at, one in enumerate(saved)
        ]
        driver.finish()
        assert all(driver.outcomes[one].status is Status.LENGTH for one in later)


def test_states_that_go_up_one_after_another_do_not_overwrite_each_other() -> None:
    n_bytes = 8 << 20
    mover = StateMover(n_bytes, "cuda")
    records = [
        torch.full((n_bytes,), at, dtype=torch.uint8, pin_memory=at % 3 > 0)
        for at in range(3 * N_BUFFERS)
    ]
    slots = torch.zeros(len(records), n_bytes, dtype=torch.uint8, device="cuda")
    torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]
    for slot, record in zip(slots, records, strict=True):
        with mover.up(record) as there:
            slot.copy_(there)
    copies = [mover.down(slot) for slot in slots]
    # What is launched after a copy may overwrite the slot.
    slots.fill_(255)
    for copy, record in zip(copies, records, strict=True):
        assert torch.equal(copy.wait(), record)


def test_a_record_that_is_there_already_is_not_sent_again() -> None:
    n_bytes = 1 << 20
    mover = StateMover(n_bytes, "cuda")
    record = torch.zeros(n_bytes, dtype=torch.uint8).pin_memory()
    with mover.up(record) as first:
        pass
    with mover.up(record) as second:
        assert second.data_ptr() == first.data_ptr()
