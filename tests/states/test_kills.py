"""Servers are killed while 32 sessions generate, and lose power: what was promised is there.

What the clients were told is written down here, in the process that is not killed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wkvm_client import aio
from wkvm_client.errors import ConnectFailedError, LinkError

from tests.soak import amount, tell
from tests.soak import seed as soak_seed
from tests.states.binary_door import BinaryDoor
from tests.states.doors import Door, Gone
from tests.states.kills import Trial, run_and_kill
from tests.states.nursery import Ask, Nursery, ServerNotStartedError
from tests.states.power import KINDS, LoopDisk, library_that_ignores_sync


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


async def trial_of(
    nursery: Nursery,
    ask: Ask,
    n_kills: int,
    *,
    seed: int,
    after_kill: Callable[[], None] = lambda: None,
    stop_at_first: bool = False,
) -> Trial:
    """Kill a server so many times, and check each time what the next one has."""
    trial, rng = Trial(seed), random.Random(seed + 1)
    server = nursery.start(ask)

    @asynccontextmanager
    async def connect() -> AsyncIterator[Door]:
        connecting = aio.connect(server.address, reconnect=False)
        try:
            client = await connecting
        except (LinkError, ConnectFailedError) as error:
            raise Gone from error
        async with client:
            yield BinaryDoor(client)

    def kill() -> None:
        server.kill()
        after_kill()

    for at in range(n_kills):
        await run_and_kill(trial, connect, kill, moment(trial, rng))
        server = nursery.start(ask)
        await trial.check(connect, all_versions=at == n_kills - 1)
        if stop_at_first and not trial.account.is_clean:
            break
    server.kill()
    return trial


async def moment(trial: Trial, rng: random.Random) -> None:
    """When some promises more were made, and then a little later."""
    wanted = trial.book.n_acked + rng.choice([0, 1, 10, 30])
    while trial.book.n_acked < wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(rng.random() * 0.02)


def ask_for(folder: Path, sockets: Path, *, has_guest: bool = False) -> Ask:
    return Ask(
        uds=str(sockets / "wkvm.sock"),
        folder=str(folder),
        engine={"n_slots": 16, "max_num_batched_tokens": 128},
        has_guest=has_guest,
    )


@pytest.mark.long
@pytest.mark.parametrize("has_guest", [False, True], ids=["record", "pages"])
async def test_a_kill_loses_and_spoils_nothing_that_was_acknowledged(
    nursery: Nursery, tmp_path: Path, has_guest: bool
) -> None:
    n_kills = amount(20, 40)
    ask = ask_for(tmp_path / "store", tmp_path, has_guest=has_guest)
    trial = await trial_of(nursery, ask, n_kills, seed=soak_seed(n_kills))
    print(trial.account, dict(trial.done), trial.book.n_acked)
    assert trial.account.is_clean, trial.account
    assert trial.account.n_kills == n_kills
    assert trial.book.n_acked > 5 * n_kills
    assert trial.account.n_doubtful["made"] + trial.account.n_doubtful["not made"] > n_kills
    figures = {"acks": trial.book.n_acked, "resumed": trial.account.n_resumed}
    states = "with pages" if has_guest else "without pages"
    tell(2, f"kill -9 of a server, states {states}", n_kills, "kills", **figures)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_loss_of_power_loses_and_spoils_nothing_that_was_acknowledged(
    nursery: Nursery, tmp_path: Path, kind: str
) -> None:
    n_cuts = amount(10 if kind == "ext4" else 2, 60)
    with LoopDisk(tmp_path, mib=512, kind=kind) as disk:
        ask = ask_for(disk.path / "store", tmp_path)
        trial = await trial_of(nursery, ask, n_cuts, seed=soak_seed(n_cuts), after_kill=disk.cut)
    print(trial.account, dict(trial.done), trial.book.n_acked)
    assert trial.account.is_clean, trial.account
    assert trial.book.n_acked > (5 * n_cuts if n_cuts >= 10 else 0)
    tell(3, f"loss of power under a server, {kind}", n_cuts, "cuts", acks=trial.book.n_acked)


async def test_a_loss_of_power_is_noticed_where_syncs_are_ignored(tmp_path: Path) -> None:
    library = library_that_ignores_sync(tmp_path)
    with LoopDisk(tmp_path, mib=512) as disk, Nursery(preload=library) as nursery:
        ask = ask_for(disk.path / "store", tmp_path)
        try:
            trial = await trial_of(
                nursery, ask, 50, seed=1, after_kill=disk.cut, stop_at_first=True
            )
        except ServerNotStartedError as error:
            noticed = "BadStoreError" in str(error)
        else:
            noticed = bool(trial.account.lost)
        assert noticed
    tell(3, "where a library ignores syncs, it is noticed", 1, "losses")
