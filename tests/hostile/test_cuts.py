"""Frames that come in two pieces, whichever byte the cut is at, on both doors."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from wkvm_protocol import messages as wire
from wkvm_protocol.messages import FROM_CLIENT, ClientMessage, Hello

from tests.gateway.harness import Running
from tests.gateway.stateful import make, states_running
from tests.hostile.peer import USED, Peer
from tests.hostile.test_frames import binary, settled, web
from tests.hostile.watch import watched
from tests.protocol.vectors import examples
from tests.soak import tell

MESSAGES: list[Any] = [
    one
    for one in examples(ClientMessage)
    if type(one) in FROM_CLIENT and type(one) is not wire.GenerateConstrained
]


@pytest.mark.parametrize("connect", [binary, web])
async def test_a_cut_at_any_byte_changes_no_answer(
    tmp_path: Path, connect: Callable[[Running, random.Random], Awaitable[Peer]]
) -> None:
    n_cuts, chance = 0, random.Random(1)
    async with states_running(tmp_path) as running:
        await make(running, "a")
        async with watched(running):
            for message in MESSAGES:
                peer = await connect(running, chance)
                peer.say(Hello("wkvm", 1, 1, features=USED))
                await settled(peer, partial(is_greeted, peer), "HelloOk")
                n_cuts += await all_cuts(peer, message)
                assert (peer.faults, peer.error) == ([], None), message
                assert peer.transport is not None
                peer.transport.close()
    assert n_cuts > 10 * len(MESSAGES)
    tell(6, "frames in two pieces", n_cuts, "cuts")


def is_greeted(peer: Peer) -> bool:
    """Whether the handshake is done."""
    return peer.greeted


async def all_cuts(peer: Peer, message: Any) -> int:
    """Send a message once for each place where it can be cut; how many there are."""
    assert peer.transport is not None
    cut, size = 1, 2
    while cut < size:
        if hasattr(message, "request_id"):
            message = type(message)(
                **{
                    name: cut if name == "request_id" else getattr(message, name)
                    for name in message.__struct_fields__
                }
            )
        payload = peer.payload(message)
        peer.expects(payload)
        data = peer.frame(payload)
        size = len(data)
        peer.transport.write(data[:cut])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        peer.transport.write(data[cut:])
        if peer.is_leaving:
            await settled(peer, lambda: peer.is_over, "the end")
            return 1
        for lane in tuple(peer.lanes):
            peer.say(wire.Cancel(lane))
        await settled(peer, lambda: not (peer.lanes or peer.pings), "an answer")
        if peer.faults or peer.is_over:
            break
        cut += 1
    return cut
