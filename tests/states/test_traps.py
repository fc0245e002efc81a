"""How engines of this kind have been seen to fail with states, tried over both doors.

The rows are those of reports about other engines; the oracle is the hash model's definition
(``tests.hash_model``), which says what comes of any history without an engine.
"""

import asyncio
import hashlib
from collections.abc import Awaitable

import pytest

from tests.states.book import History
from tests.states.doors import Door, Refused, Turn
from tests.states.rig import MakeRig

PROMPT = tuple(range(3, 40))
START = History().after(PROMPT)


async def created(door: Door, name: str, prompt: tuple[int, ...] = PROMPT) -> History:
    known = await door.create(name, prompt)
    assert known.n_tokens == len(prompt)
    return History().after(prompt)


async def answered(asking: Awaitable[Turn]) -> Turn | Refused:
    """What comes of a question, be it a refusal."""
    try:
        return await asking
    except Refused as refused:
        return refused


async def test_a_slot_that_others_left_full_of_rubbish_shows_nothing_of_it(
    make_rig: MakeRig,
) -> None:
    async with make_rig(n_slots=4, poison_freed_slots=True) as rig:
        ours, theirs = rig.door("anna"), rig.door("bert")
        history = await created(ours, "mine")
        for length in (1, 2, 64, 65):
            canary = [7] * 50
            await asyncio.gather(*(theirs.generate(canary, 4) for _ in range(4)))
            prompt = [at % 61 for at in range(length)]
            expected, _ = history.generated(prompt, 3)
            assert (await ours.generate(prompt, 3, state="mine")).ids == expected
            fresh, _ = History().generated(prompt, 3)
            assert (await ours.generate(prompt, 3)).ids == fresh


@pytest.mark.parametrize("budget", [1, 16, 64, 100, 256, 10**6])
async def test_a_prompt_after_a_state_gives_the_same_under_every_budget(
    make_rig: MakeRig, budget: int
) -> None:
    async with make_rig(n_slots=3, max_num_batched_tokens=budget) as rig:
        door = rig.door("anna")
        history = await created(door, "start")
        prompts = [[at % 61 for at in range(n)] for n in (330, 1, 129, 64)]
        turns = await asyncio.gather(
            *(door.generate(prompt, 5, state="start") for prompt in prompts)
        )
        expected = [history.generated(prompt, 5)[0] for prompt in prompts]
        assert [turn.ids for turn in turns] == expected


async def test_no_length_of_a_prompt_after_a_state_is_special(make_rig: MakeRig) -> None:
    async with make_rig(n_slots=8, max_num_batched_tokens=64) as rig:
        door = rig.door("anna")
        history = await created(door, "start")
        prompts = [[at % 61 for at in range(n)] for n in range(131)]
        turns = await asyncio.gather(
            *(door.generate(prompt, 2, state="start") for prompt in prompts)
        )
        for prompt, turn in zip(prompts, turns, strict=True):
            assert turn.ids == history.generated(prompt, 2)[0], f"{len(prompt)} ids"


async def test_no_length_of_a_created_state_is_special(make_rig: MakeRig) -> None:
    async with make_rig(n_slots=8, max_num_batched_tokens=64) as rig:
        door = rig.door("anna")
        prompts = [tuple(at % 61 for at in range(n)) for n in range(1, 131)]
        for at in range(0, len(prompts), 32):
            some = prompts[at : at + 32]
            await asyncio.gather(*(created(door, f"s{len(prompt)}", prompt) for prompt in some))
        for prompt in prompts:
            turn = await door.generate([], 2, state=f"s{len(prompt)}")
            assert turn.ids == History().after(prompt).generated([], 2)[0], f"{len(prompt)} ids"


async def test_regenerating_with_nothing_new_is_exact_every_time(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await created(door, "end-of-prompt")
        turns = [await door.generate([], 6, state="end-of-prompt") for _ in range(2)]
        expected, _ = history.generated([], 6)
        assert [turn.ids for turn in turns] == [expected, expected]


async def test_cached_tokens_are_those_that_were_not_computed(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await created(door, "start")
        before = rig.model.n_absorbed
        turn = await door.generate([1, 2, 3], 1, state="start")
        n_computed = rig.model.n_absorbed - before
        assert turn.cached_tokens == START.n - 1
        assert turn.cached_tokens + n_computed == START.n + 3
        assert (await door.generate([1, 2, 3], 1)).cached_tokens == 0


@pytest.mark.parametrize("n_seen", [0, 1, 2, 7, 19])
async def test_a_turn_cut_off_anywhere_leaves_the_version_before_it_ready_for_the_next(
    make_rig: MakeRig, n_seen: int
) -> None:
    async with make_rig(n_slots=2) as rig:
        door = rig.door("anna")
        history = await created(door, "talk")
        await rig.cut_after(n_seen, [5, 6], 20, state="talk", save_as="talk")
        head = (await door.get("talk")).version
        # It may have come to its end before anybody knew of the cut: then all of it is kept.
        assert head in (1, 2)
        if head == 2:
            _, history = history.generated([5, 6], 20)
        expected, after = history.generated([9], 4)
        turn = await door.generate([9], 4, state="talk", save_as="talk", expected_version=head)
        assert (turn.ids, turn.version) == (expected, head + 1)
        assert (await door.generate([], 3, state="talk")).ids == after.generated([], 3)[0]
        await rig.at_rest()


async def test_a_turn_whose_bytes_are_cut_off_anywhere_changes_nothing(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await created(door, "talk")
        data = rig.first_bytes([5, 6], 20, state="talk", save_as="talk")
        before = rig.everything()
        for n in range(0, len(data), 1 if rig.kind == "binary" else 3):
            await rig.send_and_leave(data[:n])
        await rig.at_rest()
        assert rig.everything() == before
        assert (await door.generate([], 3, state="talk")).ids == history.generated([], 3)[0]
        # All of them are a turn.
        await rig.send_and_leave(data, when=until_version(door, "talk", 2))
        _, after = history.generated([5, 6], 20)
        assert (await door.generate([], 3, state="talk")).ids == after.generated([], 3)[0]


async def until_version(door: Door, name: str, version: int) -> None:
    async with asyncio.timeout(60):
        while (await door.get(name)).version < version:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_a_turn_cut_off_in_the_queue_leaves_nothing(make_rig: MakeRig) -> None:
    async with make_rig(n_slots=1) as rig:
        door = rig.door("anna")
        await created(door, "talk")
        busy = asyncio.create_task(door.generate([1], 300))
        await rig.cut_after(0, [5, 6], 20, state="talk", save_as="talk")
        assert (await door.get("talk")).version == 1
        await busy
        await rig.at_rest()


@pytest.mark.parametrize("is_for_ever", [False, True])
@pytest.mark.parametrize("nth", range(6))
async def test_a_write_that_fails_leaves_the_old_version_and_nothing_else(
    make_rig: MakeRig, nth: int, is_for_ever: bool
) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await created(door, "talk")
        before = rig.everything()
        rig.fail(nth, for_ever=is_for_ever)
        told = await answered(door.generate([4], 3, state="talk", save_as="talk"))
        n_failed = rig.fail_no_more()
        expected, after = history.generated([4], 3)
        if isinstance(told, Refused):
            assert n_failed
            assert told.code == "STORE_FAILED"
            assert (await door.get("talk")).version == 1
            assert rig.everything() == before
        else:
            assert (told.ids, told.version, told.ack) == (expected, 2, "durable")
        now = history if isinstance(told, Refused) else after
        assert (await door.generate([], 3, state="talk")).ids == now.generated([], 3)[0]


async def test_a_damaged_file_is_refused_wherever_the_damage_is_and_the_rest_goes_on(
    make_rig: MakeRig,
) -> None:
    async with make_rig(n_slots=2) as rig:
        door = rig.door("anna")
        history = await created(door, "whole")
        for part in range(0, 256, 5):
            await created(door, "spoiled", (part % 61, part // 61))
            await door.hibernate("spoiled")
            going_on = asyncio.create_task(door.generate([part % 61], 30, state="whole"))
            rig.damage_newest_file(part / 256)
            with pytest.raises(Refused) as refused:
                await door.generate([1], 1, state="spoiled")
            assert refused.value.code == "STATE_DAMAGED"
            assert (await going_on).ids == history.generated([part % 61], 30)[0]
            await door.delete("spoiled")
        await rig.at_rest()


async def test_a_row_of_nan_ends_alone_and_nothing_of_it_is_kept(make_rig: MakeRig) -> None:
    poison = 63
    async with make_rig(n_slots=8, nan_id=poison) as rig:
        door = rig.door("anna")
        history = await created(door, "start")
        expected = {at: history.generated([at], 12)[0] for at in range(poison)}
        others = [at for at, ids in expected.items() if poison not in ids][:7]
        turns = await asyncio.gather(
            *(answered(door.generate([at], 12, state="start", save_as=f"o{at}")) for at in others),
            answered(door.generate([poison], 12, state="start", save_as="poisoned")),
        )
        last = turns.pop()
        assert isinstance(last, Refused)
        assert last.code == "NON_FINITE"
        for at, turn in zip(others, turns, strict=True):
            assert isinstance(turn, Turn)
            assert turn.ids == expected[at]
        with pytest.raises(Refused, match="STATE_NOT_FOUND"):
            await door.get("poisoned")


async def test_turns_that_end_at_their_first_token_are_turns(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        n_turns = 1000 if rig.kind == "binary" and rig.model.layout.guest is None else 100
        door = rig.door("anna")
        history = await created(door, "talk")
        stop = 9
        for at in range(n_turns):
            turn = await door.generate(
                [],
                8,
                state="talk",
                save_as="talk",
                expected_version=at + 1,
                durability="memory",
                allowed_ids=[stop],
                stop_ids=[stop],
            )
            history = history.after([stop])
            assert turn.reason == "stop"
            assert turn.version == at + 2
        expected, _ = history.generated([1], 4)
        assert (await door.generate([1], 4, state="talk")).ids == expected


async def test_a_version_is_the_same_bytes_after_32_rows_decoded_from_it(
    make_rig: MakeRig,
) -> None:
    async with make_rig(n_slots=32) as rig:
        door = rig.door("anna")
        history = await created(door, "shared")
        before = hashlib.sha256(await door.export("shared")).digest()
        turns = await asyncio.gather(
            *(door.generate([at], 8, state="shared", save_as=f"row-{at}") for at in range(32))
        )
        assert [turn.ids for turn in turns] == [history.generated([at], 8)[0] for at in range(32)]
        assert hashlib.sha256(await door.export("shared")).digest() == before
        assert (await door.get("shared")).version == 1


async def test_what_is_exported_imports_as_the_same_state(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await created(door, "here")
        turn = await door.generate([4, 5], 9, state="here", save_as="here")
        _, after = history.generated([4, 5], 9)
        data = await door.export("here")
        known = await door.importing("there", data)
        assert known.n_tokens == after.n
        assert (await door.generate([], 5, state="there")).ids == after.generated([], 5)[0]
        assert turn.version == 2


async def test_more_sessions_than_slots_each_get_their_own_ids(make_rig: MakeRig) -> None:
    async with make_rig(n_slots=4) as rig:
        door = rig.door("anna")

        async def talk(at: int) -> None:
            name, history = f"talk-{at}", History().after([at, at])
            await door.create(name, [at, at])
            for turn in range(4):
                prompt = [(at + turn) % 61] * (turn * 40)
                expected, history = history.generated(prompt, 6 + at)
                told = await door.generate(prompt, 6 + at, state=name, save_as=name)
                assert told.ids == expected

        await asyncio.gather(*(talk(at) for at in range(16)))
        await rig.at_rest()


@pytest.mark.parametrize("bad_id", [-1, 64, 2**31, 2**63 - 1])
async def test_an_id_out_of_range_is_refused_at_the_door(make_rig: MakeRig, bad_id: int) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await created(door, "start")
        before = rig.everything()
        for asked in (
            door.create("new", [1, bad_id]),
            door.generate([bad_id], 1, state="start", save_as="start"),
            door.generate([1], 1, state="start", save_as="start", stop_ids=[bad_id]),
            door.generate([1], 1, state="start", save_as="start", allowed_ids=[bad_id]),
        ):
            with pytest.raises((Refused, OverflowError)):
                await asked
        assert rig.everything() == before
        assert (await door.generate([], 3, state="start")).ids == history.generated([], 3)[0]
