"""Requests that start from states and end in them."""

from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, running, until
from tests.fakes import fake_continuation
from wkvm.core.errors import (
    EmptyPromptError,
    InvalidParameterError,
    StaleVersionError,
    StateNotFoundError,
)
from wkvm.core.registry import AckClass, Ref
from wkvm.core.request import Status
from wkvm.engine.states.threads import Threads

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)


async def test_a_turn_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        first, _ = await rig.turn(PROMPT, save_as="chat", max_tokens=3)
        second, end = await rig.turn((9,), state="chat", save_as="chat", max_tokens=3)
    assert first == fake_continuation(PROMPT, 3)
    assert second == fake_continuation((*PROMPT, *first, 9), 3)
    assert end.state is not None
    assert end.state.ref == Ref("chat", 2)


async def test_only_the_suffix_is_computed(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat", max_tokens=3)
        before = rig.loop.n_fed
        _, end = await rig.turn((9,), state="chat", max_tokens=1)
    assert end.state is not None
    assert end.state.cached_tokens == 5
    assert rig.loop.n_fed - before == 2  # what was pending, and the prompt


async def test_a_stop_id_is_pending_and_fed_first(tmp_path: Path) -> None:
    stop = fake_continuation(PROMPT, 3)[-1]
    async with running(tmp_path / "s") as rig:
        first, end = await rig.turn(PROMPT, save_as="chat", stop_ids=(stop,), max_tokens=9)
        second, _ = await rig.turn((), state="chat", max_tokens=2)
    assert end.status is Status.STOPPED
    assert end.state is not None
    assert end.state.pending == (stop,)
    assert second == fake_continuation((*PROMPT, *first, stop), 2)


async def test_a_pending_id_is_dropped_by_going_back_one(tmp_path: Path) -> None:
    stop = fake_continuation(PROMPT, 3)[-1]
    async with running(tmp_path / "s") as rig:
        first, _ = await rig.turn(PROMPT, save_as="chat", stop_ids=(stop,), max_tokens=9)
        await rig.service.rollback(TENANT, "chat", position=len(PROMPT) + len(first))
        second, _ = await rig.turn((8,), state="chat", max_tokens=2)
    assert second == fake_continuation((*PROMPT, *first, 8), 2)


async def test_what_is_durable_says_so_and_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        first, end = await rig.turn(PROMPT, save_as="chat", max_tokens=3)
    assert end.state is not None
    assert end.state.ack is AckClass.DURABLE
    async with running(tmp_path / "s") as rig:
        second, _ = await rig.turn((), state="chat", max_tokens=2)
    assert second == fake_continuation((*PROMPT, *first), 2)


async def test_an_unknown_state_is_an_error_and_no_prefill(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        ids, end = await rig.turn(PROMPT, state="nothing", save_as="chat")
        assert (ids, end.status, rig.loop.n_fed) == ([], Status.FINISHED_ERROR, 0)
        assert isinstance(end.error, StateNotFoundError)
        with pytest.raises(StateNotFoundError):
            await rig.service.get(TENANT, Ref("chat"))


async def test_of_two_turns_on_one_version_the_second_to_end_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        fast = rig.submit((1,), state="chat", save_as="chat", max_tokens=1)
        slow = rig.submit((2,), state="chat", save_as="chat", max_tokens=400, credit=1)
        assert (await rig.end(fast)).status is Status.LENGTH
        rig.service.grant(slow, 400)
        end = await rig.end(slow)
        head = await rig.service.get(TENANT, Ref("chat"))
    assert isinstance(end.error, StaleVersionError)
    assert end.state is not None
    assert end.state.ref is None
    assert head.version.version == 2


async def test_a_cancelled_turn_leaves_no_version(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        running_one = rig.submit((1,), state="chat", save_as="chat", credit=0)
        loading_one = rig.submit((1,), state="chat", save_as="chat", credit=0)
        rig.service.cancel(loading_one)
        assert (await rig.end(loading_one)).status is Status.CANCELLED
        rig.service.cancel(running_one)
        assert (await rig.end(running_one)).status is Status.CANCELLED
        assert (await rig.service.get(TENANT, Ref("chat"))).version.version == 1
        assert rig.loop.n_live == 0
        assert rig.service.stats()["n_states_running"] == 0


async def test_an_interrupted_turn_is_committed_with_what_it_has(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        turn = rig.submit(PROMPT, save_as="chat", max_tokens=100, credit=3)
        await until(lambda: len(rig.ids.get(turn, ())) >= 3)
        rig.service.interrupt(turn)
        end = await rig.end(turn)
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert end.status is Status.CANCELLED
    assert end.state is not None
    assert end.state.ref == Ref("chat", 1)
    assert rig.ids[turn] + more == fake_continuation(PROMPT, 5)


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
async def test_an_interruption_can_keep_some_of_the_ids(tmp_path: Path, keep: int) -> None:
    async with running(tmp_path / "s") as rig:
        turn = rig.submit(PROMPT, save_as="chat", max_tokens=100, credit=3)
        await until(lambda: len(rig.ids.get(turn, ())) >= 3)
        rig.service.interrupt(turn, keep)
        end = await rig.end(turn)
        more, _ = await rig.turn((), state="chat", max_tokens=2)
    assert end.n_output == keep
    assert end.state is not None
    assert end.state.n_computed + len(end.state.pending) == len(PROMPT) + keep
    kept = fake_continuation(PROMPT, 3)[:keep]
    assert more == fake_continuation((*PROMPT, *kept), 2)


async def test_inline_bytes_go_in_and_out_and_nothing_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        first, end = await rig.turn(PROMPT, returns_state=True, max_tokens=3)
        assert end.state is not None
        second, _ = await rig.turn((4,), inline=end.state.inline, max_tokens=3)
        assert (await rig.service.handles(TENANT)).states == ()
    assert second == fake_continuation((*PROMPT, *first, 4), 3)


async def test_several_choices_cannot_be_saved(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        with pytest.raises(InvalidParameterError, match="n: "):
            rig.submit(PROMPT, save_as="chat", n=2)


async def test_nothing_to_start_from_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        with pytest.raises(EmptyPromptError):
            rig.submit((), save_as="chat")


async def test_another_tenants_state_is_not_found(tmp_path: Path) -> None:
    async with running(tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        _, foreign = await rig.turn((1,), state="chat", tenant="eve")
        _, absent = await rig.turn((1,), state="chap", tenant="eve")
    assert type(foreign.error) is type(absent.error) is StateNotFoundError
    assert str(foreign.error) == str(absent.error).replace("chap", "chat")


async def test_what_is_in_host_memory_goes_on_without_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "s") as rig:
        first, _ = await rig.turn(PROMPT, save_as="chat", max_tokens=3)

        async def read(self: Threads, call: object) -> None:
            raise AssertionError("a thread was asked")

        with monkeypatch.context() as without:
            without.setattr(Threads, "read", read)
            second, end = await rig.turn((), state="chat", save_as="chat", max_tokens=3)
        assert end.state is not None
        assert end.state.ref == Ref("chat", 2)
        await rig.service.hibernate(TENANT, Ref("chat"))
        third, _ = await rig.turn((), state="chat", max_tokens=3)
        assert (await rig.turn((), state="chat@1", max_tokens=3))[0] == second
        _, stale = await rig.turn((), state="chat", save_as="chat", expected_version=1)
    assert first + second + third == fake_continuation(PROMPT, 9)
    assert isinstance(stale.error, StaleVersionError)
