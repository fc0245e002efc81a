"""Frames of any kind, whole and broken: each is answered once, or ends its connection."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from wkvm_protocol.messages import Cancel, Hello

from tests.gateway.harness import Running
from tests.gateway.stateful import make, states_running
from tests.hostile.grammar import Draw
from tests.hostile.peer import USED, Peer, WebPeer, script
from tests.hostile.watch import MIB, watched
from tests.soak import SOAKING, amount, seed, tell

PATIENCE_S = 60
AT_ONCE = 12
"""Connections that talk at the same time."""
MAX_PIECES = 200
MAX_FRAMES = 60
"""Of one connection."""


async def settled(peer: Peer, is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that the peer notices."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (is_so() or peer.is_over):
                peer.changed.clear()
                await peer.changed.wait()
    except TimeoutError:
        peer.faults.append(f"{what} is waited for in vain: {peer.lanes}, {peer.pings}")


async def send(peer: Peer, data: bytes, chance: random.Random) -> None:
    """Send bytes in one piece or in several, down to one byte at a time."""
    assert peer.transport is not None
    how = chance.random()
    size = len(data) if how < 0.8 else 1 if how < 0.83 else chance.randrange(1, 50)
    # A frame has to be whole before its deadline.
    size = max(size, len(data) // MAX_PIECES, 1)
    for at in range(0, len(data), size):
        peer.transport.write(data[at : at + size])
        if size < len(data):
            await asyncio.sleep(0)


async def converse(peer: Peer, draw: Draw, n_frames: int, lied: float) -> None:
    """Have one conversation, from Hello to its end.

    Args:
        peer: connected, and nothing was said yet.
    """
    chance = draw.chance
    assert peer.transport is not None
    peer.say(Hello("wkvm", 1, 1, features=USED))
    await settled(peer, lambda: peer.greeted, "HelloOk")
    await send(peer, b"".join(script(draw, peer, n_frames, lied)), chance)
    if not peer.is_wrong:
        if peer.is_cut or chance.random() < 0.2:  # in the middle of everything
            peer.transport.abort()
            return
        # What is not over by itself is over now.
        for lane in tuple(peer.lanes):
            peer.say(Cancel(lane))
        await settled(peer, lambda: not peer.lanes and not peer.pings, "an answer")
        if not (peer.is_leaving or peer.error):
            peer.transport.close()
    await settled(peer, lambda: peer.error is not None, "the end")
    await asyncio.sleep(0)  # whatever else is said would come now
    peer.transport.close()
    await settled(peer, lambda: False, "the end of the connection")
    # Who says GoAway is let go once all lanes are closed, which may be before it was wrong.
    if peer.is_wrong and peer.error is None and not peer.is_leaving:
        peer.faults.append(f"no Error has come, though this was wrong: {peer.why_wrong}")
    if not (peer.is_wrong or peer.may_be_wrong) and (peer.lanes or peer.pings):
        peer.faults.append(f"the connection ended before {peer.lanes}, {peer.pings}")


async def binary(running: Running, chance: random.Random) -> Peer:
    """A connection to the binary door, in memory."""
    peer = Peer(chance)
    running.server.attach(peer, is_trusted=False)
    return peer


async def web(running: Running, chance: random.Random) -> Peer:
    """A WebSocket."""
    loop, peer = asyncio.get_running_loop(), WebPeer(chance)
    await loop.create_unix_connection(lambda: peer, str(running.path))
    await settled(peer, lambda: peer.is_upgraded, "the upgrade")
    return peer


Connect = Callable[[Running, random.Random], Awaitable[Peer]]


@pytest.mark.parametrize(
    ("connect", "what", "suite", "part"),
    [
        (binary, "frames of the binary protocol", 10_000, 500_000),
        (web, "messages over WebSocket", 2_000, 300_000),
    ],
    ids=["binary", "websocket"],
)
async def test_each_frame_is_answered_once_or_ends_its_connection(
    tmp_path: Path, connect: Connect, what: str, suite: int, part: int
) -> None:
    n_wanted, n_sent, n_answers, n_conversations = amount(suite, part), 0, 0, 0
    faults = list[str]()

    async def talk(running: Running, number: int) -> None:
        nonlocal n_sent, n_answers, n_conversations
        chance = random.Random(1000 * seed() + number)
        draw, lied = Draw(chance, wrong=0.002), 0.01 if connect is binary else 0.0
        while n_sent < n_wanted and not faults:
            peer = await connect(running, chance)
            await converse(peer, draw, chance.randrange(1, MAX_FRAMES), lied)
            faults.extend(peer.faults)
            n_sent += peer.n_frames
            n_answers += peer.n_closed
            n_conversations += 1

    async with states_running(tmp_path, max_states=20) as running:
        for name in ("a", "b"):
            await make(running, name)
        async with watched(running) as health:

            async def measure() -> None:
                while True:
                    health.note_size(n_sent)
                    await asyncio.sleep(0.1)

            measuring = asyncio.create_task(measure())
            await asyncio.gather(*(talk(running, number) for number in range(AT_ONCE)))
            measuring.cancel()
            health.note_size(n_sent)
    assert faults == []
    growth, slope = health.growth / MIB, health.slope * 1e6 / MIB
    # Of few frames a slope says nothing.
    assert (slope if SOAKING else growth) < 16
    tell(
        6,
        what,
        n_sent,
        "frames",
        answers=n_answers,
        conversations=n_conversations,
        growth_mib=round(growth, 1),
        slope_mib=round(slope, 1),
        lag_p99_ms=health.lag_p99_ms,
        controls=health.n_controls,
    )
