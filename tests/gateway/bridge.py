"""Frames of a stream to messages of a WebSocket and back, for clients that know streams alone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from wkvm_protocol.framing import HEADER_BYTES, encode_frame
from wkvm_protocol.messages import MAX_FRAME_BYTES

PROTOCOL = "wkvm.v1"


@asynccontextmanager
async def over_websocket(http: aiohttp.ClientSession) -> AsyncIterator[socket.socket]:
    """A socket whose frames go over a WebSocket of ``/v1/ws``."""
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    async with http.ws_connect("/v1/ws", protocols=[PROTOCOL], max_msg_size=0) as messages:

        async def up() -> None:
            try:
                while True:
                    n_bytes = int.from_bytes(await reader.readexactly(HEADER_BYTES), "little")
                    await messages.send_bytes(await reader.readexactly(n_bytes))
            except asyncio.IncompleteReadError:
                await messages.close()

        async def down() -> None:
            async for message in messages:
                writer.write(encode_frame(message.data, MAX_FRAME_BYTES))
            writer.close()

        tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
        yield theirs
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
