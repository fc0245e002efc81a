"""Prompts that begin as others did go on from what is kept of them, and nothing else changes."""

from collections.abc import Iterable

import pytest
import torch

from tests.engine.driver import Driver, Outcome, greedy
from tests.engine.fake_gpu import (
    AheadDriver,
    SteppingGuestModel,
    SteppingModel,
    fake_gpu_runner,
)
from tests.engine.families import decoder_of, prompt_of
from tests.hash_model import HashLog, HashModel
from wkvm.core.config import EngineConfig
from wkvm.core.errors import NonFiniteError
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.models.base import Model

VOCAB_SIZE = 64


def ids(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple((7 * at + at * at * (seed + 1) + seed) % 61 for at in range(n))


def config(**settings: object) -> EngineConfig:
    given: dict[str, object] = {
        "n_slots": 8,
        "poison_freed_slots": True,
        "guest_tokens": 200 * PAGE_TOKENS,
        "n_threads": 1,
        "prefix_cache_every": 0,
        **settings,
    }
    return EngineConfig(**given)  # type: ignore[arg-type]


DEVICE = {"prefix_cache_device_bytes": 2**22}
HOST = {"prefix_cache_device_bytes": 0}
TIERS = pytest.mark.parametrize("tier", [DEVICE, HOST], ids=["device", "host"])
GUESTS = pytest.mark.parametrize("has_guest", [False, True], ids=["record", "pages"])


class Rig(Driver):
    """A driver over the hash model that knows what should come."""

    def __init__(self, *, has_guest: bool = False, **settings: object) -> None:
        self.hashes = HashModel(has_guest=has_guest)
        super().__init__(self.hashes, config(**settings))

    def ask(
        self, prompt: tuple[int, ...], *, n: int = 4, tenant: str = "local", **others: object
    ) -> int:
        spec = RequestSpec(prompt=prompt, params=greedy(n), tenant=tenant, **others)  # type: ignore[arg-type]
        return self.begin(spec)[0]

    def said(self, prompt: tuple[int, ...], **others: object) -> Outcome:
        request_id = self.ask(prompt, **others)  # type: ignore[arg-type]
        self.finish()
        outcome = self.outcomes[request_id]
        assert outcome.ids == HashLog(prompt).generate(len(outcome.ids))
        return outcome

    def computed(self) -> int:
        """Tokens of prompts that were computed since the last call."""
        before, self._n = getattr(self, "_n", 0), self.stats["prompt_tokens_total"]
        return self._n - before

    @property
    def stats(self) -> dict[str, int]:
        return dict(self.engine.stats())

    def check_room(self) -> None:
        stats = self.stats
        assert stats["n_free_slots"] == stats["n_slots"]
        assert stats.get("n_free_pages") == stats.get("n_pages")
        assert stats["n_prefix_waiting"] == 0


def n_reused(outcome: Outcome) -> int:
    assert outcome.end is not None
    assert outcome.reused == outcome.end.n_reused
    return outcome.reused


@TIERS
@GUESTS
def test_a_prompt_that_comes_again_is_computed_from_its_last_cut(
    tier: dict[str, object], has_guest: bool
) -> None:
    rig = Rig(has_guest=has_guest, **tier)
    assert n_reused(rig.said(ids(300))) == 0
    assert rig.computed() == 300
    assert n_reused(rig.said(ids(300))) == 256
    assert rig.computed() == 44
    rig.check_room()


@TIERS
@GUESTS
def test_a_longer_prompt_goes_on_from_the_border_of_a_message(
    tier: dict[str, object], has_guest: bool
) -> None:
    rig = Rig(has_guest=has_guest, **tier)
    first = ids(300)
    rig.said(first, borders=(140,))
    second = first[:150] + ids(200, seed=3)
    assert n_reused(rig.said(second)) == 128
    assert n_reused(rig.said(first + ids(100, seed=5))) == 256
    rig.check_room()


@TIERS
@GUESTS
def test_an_edited_prompt_leaves_a_checkpoint_where_it_parted(
    tier: dict[str, object], has_guest: bool
) -> None:
    rig = Rig(has_guest=has_guest, **tier)
    rig.said(ids(400))
    assert n_reused(rig.said(ids(200) + ids(200, seed=1))) == 0
    assert n_reused(rig.said(ids(200) + ids(200, seed=2))) == 192


@TIERS
@GUESTS
def test_the_same_prompt_many_times_at_once_costs_one_prefill(
    tier: dict[str, object], has_guest: bool
) -> None:
    rig = Rig(has_guest=has_guest, n_slots=20, **tier)
    asked = [rig.ask(ids(1000)) for _ in range(16)]
    rig.finish()
    # A page that is partly full is shared by nobody, so with pages they part at the last cut.
    assert rig.computed() == 1000 + 15 * (40 if has_guest else 1)
    for one in asked:
        assert rig.outcomes[one].ids == HashLog(ids(1000)).generate(4)
    rig.check_room()


@TIERS
@GUESTS
def test_choices_of_one_request_cost_one_prefill(tier: dict[str, object], has_guest: bool) -> None:
    rig = Rig(has_guest=has_guest, n_slots=20, **tier)
    asked = rig.begin(RequestSpec(prompt=ids(1000), params=SamplingParams(n=16, max_tokens=5)))
    rig.finish()
    assert rig.computed() == 1000 + 15 * (40 if has_guest else 1)
    assert len({tuple(rig.outcomes[one].ids) for one in asked}) > 1
    rig.check_room()
    stats = rig.stats
    assert stats["n_prefixes_host"] + stats["n_prefixes_device"] == 1


@TIERS
def test_choices_of_2156_tokens_compute_one_more_token_each(tier: dict[str, object]) -> None:
    rig = Rig(n_slots=20, **tier)  # type: ignore[arg-type]
    asked = rig.begin(RequestSpec(prompt=ids(2156), params=SamplingParams(n=16, max_tokens=5)))
    rig.finish()
    assert rig.computed() == 2156 + 15
    assert [n_reused(rig.outcomes[one]) for one in asked] == [0] + 15 * [2155]


@TIERS
def test_choices_keep_the_grid_in_deterministic_mode(tier: dict[str, object]) -> None:
    rig = Rig(n_slots=20, deterministic=True, **tier)  # type: ignore[arg-type]
    rig.begin(RequestSpec(prompt=ids(1000), params=SamplingParams(n=16, max_tokens=5)))
    rig.finish()
    assert rig.computed() == 1000 + 15 * 40


@TIERS
@pytest.mark.parametrize("n_tokens", [66, 129, 300])
def test_choices_say_what_they_say_when_each_computes_all(
    tier: dict[str, object], n_tokens: int
) -> None:
    params = SamplingParams(
        n=6, max_tokens=12, seed=3, temperature=1.3, repetition_penalty=1.4, presence_penalty=0.5
    )
    said = list[list[list[int]]]()
    for n_bytes in (0, 2**30):
        rig = Rig(prefix_cache_bytes=n_bytes, **tier)  # type: ignore[arg-type]
        asked = rig.begin(RequestSpec(prompt=ids(n_tokens), params=params))
        rig.finish()
        said.append([rig.outcomes[one].ids for one in asked])
        assert rig.computed() == (n_tokens + 5 if n_bytes else 6 * n_tokens)
    assert said[0] == said[1]


@TIERS
@pytest.mark.parametrize("n_steps", [1, 3, 8, 9])
def test_the_second_choice_computes_the_prompt_if_the_first_is_cancelled(
    tier: dict[str, object], n_steps: int
) -> None:
    rig = Rig(max_num_batched_tokens=128, **tier)  # type: ignore[arg-type]
    asked = rig.begin(RequestSpec(prompt=ids(1000), params=SamplingParams(n=4, max_tokens=5)))
    for _ in range(n_steps):
        rig.step()
    assert rig.stats["n_prefix_waiting"] == 3
    rig.cancel(asked[0])
    rig.finish()
    n_kept = 960 if n_steps == 9 else 0
    assert [n_reused(rig.outcomes[one]) for one in asked[1:]] == [n_kept, 999, 999]
    assert {rig.outcomes[one].status for one in asked[1:]} == {Status.LENGTH}
    rig.check_room()


def test_choices_of_a_prompt_that_is_not_finite_all_end_so() -> None:
    model = HashModel(nan_id=63)
    prompt = (*ids(170), 63, *ids(10))
    forward = model.forward

    def stained(batch, states):  # type: ignore[no-untyped-def]
        logits = forward(batch, states)
        if 63 in batch.token_ids.tolist():
            states["hash.zero"][list(batch.slot_list)] = float("nan")
        return logits

    model.forward = stained  # type: ignore[method-assign]
    driver = Driver(model, config())
    asked = driver.begin(RequestSpec(prompt=prompt, params=SamplingParams(n=3, max_tokens=5)))
    driver.finish()
    for one in asked:
        end = driver.outcomes[one].end
        assert isinstance(end and end.error, NonFiniteError)
    assert [driver.outcomes[one].reused for one in asked] == [0, 128, 128]
    assert driver.engine.stats()["n_prefixes_host"] == 1


@TIERS
@GUESTS
def test_three_questions_about_one_document_compute_it_once(
    tier: dict[str, object], has_guest: bool
) -> None:
    rig = Rig(has_guest=has_guest, max_num_batched_tokens=256, **tier)
    document = ids(2000)
    questions = [document + ids(50, seed) for seed in (11, 12, 13)]
    asked = [rig.ask(question) for question in questions]
    rig.finish()
    assert rig.computed() == 2050 + 2 * (2050 - 1984)
    for one, question in zip(asked, questions, strict=True):
        assert rig.outcomes[one].ids == HashLog(question).generate(4)
    rig.check_room()


def test_whoever_comes_while_a_document_is_absorbed_waits_for_it() -> None:
    rig = Rig(max_num_batched_tokens=256)
    rig.ask(ids(2000))
    rig.step()
    rig.step()
    late = rig.ask(ids(1800) + ids(50, seed=1))
    rig.finish()
    assert rig.outcomes[late].reused == 1792
    assert rig.computed() == 2000 + 58


@GUESTS
def test_the_next_one_takes_over_if_the_first_is_cancelled(has_guest: bool) -> None:
    rig = Rig(has_guest=has_guest, max_num_batched_tokens=128)
    asked = [rig.ask(ids(1000)) for _ in range(4)]
    rig.step()
    assert rig.stats["n_prefix_waiting"] == 3
    rig.cancel(asked[0])
    rig.finish()
    n_common = 960 if has_guest else 999
    assert rig.computed() == 128 + 1000 + 2 * (1000 - n_common)
    assert [rig.outcomes[one].reused for one in asked[1:]] == [0, n_common, n_common]
    rig.check_room()


def test_one_that_waits_can_be_cancelled() -> None:
    rig = Rig(max_num_batched_tokens=128)
    first, second = rig.ask(ids(1000)), rig.ask(ids(1000))
    rig.step()
    rig.cancel(second)
    assert rig.outcomes[second].status is Status.CANCELLED
    rig.finish()
    assert rig.outcomes[first].status is Status.LENGTH
    rig.check_room()


def test_nobody_waits_for_a_request_of_lower_priority() -> None:
    rig = Rig(max_num_batched_tokens=128)
    rig.ask(ids(1000), priority=1)
    rig.step()
    rig.ask(ids(1000), priority=0)
    rig.step()
    assert rig.stats["n_prefix_waiting"] == 0
    rig.finish()


def test_those_that_wait_count_for_the_queue() -> None:
    rig = Rig(max_num_batched_tokens=128, n_slots=4, max_queue=3)
    for _ in range(4):
        rig.ask(ids(1000))
    rig.step()
    stats = rig.stats
    assert (stats["n_running"], stats["n_queued"], stats["n_prefix_waiting"]) == (1, 3, 3)
    rig.finish()


@TIERS
def test_nothing_is_shared_between_tenants_or_salts(tier: dict[str, object]) -> None:
    rig = Rig(**tier)  # type: ignore[arg-type]
    rig.said(ids(300))
    assert n_reused(rig.said(ids(300), tenant="b")) == 0
    assert n_reused(rig.said(ids(300), cache_salt="x")) == 0
    assert n_reused(rig.said(ids(300), cache_salt="x")) == 256
    assert n_reused(rig.said(ids(300), tenant="b", cache_salt="x")) == 0


def test_tenants_do_not_wait_for_each_other() -> None:
    rig = Rig(max_num_batched_tokens=256)
    rig.ask(ids(1000))
    rig.ask(ids(1000), tenant="b")
    rig.step()
    assert rig.stats["n_prefix_waiting"] == 0
    rig.finish()
    assert rig.computed() == 2000


def test_zero_bytes_turn_it_off() -> None:
    rig = Rig(prefix_cache_bytes=0)
    rig.said(ids(300))
    assert n_reused(rig.said(ids(300))) == 0
    assert "prefix_hits_total" not in rig.stats


def test_log_probabilities_of_a_prompt_are_computed() -> None:
    rig = Rig()
    rig.said(ids(300))
    spec = RequestSpec(
        prompt=ids(300), params=SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    )
    outcome = rig.run_spec(spec)
    assert len(outcome.prompt_logprobs) == 299
    assert n_reused(outcome) == 0


def test_a_state_that_is_not_finite_is_not_kept() -> None:
    model = HashModel(nan_id=63)
    driver = Driver(model, config())
    prompt = (*ids(100), 63, *ids(100, seed=2))

    # the hash model puts its NaN into logits alone: stain the record as a model would
    forward = model.forward

    def stained(batch, states):  # type: ignore[no-untyped-def]
        logits = forward(batch, states)
        if 63 in batch.token_ids.tolist():
            states["hash.zero"][batch.slot_list[0]] = float("nan")
        return logits

    model.forward = stained  # type: ignore[method-assign]
    first = driver.run_spec(RequestSpec(prompt=prompt, params=greedy(2), borders=(80,)))
    assert isinstance(first.end and first.end.error, NonFiniteError)
    stats = driver.engine.stats()
    assert stats["n_prefixes_host"] == 1  # at 64, before the NaN
    assert driver.run_spec(RequestSpec(prompt=prompt, params=greedy(2))).reused == 64


@TIERS
@GUESTS
def test_checkpoints_give_up_slots_and_pages_before_anybody_waits(
    tier: dict[str, object], has_guest: bool
) -> None:
    rig = Rig(has_guest=has_guest, n_slots=3, guest_tokens=20 * PAGE_TOKENS, **tier)
    for seed in range(6):
        rig.said(ids(300, seed))
    asked = [rig.ask(ids(350, seed), n=10) for seed in (20, 21, 22)]
    rig.step()
    assert rig.stats["n_running"] == 3
    rig.finish()
    for one, seed in zip(asked, (20, 21, 22), strict=True):
        assert rig.outcomes[one].ids == HashLog(ids(350, seed)).generate(10)
    rig.check_room()


@GUESTS
def test_the_slot_of_a_checkpoint_is_taken_over_if_there_is_no_other(has_guest: bool) -> None:
    rig = Rig(has_guest=has_guest, n_slots=2, **DEVICE)
    rig.said(ids(300))
    rig.ask(ids(70, seed=9), n=50)
    rig.step()
    assert n_reused(rig.said(ids(300), n=3)) == 256
    rig.check_room()


def test_what_leaves_the_device_goes_to_the_host() -> None:
    rig = Rig(n_slots=2, **DEVICE)  # type: ignore[arg-type]
    rig.said(ids(300))
    assert rig.stats["n_prefixes_device"] == 1
    for seed in (5, 6):
        rig.ask(ids(100, seed), n=20)
    rig.step()
    rig.finish()
    assert rig.stats["n_prefixes_host"] >= 1
    assert n_reused(rig.said(ids(300))) == 256


def test_the_budget_of_the_host_is_kept() -> None:
    n_bytes = 64 * 8 + 256 + 256 * 4  # a record, with its padding, and the ids that lead to it
    rig = Rig(prefix_cache_bytes=2 * n_bytes, **HOST)  # type: ignore[arg-type]
    for seed in range(5):
        rig.said(ids(300, seed))
    stats = rig.stats
    assert stats["n_prefixes_host"] == 2
    assert stats["prefix_host_bytes"] == 2 * n_bytes
    assert stats["prefix_evictions_total"] == 3
    assert n_reused(rig.said(ids(300, 4))) == 256
    assert n_reused(rig.said(ids(300, 0))) == 0


def test_a_checkpoint_too_large_for_the_budget_keeps_nobody_waiting() -> None:
    rig = Rig(prefix_cache_bytes=100, max_num_batched_tokens=256)
    rig.ask(ids(1000))
    rig.ask(ids(1000))
    rig.step()
    assert rig.stats["n_prefix_waiting"] == 0
    rig.finish()


def test_penalties_know_the_ids_that_were_not_computed() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.7)
    cold = Driver(HashModel(), config(prefix_cache_bytes=0)).run(ids(300), params)
    rig = Rig()
    rig.said(ids(300))
    warm = rig.run(ids(300), params)
    assert warm.reused == 256
    assert warm.ids == cold.ids


def test_a_state_that_is_saved_has_all_tokens_in_its_log() -> None:
    rig = Rig()
    rig.said(ids(300))
    spec = RequestSpec(prompt=ids(300), params=greedy(3), save=True)
    outcome = rig.run_spec(spec)
    assert outcome.reused == 256
    assert tuple(outcome.last.absorbed[:300]) == ids(300)
    cold = Driver(HashModel(), config(prefix_cache_bytes=0)).run_spec(spec)
    assert torch.equal(outcome.last.record, cold.last.record)


@TIERS
@GUESTS
def test_a_device_that_runs_ahead_gives_what_it_gives_without(
    tier: dict[str, object], has_guest: bool
) -> None:
    kind = SteppingGuestModel if has_guest else SteppingModel
    document = ids(500)
    prompts = [document + ids(40, seed) for seed in (1, 2, 3)] + [document] * 4 + [ids(300, 7)]
    given = list[list[list[int]]]()
    for n_bytes in (0, 2**30):
        settings = config(prefix_cache_bytes=n_bytes, n_slots=4, **tier)
        driver = AheadDriver(Engine(kind(), settings, make_runner=fake_gpu_runner))  # type: ignore[arg-type]
        asked = [driver.submit(prompt, greedy(6)) for prompt in prompts]
        driver.finish()
        again = [driver.submit(prompt, greedy(6)) for prompt in prompts]
        driver.finish()
        given.append([driver.outcomes[one].ids for one in (*asked, *again)])
        driver.land()
        n_computed = driver.engine.stats()["prompt_tokens_total"]
        if n_bytes:
            assert n_computed < sum(map(len, prompts))
            assert any(driver.outcomes[one].reused for one in again)
            assert driver.engine.stats()["n_free_slots"] == 4
    cold, warm = given
    assert cold == warm


@TIERS
@pytest.mark.parametrize("n_tokens", [66, 129, 190, 300])
def test_choices_cost_one_prefill_on_a_device_that_runs_ahead(
    tier: dict[str, object], n_tokens: int
) -> None:
    settings = config(n_slots=20, **tier)
    driver, whole = (
        AheadDriver(Engine(SteppingModel(), one, make_runner=fake_gpu_runner))  # type: ignore[arg-type]
        for one in (settings, config(prefix_cache_bytes=0))
    )
    params = SamplingParams(temperature=0, max_tokens=6, n=8)
    said = list[list[list[int]]]()
    for one in (driver, whole):
        asked = one.begin(RequestSpec(prompt=ids(n_tokens), params=params))
        one.finish()
        one.land()
        said.append([one.outcomes[choice].ids for choice in asked])
    assert said[0] == said[1]
    assert driver.engine.stats()["prompt_tokens_total"] == n_tokens + 7
    assert driver.engine.stats()["n_free_slots"] == 20


def test_a_device_that_runs_ahead_keeps_no_state_that_is_not_finite() -> None:
    model = SteppingModel()
    engine = Engine(model, config(**DEVICE), make_runner=fake_gpu_runner)  # type: ignore[arg-type]
    driver = AheadDriver(engine)
    engine._runner._arena.is_finite = lambda slot, pages=(): torch.tensor(False)  # type: ignore[attr-defined]
    driver.submit(ids(300), greedy(2))
    driver.finish()
    driver.land()
    stats = engine.stats()
    assert (stats["n_prefixes_device"], stats["n_prefixes_host"]) == (0, 0)
    assert stats["n_free_slots"] == stats["n_slots"]


MODELS = ["bundled", "mamba2", "qwen3_next", "falcon_h1"]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    if request.param == "bundled":
        found: Model = request.getfixturevalue("bundled")
        return found
    return decoder_of(request.param)


LENGTHS = (64, 65, 90, 127, 128, 129, 150, 191)
"""Of a common beginning, over two periods of 64."""


@TIERS
def test_cold_and_reused_continuations_are_equal_to_the_bit_in_deterministic_mode(
    model: Model, tier: dict[str, object]
) -> None:
    check_equal(model, tier, LENGTHS)


@pytest.mark.slow
@TIERS
def test_they_are_equal_at_every_length_over_two_periods(
    model: Model, tier: dict[str, object]
) -> None:
    check_equal(model, tier, range(64, 64 + 128))


def check_equal(model: Model, tier: dict[str, object], lengths: Iterable[int]) -> None:
    settings = {**tier, "deterministic": True, "n_slots": 4}
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=2, ignore_eos=True)
    cold = Driver(model, config(**settings, prefix_cache_bytes=0))
    stem, tail, other = prompt_of(64 + 128), prompt_of(9, seed=1), prompt_of(80, seed=2)
    for n in lengths:
        warm = Driver(model, config(**settings))
        prompt = stem[:n] + tail
        expected = cold.run(prompt, params)
        longer = RequestSpec(prompt=stem[:n] + other, params=greedy(1), borders=(n,))
        warm.run_spec(longer)
        got = warm.run(prompt, params)
        assert got.reused == n // 64 * 64
        assert got.ids == expected.ids
        assert got.logprobs == expected.logprobs
