"""The service over an engine that runs: slots, batches and sampling included."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.states.rig import TENANT, Rig, serving, until, use
from tests.fakes import fake_continuation
from wkvm.core.errors import StateMismatchError
from wkvm.core.registry import Provenance, Ref
from wkvm.core.request import EndEvent, RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.states import books

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)
SAMPLED: dict[str, Any] = {
    "temperature": 1.0,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.3,
    "penalty_decay": 0.9,
}


async def sampled(
    rig: Rig, prompt: tuple[int, ...], n: int, *, seed: int | None = None, **keywords: Any
) -> tuple[list[int], EndEvent]:
    params = SamplingParams(max_tokens=n, seed=seed, **SAMPLED)
    spec = RequestSpec(prompt=prompt, params=params, tenant=TENANT)
    (request_id,) = rig.service.submit(spec, use(**keywords))
    end = await rig.end(request_id)
    return rig.ids.get(request_id, []), end


async def test_a_turn_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        first, _ = await rig.turn(PROMPT, save_as="chat", max_tokens=5)
        second, end = await rig.turn((9,), state="chat", save_as="chat", max_tokens=5)
    assert first + second == [
        *fake_continuation(PROMPT, 5),
        *fake_continuation((*PROMPT, *first, 9), 5),
    ]
    assert end.state is not None
    assert end.state.cached_tokens == 7


@pytest.mark.parametrize("cut", [1, 4, 11])
async def test_sampling_goes_on_after_a_restart_id_for_id(tmp_path: Path, cut: int) -> None:
    async with serving(tmp_path / "s") as rig:
        whole, _ = await sampled(rig, PROMPT, 12, seed=3)
        first, _ = await sampled(rig, PROMPT, cut, seed=3, save_as="chat")
    async with serving(tmp_path / "s") as rig:
        second, _ = await sampled(rig, (), 12 - cut, state="chat", save_as="chat")
    assert first + second == whole


async def test_forks_draw_numbers_of_their_own_unless_they_replay(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        await sampled(rig, PROMPT, 4, seed=3, save_as="chat")
        forks = await rig.service.fork(TENANT, Ref("chat"), ["a", "b"])
        replays = await rig.service.fork(TENANT, Ref("chat"), ["c", "d"], keeps_key=True)
        names = [info.version.name for info in (*forks, *replays)]
        a, b, c, d = [(await sampled(rig, (), 8, state=name, save_as=name))[0] for name in names]
    assert len({tuple(a), tuple(b), tuple(c)}) == 3
    assert c == d


async def test_ids_of_an_interrupted_turn_are_taken_back_to_the_bit(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        _, wanted = await rig.turn(PROMPT, save_as="short", max_tokens=2)
        turn = rig.submit(PROMPT, save_as="chat", max_tokens=100, credit=5)
        await until(lambda: len(rig.ids.get(turn, ())) >= 5)
        rig.service.interrupt(turn, 2)
        end = await rig.end(turn)
        assert end.status is Status.CANCELLED
        difference = await rig.service.difference(TENANT, Ref("short"), Ref("chat"))
    assert wanted.state is not None
    assert end.state is not None
    assert end.state.pending == wanted.state.pending
    assert difference.equal


async def test_positions_within_and_between_turns_are_gone_back_to(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        first, _ = await rig.turn(PROMPT, save_as="chat", max_tokens=6)
        second, _ = await rig.turn((9,), state="chat", save_as="chat", max_tokens=6)
        ids = [*PROMPT, *first, 9, *second]
        for position in (14, 11, 9, 6, 2):
            await rig.service.rollback(TENANT, "chat", position=position)
            more, _ = await rig.turn((8,), state="chat", max_tokens=3)
            assert more == fake_continuation((*ids[:position], 8), 3)


async def test_a_long_prompt_leaves_checkpoints(tmp_path: Path) -> None:
    prompt = [token % 60 for token in range(300)]
    async with serving(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "long", prompt, checkpoint_every=128)
        assert rig.store.checkpoints(TENANT, "long") == [128, 256, 299]
        info = await rig.service.rollback(TENANT, "long", position=256)
        more, _ = await rig.turn((8,), state="long", max_tokens=2)
    assert (info.version.n_computed, info.version.n_pending) == (256, 0)
    assert more == fake_continuation((*prompt[:256], 8), 2)


async def test_of_checkpoints_that_take_too_much_the_last_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "s") as rig:
        layout = rig.loop.layout
        two = layout.image_bytes(192) + layout.image_bytes(256)
        for limit, kept in ((two, [192, 256]), (two - 1, [256]), (1, [256])):
            monkeypatch.setattr(books, "MAX_CHECKPOINT_BYTES", limit)
            await rig.service.create(TENANT, f"{limit}", list(range(60)) * 5, checkpoint_every=64)
            assert rig.store.checkpoints(TENANT, f"{limit}") == [*kept, 299]


async def test_what_was_created_goes_on_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        for n in (1, 2, 65):
            prompt = [token % 60 for token in range(n)]
            info = await rig.service.create(TENANT, f"n{n}", prompt)
            assert (info.version.n_computed, info.version.n_pending) == (n - 1, 1)
            more, _ = await rig.turn((), state=f"n{n}", max_tokens=3)
            assert more == fake_continuation(prompt, 3)


async def test_what_is_appended_is_what_would_have_been_given(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        await rig.service.create(TENANT, "chat", PROMPT)
        await rig.service.create(TENANT, "chat", (8,), state=Ref("chat"))
        await rig.service.create(TENANT, "chat", (9, 10), state=Ref("chat"))
        more, _ = await rig.turn((), state="chat", max_tokens=3)
    assert more == fake_continuation((*PROMPT, 8, 9, 10), 3)


async def test_a_stream_goes_on_after_a_move_that_was_given_up_id_for_id(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        whole, _ = await sampled(rig, PROMPT, 30, seed=3)
        params = SamplingParams(max_tokens=30, seed=3, **SAMPLED)
        spec = RequestSpec(prompt=PROMPT, params=params, tenant=TENANT, credit=9)
        (turn,) = rig.service.submit(spec, use(save_as="chat"))
        await until(lambda: len(rig.ids.get(turn, ())) >= 9)
        await rig.service.migrate_begin(TENANT, "chat")
        await rig.service.migrate_end(TENANT, "chat", moved=None)
        rig.service.grant(turn, 100)
        end = await rig.end(turn)
    assert end.error is None
    assert rig.ids[turn] == whole


async def test_a_request_with_a_seed_of_its_own_draws_from_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        await sampled(rig, PROMPT, 4, seed=3, save_as="chat")
        one, _ = await sampled(rig, (8,), 8, seed=5, state="chat")
        two, _ = await sampled(rig, (8,), 8, seed=5, state="chat")
        three, _ = await sampled(rig, (8,), 8, state="chat")
        four, _ = await sampled(rig, (8,), 8, state="chat")
    assert one == two
    assert three != four


async def interrupted(rig: Rig, spec: RequestSpec, n: int, keep: int, name: str) -> EndEvent:
    """A turn that has produced ``n`` ids and keeps some of them."""
    (turn,) = rig.service.submit(spec, use(save_as=name))
    await until(lambda: len(rig.ids.get(turn, ())) >= n)
    rig.service.interrupt(turn, keep)
    return await rig.end(turn)


async def test_a_turn_that_was_cut_draws_on_as_the_whole_one_would_have(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        params = SamplingParams(max_tokens=30, **SAMPLED)
        spec = RequestSpec(prompt=PROMPT, params=params, tenant=TENANT, credit=9)
        await interrupted(rig, spec, 9, 9, "whole")
        key = rig.store.load(TENANT, "whole").image.carried.sampler
        (turn,) = rig.service.submit(spec, use(save_as="cut"))
        await until(lambda: len(rig.ids.get(turn, ())) >= 9)
        await rig.service.snapshot_running(TENANT, turn, save_as="snapshot")
        rig.service.interrupt(turn, 4)
        await rig.end(turn)
        seen = rig.store.load(TENANT, "snapshot").image.carried.sampler
        cut = rig.store.load(TENANT, "cut").image.carried.sampler
    assert key is not None
    assert seen is not None
    assert cut is not None
    assert cut.key == seen.key != key.key


async def test_an_end_id_among_the_ids_that_stay_does_not_end_the_turn_again(
    tmp_path: Path,
) -> None:
    ids = fake_continuation(PROMPT, 6)
    async with serving(tmp_path / "s", eos_ids=(ids[1],)) as rig:
        params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        spec = RequestSpec(prompt=PROMPT, params=params, tenant=TENANT, credit=6)
        end = await interrupted(rig, spec, 6, 4, "cut")
    assert end.state is not None
    assert (end.state.n_computed, end.state.pending) == (6, (ids[3],))


async def test_a_position_after_a_checkpoint_at_the_end_of_a_prompt_is_gone_back_to(
    tmp_path: Path,
) -> None:
    prompt = [token % 60 for token in range(128)]
    async with serving(tmp_path / "s") as rig:
        ids, _ = await rig.turn(prompt, save_as="long", max_tokens=6, checkpoint_every=64)
        assert 128 in rig.store.checkpoints(TENANT, "long")
        for position in (132, 129):
            await rig.service.rollback(TENANT, "long", position=position)
            more, _ = await rig.turn((8,), state="long", max_tokens=2)
            assert more == fake_continuation((*prompt, *ids[: position - 128], 8), 2)


async def test_a_checkpoint_in_an_output_is_gone_back_to_without_a_step(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        ids, _ = await rig.turn(PROMPT, save_as="long", max_tokens=90, checkpoint_every=64)
        info = await rig.service.rollback(TENANT, "long", position=64)
        more, _ = await rig.turn((8,), state="long", max_tokens=2)
    assert dict(info.version.provenance.parameters) == {"position": 64}
    assert (info.version.n_computed, info.version.n_pending) == (64, 0)
    assert more == fake_continuation((*PROMPT, *ids[:61], 8), 2)


async def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        image = rig.store.load(TENANT, "chat").image
        other = replace(image, identity=replace(image.identity, model_digest="cd" * 32))
        rig.store.commit(TENANT, "other", other, provenance=Provenance(operation="import"))
        _, end = await rig.turn((1,), state="other")
    assert isinstance(end.error, StateMismatchError)


@pytest.mark.parametrize("keep", [0, 1, 20, 61, 62, 63, 80])
async def test_a_cut_turn_is_done_again_from_its_last_checkpoint(tmp_path: Path, keep: int) -> None:
    prompt = [token % 60 for token in range(67)]
    async with serving(tmp_path / "s") as rig:
        params = SamplingParams(max_tokens=200, seed=3, **SAMPLED)
        spec = RequestSpec(prompt=prompt, params=params, tenant=TENANT, credit=90)
        (turn,) = rig.service.submit(spec, use(save_as="cut", checkpoint_every=64))
        await until(lambda: len(rig.ids.get(turn, ())) >= 90)
        n_before = rig.service.stats()["output_tokens_total"]
        rig.service.interrupt(turn, keep)
        end = await rig.end(turn)
        n_again = rig.service.stats()["output_tokens_total"] - n_before
        await sampled(rig, tuple(prompt), keep, seed=3, save_as="short")
        positions = rig.store.checkpoints(TENANT, "cut")
        cut = rig.store.load(TENANT, "cut").image.carried
        more, _ = await sampled(rig, (), 9, state="cut", save_as="cut")
        if keep:
            rest, _ = await sampled(rig, (), 9, state="short", save_as="short")
            short = rig.store.load(TENANT, "short@1").image.carried
            assert (more, cut) == (rest, short)
    assert end.state is not None
    assert end.state.n_computed + len(end.state.pending) == len(prompt) + keep
    assert n_again <= 64
    assert positions == sorted({64, 66 + keep} | ({128} if keep > 62 else set()))
    assert cut.n_computed == 66 + keep


async def test_an_engine_with_nothing_to_do_holds_no_state(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        rig.store.cool(TENANT, "chat")
        held = weakref.ref(rig.store.load(TENANT, "chat").image.record)
        rig.store.cool(TENANT, "chat")
        await rig.turn((), state="chat", save_as="chat")
        assert held() is None
        ended = weakref.ref(rig.store.load(TENANT, "chat").image.record)
        rig.store.cool(TENANT, "chat")
        await until(lambda: ended() is None)
