"""Both clients against whole servers that keep states: what is lost on the way comes again."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
import wkvm_client
from wkvm_client import Completion, EndReason, aio
from wkvm_client.errors import (
    ConnectionLostError,
    KeyReusedError,
    StaleVersionError,
    StateMismatchError,
    StateMovedError,
    StateNotFoundError,
)
from wkvm_client.states import StateEnd

from tests.client.drivers import AioDriver, BlockingDriver, Driver
from tests.client.keeping import running

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

PROMPT = [1, 2, 3]
both = pytest.mark.parametrize("make", [AioDriver, BlockingDriver], ids=["aio", "blocking"])
Make = type[AioDriver] | type[BlockingDriver]


async def dialled(make: Make, address: str) -> Driver:
    driver = make()
    await driver.connect(address)
    return driver


async def said(driver: Driver, prompt: list[int], n: int, **options: Any) -> Completion:
    stream = await driver.generate(prompt, max_tokens=n, ignore_eos=True, **options)
    return await driver.completion(stream)


def kept(completion: Completion) -> StateEnd:
    assert completion.state is not None
    return completion.state


@both
async def test_turns_on_a_state_give_what_one_request_gives(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)
        whole = await said(driver, PROMPT, 12, temperature=0)
        first = await said(driver, PROMPT, 5, temperature=0, save_as="s")
        assert kept(first).ref == "s@1"
        second = await said(driver, [], 7, temperature=0, state="s", save_as="s")
        assert first.ids + second.ids == whole.ids
        assert (kept(second).version, kept(second).ack) == (2, "durable")
        assert second.cached_tokens == len(PROMPT) + 4
        await driver.close()


def lose(client: Any) -> None:
    """Cut the connection that a client has, behind its back."""
    link = client.connections.link
    if isinstance(client, aio.Client):
        link._transport.abort()
    else:
        link._socket.shutdown(socket.SHUT_RDWR)


async def read_n(driver: Driver, stream: Any, n: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < n:
        some = await driver.read(stream)
        assert some
        ids += some
    return ids


@both
@pytest.mark.parametrize("on_disconnect", ["finish", "hibernate"])
async def test_a_cut_stream_is_the_one_that_was_not_cut(
    make: Make, tmp_path: Path, on_disconnect: str
) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)
        options = {"max_tokens": 300, "ignore_eos": True, "seed": 5, "credit": 8}
        whole = await driver.completion(
            await driver.generate(PROMPT, **(options | {"credit": None}), save_as="other")
        )
        stream = await driver.generate(
            PROMPT, **options, save_as="s", on_disconnect=on_disconnect, idempotency_key="k"
        )
        ids = await read_n(driver, stream, 20)
        for _ in range(3):
            lose(driver.client)
            ids += await read_n(driver, stream, 20)
        completion = await driver.completion(stream)
        assert completion.ids == whole.ids
        assert completion.ids[: len(ids)] == ids
        assert completion.n_output == 300
        assert completion.reason is EndReason.LENGTH
        info = await driver.states("get", "s")
        assert info.n_tokens == len(PROMPT) + 300
        await driver.close()


@both
async def test_a_stream_that_ended_while_its_client_was_away_comes_within_its_window(
    make: Make, tmp_path: Path
) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)
        whole = await said(driver, PROMPT, 300, temperature=0)
        stream = await driver.generate(
            PROMPT,
            max_tokens=300,
            ignore_eos=True,
            temperature=0,
            credit=8,
            save_as="s",
            on_disconnect="finish",
            idempotency_key="k",
        )
        ids = await read_n(driver, stream, 20)
        lose(driver.client)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StateNotFoundError, ConnectionLostError):
                    await driver.states("get", "s")
                    break
        # Who waits for the end alone would have no window.
        await read_n(driver, stream, 300 - len(ids))
        completion = await driver.completion(stream)
        assert completion.ids == whole.ids
        assert kept(completion).ref == "s@1"
        await driver.close()


@both
async def test_a_session_is_taken_back_forked_and_goes_on(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)

        async def turn(session: Any, ids: list[int]) -> list[int]:
            stream = await driver.do(
                session, "generate", ids, max_tokens=4, temperature=0.0, ignore_eos=True
            )
            return (await driver.completion(stream)).ids

        session = driver.client.session("s")
        await turn(session, [1])
        second = await turn(session, [2])
        await driver.do(session, "roll_back")
        assert await turn(session, [2]) == second
        branch = await driver.do(session, "fork", "b")
        third = await turn(session, [3])
        assert await turn(branch, [3]) == third
        await driver.do(branch, "append", [4, 5])
        await driver.do(session, "append", [4])
        await driver.do(session, "append", [5])
        assert await turn(branch, []) == await turn(session, [])
        saved = await driver.do(session, "save")
        assert (saved.ack, session.version) == ("durable", saved.version)
        again = driver.client.session("s")
        await driver.do(again, "roll_back", 2)
        assert (await driver.do(again, "info")).n_tokens == 4 * 3 + 3 + 1
        await driver.close()


@both
async def test_who_is_late_with_a_turn_is_told(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)
        one, other = driver.client.session("s"), driver.client.session("s")
        await driver.do(one, "append", [1])
        await driver.do(other, "refresh")
        await driver.do(one, "append", [2])
        with pytest.raises(StaleVersionError):
            await driver.do(other, "append", [3])
        await driver.do(other, "refresh")
        assert (await driver.do(other, "append", [3])).version == 3
        await driver.close()


@both
async def test_a_key_with_other_parameters_is_refused(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)
        await said(driver, PROMPT, 3, save_as="s", idempotency_key="k")
        assert kept(await said(driver, PROMPT, 3, save_as="s", idempotency_key="k")).version == 1
        with pytest.raises(KeyReusedError):
            await said(driver, [4], 3, save_as="s", idempotency_key="k")
        await driver.close()


@both
async def test_a_state_leaves_as_a_file_and_comes_back_as_another(
    make: Make, tmp_path: Path
) -> None:
    async with running(tmp_path / "a") as address, running(tmp_path / "b") as target:
        driver = await dialled(make, address)
        await said(driver, PROMPT, 5, seed=1, save_as="s")
        path = tmp_path / "s.safetensors"
        exported = await driver.states("export_to", "s", path)
        assert exported.n_bytes == path.stat().st_size
        there = await dialled(make, target)
        info = await there.states("import_from", "t", path, digest=exported.digest)
        assert info.content_id == exported.state.content_id
        on = await said(driver, [], 20, state="s", save_as="s")
        assert (await said(there, [], 20, state="t", save_as="t")).ids == on.ids
        await driver.close()
        await there.close()


@both
async def test_state_bytes_go_in_and_out_with_a_request(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address:
        driver = await dialled(make, address)
        whole = await said(driver, PROMPT, 9, temperature=0)
        first = await said(driver, PROMPT, 4, temperature=0, return_state=True)
        data = kept(first).data
        assert data
        second = await said(driver, [], 5, temperature=0, state_bytes=data)
        assert first.ids + second.ids == whole.ids
        assert (await driver.states("list")).states == ()
        await driver.close()


# --- migration ----------------------------------------------------------------------------


async def migrated(driver: Driver, there: Driver, state: str, address: str, name: str = "") -> Any:
    if isinstance(driver, AioDriver):
        return await aio.migrate(
            driver.client.states, state, there.client.states, address, name=name
        )
    assert isinstance(driver, BlockingDriver)
    return await driver.call(
        lambda: wkvm_client.migrate(
            driver.client.states, state, there.client.states, address, name=name
        )
    )


@both
async def test_a_state_that_nobody_uses_moves(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address, running(tmp_path / "b") as target:
        driver, there = await dialled(make, address), await dialled(make, target)
        whole = await said(driver, PROMPT, 25, seed=3)
        await said(driver, PROMPT, 5, seed=3, save_as="s", tags={"a": "b"})
        moved = await migrated(driver, there, "s", target, name="t")
        assert (moved.source, moved.state.ref, moved.state.tags) == ("s@1", "t@1", {"a": "b"})
        with pytest.raises(StateMovedError) as caught:
            await driver.states("get", "s")
        assert (caught.value.target, caught.value.state) == (target, "t@1")
        on = await said(driver, [], 20, state="s", save_as="s")
        assert on.ids == whole.ids[5:]
        assert kept(on).ref == "t@2"
        await driver.close()
        await there.close()


@both
async def test_a_stream_moves_in_the_middle_and_is_the_one_that_stayed(
    make: Make, tmp_path: Path
) -> None:
    async with running(tmp_path / "a") as address, running(tmp_path / "b") as target:
        driver, operator, there = [await dialled(make, at) for at in (address, address, target)]
        whole = await said(driver, PROMPT, 300, seed=3, presence_penalty=0.5)
        stream = await driver.generate(
            PROMPT,
            max_tokens=300,
            ignore_eos=True,
            seed=3,
            presence_penalty=0.5,
            credit=8,
            save_as="s",
        )
        ids = await read_n(driver, stream, 20)
        moved = await migrated(operator, there, "s", target)
        assert moved.state.name == "s"
        ids += await read_n(driver, stream, 20)
        completion = await driver.completion(stream)
        assert completion.ids == whole.ids
        assert completion.ids[: len(ids)] == ids
        assert kept(completion).ref == "s@2"
        assert stream.moved_to == target
        assert (await there.states("get", "s")).n_tokens == len(PROMPT) + 300
        for one in (driver, operator, there):
            await one.close()


@both
async def test_a_session_moves_there_and_back(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address, running(tmp_path / "b") as target:
        driver, operator, there = [await dialled(make, at) for at in (address, address, target)]
        session = driver.client.session("s")
        await driver.do(session, "append", [1, 2])
        await migrated(operator, there, "s", target)
        await driver.do(session, "append", [3])
        stream = await driver.do(session, "generate", [], max_tokens=4)
        assert len((await driver.completion(stream)).ids) == 4
        assert (await there.states("get", "s")).version == 3
        await migrated(there, operator, "s", address, name="back")
        assert (await driver.do(session, "info")).ref == "back@1"
        for one in (driver, operator, there):
            await one.close()


@both
async def test_a_turn_of_a_session_is_taken_where_its_state_is(make: Make, tmp_path: Path) -> None:
    async with running(tmp_path / "a") as address, running(tmp_path / "b") as target:
        driver, operator, there = [await dialled(make, at) for at in (address, address, target)]
        whole = await said(driver, [1, 2], 8, temperature=0)
        session = driver.client.session("s")
        options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 4}
        first = await driver.completion(await driver.do(session, "generate", [1, 2], **options))
        await migrated(operator, there, "s", target, name="t")
        stream = await driver.do(session, "generate", [], **options)
        rest = await driver.completion(stream)
        assert first.ids + rest.ids == whole.ids
        assert (stream.moved_to, kept(rest).ref) == (target, "t@2")
        for one in (driver, operator, there):
            await one.close()


@both
async def test_a_refusal_of_the_target_leaves_the_source_as_it_was(
    make: Make, tmp_path: Path
) -> None:
    async with (
        running(tmp_path / "a") as address,
        running(tmp_path / "b", digest="4b55" * 16) as foreign,
        running(tmp_path / "c") as target,
    ):
        driver, operator = [await dialled(make, address) for _ in range(2)]
        whole = await said(driver, PROMPT, 300, seed=3)
        stream = await driver.generate(
            PROMPT, max_tokens=300, ignore_eos=True, seed=3, credit=8, save_as="s"
        )
        await read_n(driver, stream, 20)
        there = await dialled(make, foreign)
        with pytest.raises(StateMismatchError):
            await migrated(operator, there, "s", foreign)
        with pytest.raises(StateNotFoundError):
            await there.states("get", "s")
        taken = await dialled(make, target)
        await taken.states("create", "s", [7])
        with pytest.raises(StaleVersionError):
            await migrated(operator, taken, "s", target)
        assert (await taken.states("get", "s")).version == 1
        completion = await driver.completion(stream)
        assert completion.ids == whole.ids
        assert stream.moved_to == ""
        for one in (driver, operator, there, taken):
            await one.close()
