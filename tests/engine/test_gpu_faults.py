"""On a GPU: what goes wrong with one request ends that request, and changes no id of another."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from time import perf_counter

import pytest
import torch
from torch import Tensor
from wkvm_bench.random_weights import random_decoder

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Outcome
from tests.engine.fake_gpu import AheadDriver
from tests.engine.families import CONFIGS
from tests.engine.test_states import start_of
from tests.soak import amount, seed, tell
from wkvm.assembly.engine import build_engine
from wkvm.core.config import EngineConfig
from wkvm.core.errors import (
    ConfigError,
    InvalidParameterError,
    NonFiniteError,
    StepMemoryError,
    TokenOutOfRangeError,
)
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.base import Model
from wkvm.models.registry import load_model

pytestmark = pytest.mark.gpu

N_SLOTS = 64
N_KINDS = 240
"""Different requests, each of which runs alone once."""
CLOSE = 1e-3
"""How far apart, in nats, ids are between which a batch may decide otherwise, in float32."""


@cache
def deterministic() -> Model:
    return load_model(BUNDLED, device="cuda", dtype="bfloat16", deterministic=True)


@cache
def family(name: str) -> Model:
    return random_decoder(CONFIGS[name], device="cuda", dtype=torch.float32, drawn_on="cpu")


def driver_of(model: Model, **settings: object) -> AheadDriver:
    if model.layout.guest is not None:
        settings.setdefault("guest_tokens", N_SLOTS * 8 * PAGE_TOKENS)
    config = EngineConfig(n_slots=N_SLOTS, poison_freed_slots=True, max_queue=10**5)
    return AheadDriver(Engine(model, replace(config, **settings)))  # type: ignore[arg-type]


def kinds_of(n_ids: int, at: int) -> list[RequestSpec]:
    rng = random.Random(at)
    specs = list[RequestSpec]()
    for one in range(N_KINDS):
        params = SamplingParams(max_tokens=rng.randint(1, 16), logprobs=2, ignore_eos=True)
        match one % 4:
            case 0 | 1:
                params = replace(params, temperature=0)
            case 2:
                params = replace(params, seed=one, top_p=0.8)
            case _:
                params = replace(params, seed=one, repetition_penalty=1.3, frequency_penalty=0.4)
        length = rng.choice([1, 2, 63, 64, 65, rng.randint(3, 200)])
        prompt = tuple(rng.choices(range(3, n_ids), k=length))
        specs.append(RequestSpec(prompt=prompt, params=params, tenant=f"tenant-{one % 5}"))
    return specs


def is_what_it_says_alone(got: Outcome, alone: Outcome, *, exact: bool) -> bool:
    """Whether ids are those of a run alone, as far as they go.

    If not ``exact``, they may part where two ids were all but equally likely.
    """
    n = len(got.ids)
    if got.ids == alone.ids[:n]:
        return True
    if exact:
        return False
    at = next(at for at in range(n) if got.ids[at] != alone.ids[at])
    told = alone.logprobs[at]
    assert told is not None
    return abs(told.top[0].logprob - told.top[1].logprob) < CLOSE


def run_crowd(
    driver: AheadDriver, kinds: list[RequestSpec], n: int
) -> tuple[list[tuple[int, int]], int]:
    """Run ``n`` requests drawn from ``kinds`` in bursts; some are cancelled, some have to wait.

    Returns:
        The requests, each with its kind, and how many were cancelled.
    """
    rng = random.Random(seed())
    asked = list[tuple[int, int]]()
    n_cancelled = 0
    ungranted = list[int]()
    while len(asked) < n or not driver.is_idle:
        n_live = sum(driver.outcomes[one].end is None for one, _ in asked[-3 * N_SLOTS :])
        if len(asked) < n and n_live < 2 * N_SLOTS:
            for _ in range(rng.randint(1, N_SLOTS)):
                kind = rng.randrange(len(kinds))
                spec = kinds[kind]
                if rng.random() < 0.1:
                    spec = replace(spec, credit=1)
                (request_id,) = driver.begin(spec)
                asked.append((request_id, kind))
                if spec.credit is not None:
                    ungranted.append(request_id)
        if asked and rng.random() < 0.2:
            request_id, _ = rng.choice(asked[-N_SLOTS:])
            if driver.outcomes[request_id].end is None:
                driver.cancel(request_id)
                n_cancelled += 1
        if len(asked) >= n or rng.random() < 0.3:
            for request_id in ungranted:
                if driver.outcomes[request_id].end is None:
                    driver.engine.grant(request_id, 100, driver.now)
            ungranted.clear()
        driver.step()
    driver.land()
    return asked, n_cancelled


def check_crowd(model: Model, *, exact: bool, n: int, what: str) -> None:
    settings = {"deterministic": True} if exact else {}
    kinds = kinds_of(min(model.info.vocab_size, 4000), at=seed())
    if not exact:
        kinds = [one for one in kinds if one.params.temperature == 0]
    solo = driver_of(model, **settings, prefix_cache_bytes=0)
    alone = [solo.run_spec(one) for one in kinds]
    driver = driver_of(model, **settings)
    began = perf_counter()
    asked, n_cancelled = run_crowd(driver, kinds, n)
    seconds = perf_counter() - began
    for request_id, kind in asked:
        got = driver.outcomes[request_id]
        assert got.status in (Status.LENGTH, Status.CANCELLED)
        if got.status is Status.LENGTH:
            assert len(got.ids) == len(alone[kind].ids)
        assert is_what_it_says_alone(got, alone[kind], exact=exact), (request_id, kind)
    tell(13, what, len(asked), "requests", seconds=round(seconds, 1), cancelled=n_cancelled)


def test_no_id_of_a_request_depends_on_who_runs_beside_it() -> None:
    check_crowd(
        deterministic(), exact=True, n=amount(1000, 10_000), what="isolation, RWKV-7, to the bit"
    )


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "falcon_h1", "kimi_linear"])
def test_no_id_of_a_request_of_a_family_depends_on_who_runs_beside_it(name: str) -> None:
    check_crowd(
        family(name), exact=False, n=amount(300, 2_000), what=f"isolation, {name}, but for ties"
    )


@pytest.mark.parametrize("token_id", [-1, "V", 2**31, 2**63 - 1])
def test_an_id_out_of_range_is_refused_and_nothing_reaches_the_device(
    token_id: int | str,
) -> None:
    driver = driver_of(deterministic(), deterministic=True)
    bad = driver.engine.info.vocab_size if isinstance(token_id, str) else int(token_id)
    control = RequestSpec(
        prompt=(5, 6, 7), params=SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    )
    before = driver.run_spec(control).ids
    params = control.params
    specs = [
        replace(control, prompt=(5, bad, 7)),
        replace(control, params=replace(params, stop_ids=(bad,))),
        replace(control, params=replace(params, logit_bias=((bad, 1.0),))),
        replace(control, params=replace(params, allowed_ids=(bad,))),
    ]
    for spec in specs:
        with pytest.raises((TokenOutOfRangeError, InvalidParameterError)):
            driver.begin(spec)
    assert driver.run_spec(control).ids == before
    tell(13, "ids out of range", len(specs), "requests")


def poison(driver: AheadDriver, request_id: int) -> None:
    """Make the state of a request that runs NaN."""
    slot = driver.engine._scheduler._running[request_id].slot
    assert slot is not None
    record = driver.engine._runner._arena.records[slot]  # type: ignore[attr-defined]
    record.view(torch.float32).fill_(torch.nan)
    torch.cuda.synchronize()


@pytest.mark.parametrize("n_rows", [2, 8, 64])
def test_a_row_of_nan_ends_alone_and_nothing_of_it_is_kept(n_rows: int) -> None:
    driver = driver_of(deterministic(), deterministic=True)
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    specs = [
        RequestSpec(prompt=tuple(range(3 + at, 20 + at)), params=params, save=True)
        for at in range(n_rows)
    ]
    alone = [driver.run_spec(one) for one in specs]
    asked = [driver.begin(one)[0] for one in specs]
    sick = asked[n_rows // 2]
    while len(driver.outcomes[sick].ids) < 5:
        driver.step()
    poison(driver, sick)
    driver.finish()
    driver.land()
    end = driver.outcomes[sick].end
    assert end is not None
    assert end.status is Status.FINISHED_ERROR
    assert isinstance(end.error, NonFiniteError)
    assert end.saved is None
    for request_id, expected in zip(asked, alone, strict=True):
        if request_id != sick:
            got = driver.outcomes[request_id]
            assert got.ids == expected.ids
            assert torch.equal(got.last.record, expected.last.record)
    assert [driver.run_spec(one).ids for one in specs] == [one.ids for one in alone]
    tell(13, "a row of NaN among others", n_rows, "rows")


def test_sixty_four_forks_go_their_own_ways_and_their_parent_stays() -> None:
    driver = driver_of(deterministic(), deterministic=True)
    params = SamplingParams(max_tokens=12, seed=1, ignore_eos=True)
    parent = driver.run_spec(RequestSpec(prompt=tuple(range(3, 90)), params=params, save=True)).last
    before = parent.record.clone()
    start = start_of(parent)
    specs = [
        RequestSpec(prompt=(), params=replace(params, seed=at), start=start, save=True)
        for at in range(64)
    ]
    n = amount(1, 20)
    alone = [driver.run_spec(one) for one in specs]
    for _ in range(n):
        asked = [driver.begin(one)[0] for one in specs]
        driver.finish()
        for request_id, expected in zip(asked, alone, strict=True):
            got = driver.outcomes[request_id]
            assert got.ids == expected.ids
            assert torch.equal(got.last.record, expected.last.record)
    assert len({tuple(one.ids) for one in alone}) > 60
    assert torch.equal(parent.record, before)
    tell(13, "forks of one state in one step", 64 * n, "forks")


@contextmanager
def no_memory(*, few: bool = False) -> Iterator[None]:
    """A device that has no block left for torch; with ``few`` but for bytes that indices take."""
    torch.cuda.synchronize()
    taken = list[Tensor]()
    n_small = 4000 if few else 0
    small = [torch.empty(512, dtype=torch.uint8, device="cuda") for _ in range(n_small)]
    total = torch.cuda.mem_get_info()[1]
    try:
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        for shift in range(32, 8, -1):
            with suppress(torch.OutOfMemoryError):
                while True:
                    taken.append(torch.empty(1 << shift, dtype=torch.uint8, device="cuda"))
        # What is free then are single blocks, which cannot become a larger one.
        del small[::2]
        yield
    finally:
        taken.clear()
        small.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_a_prompt_for_which_there_is_no_memory_ends_alone() -> None:
    driver = driver_of(load_model(BUNDLED, device="cuda", dtype="bfloat16"))
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    running = RequestSpec(prompt=tuple(range(3, 40)), params=params)
    long = RequestSpec(
        prompt=tuple(random.Random(1).choices(range(3, 4000), k=3000)),
        params=replace(params, max_tokens=4, prompt_logprobs=5),
    )
    before = driver.run_spec(running).ids, driver.run_spec(long).ids
    (request_id,) = driver.begin(running)
    while len(driver.outcomes[request_id].ids) < 5:
        driver.step()
    with no_memory(few=True):
        (refused,) = driver.begin(long)
        while driver.outcomes[refused].end is None:
            driver.step()
        n_told = len(driver.outcomes[request_id].ids)
        while len(driver.outcomes[request_id].ids) < n_told + 10:
            driver.step()
    driver.finish()
    end = driver.outcomes[refused].end
    assert end is not None
    assert end.status is Status.FINISHED_ERROR
    assert isinstance(end.error, StepMemoryError)
    assert driver.outcomes[request_id].ids == before[0]
    assert (driver.run_spec(running).ids, driver.run_spec(long).ids) == before
    driver.land()
    assert driver.engine.stats()["n_free_slots"] >= N_SLOTS // 2
    tell(13, "no memory for a prompt", 1, "prompts")


def test_slots_for_which_there_is_no_memory_are_refused_and_fewer_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(n_slots=4096, device="cuda")
    with monkeypatch.context() as patched:
        # Other tests may run on the device.
        total = torch.cuda.mem_get_info()[1]
        patched.setattr(torch.cuda, "mem_get_info", lambda: (2**30, total))
        with pytest.raises(ConfigError, match="slots"):
            build_engine(BUNDLED, config, served_name="bundled")
    with no_memory(), pytest.raises(ConfigError, match="has no room for the model"):
        build_engine(BUNDLED, replace(config, n_slots=4), served_name="bundled")
    engine = build_engine(BUNDLED, replace(config, n_slots=4), served_name="bundled")
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    assert len(AheadDriver(engine).run((5, 6, 7), params).ids) == 4
    tell(13, "no memory at the start", 2, "starts")
