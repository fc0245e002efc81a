"""One of several processes that serve the same HTTP port; the main program of each.

``python -m wkvm.assembly.worker FD``: by the socket FD it is told what to serve, and says that
it is ready, why it cannot be, and, while it serves, what it has counted. When the other end of the
socket is closed it ends. Who starts it and waits for it is ``workers``.
"""

import asyncio
import dataclasses
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop
from wkvm_client.errors import ClientError

from wkvm.assembly.http import (
    HINT_APART,
    HINT_BESIDE,
    HttpDoor,
    Share,
    engines_apart,
    engines_at,
)
from wkvm.assembly.reach import Reach
from wkvm.assembly.texts import load_texts
from wkvm.core.errors import WkvmError
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.door.limits import Ledger
from wkvm.gateway.errors import SettingError, TextError
from wkvm.gateway.peers import Peers
from wkvm.gateway.text import ByteTokenizer, load_tokenizer
from wkvm.server.guard import watch_loop
from wkvm.server.log import LogFormat, start_log
from wkvm.server.notify import Notifier
from wkvm.server.process import Signals, first, raise_file_limit

EXIT_FAILED = 1
TELL_INTERVAL_S = 1.0
"""What is counted between two tellings is lost if the process is killed."""

logger = logging.getLogger("wkvm.worker")


class Order(msgspec.Struct, kw_only=True):
    """What a worker is to serve.

    Attributes:
        index: which of the workers it is.
        config: with no address: the sockets are bound already.
        model: path, where the text side is.
        default_max_tokens, tool_parser, reasoning_parser: as ``Texts`` has them.
        tokenizer: its path; ``bytes`` if ids are bytes.
        reach: the engine.
        sockets: descriptors of those by which clients come.
        for_peers: of that by which the other workers come.
        peers: paths of all workers' sockets of that kind.
        secret: that workers share.
        inherited: what was counted by those in whose place it is started.
        ledger: path of what keys have left; empty where no key has limits.
        drain_timeout_s, step_timeout_s, max_loop_lag_s: as ``ServerConfig`` has them.
        log_level: as ``logging`` has it.
    """

    index: int
    config: GatewayConfig
    model: str
    default_max_tokens: int
    tool_parser: str
    reasoning_parser: str
    tokenizer: str
    reach: Reach
    sockets: list[int]
    for_peers: int
    peers: list[str]
    secret: str
    inherited: dict[str, float]
    ledger: str
    drain_timeout_s: float
    step_timeout_s: float
    max_loop_lag_s: float
    log_level: str
    log_format: LogFormat


class Report(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a worker says.

    Attributes:
        is_ready: clients can connect.
        failure: why they never will.
        numbers: what was counted.
    """

    is_ready: bool = False
    failure: str = ""
    numbers: dict[str, float] | None = None


def main() -> int:
    """Serve until SIGTERM, or until the process that started this one is gone; then drain."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_work(channel))


async def _work(channel: socket.socket) -> int:
    channel.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=channel, limit=2**24)
    line = await reader.readline()
    if not line:
        return EXIT_FAILED
    order = msgspec.json.decode(line, type=Order)
    start_log(order.log_level, order.log_format, f"gateway-{order.index}")

    def say(report: Report) -> None:
        if not writer.is_closing():
            writer.write(msgspec.json.encode(report) + b"\n")

    try:
        await _serve(order, reader, say)
    except (WkvmError, SettingError, TextError, ClientError) as error:
        say(Report(failure=str(error)))
        return EXIT_FAILED
    finally:
        writer.close()
    return 0


async def _serve(order: Order, reader: asyncio.StreamReader, say: Callable[[Report], None]) -> None:
    is_bytes = order.tokenizer == "bytes"
    tokenizer = ByteTokenizer() if is_bytes else load_tokenizer(Path(order.tokenizer))
    model, limit = Path(order.model), order.default_max_tokens
    texts = dataclasses.replace(
        load_texts(model, tokenizer, default_max_tokens=limit),
        tool_parser=order.tool_parser,
        reasoning_parser=order.reasoning_parser,
    )
    share = Share(
        sockets=tuple(socket.socket(fileno=fd) for fd in order.sockets),
        for_peers=socket.socket(fileno=order.for_peers),
        peers=Peers(order.index, order.peers, order.secret),
        inherited=order.inherited,
        ledger=Ledger(Path(order.ledger), index=order.index) if order.ledger else None,
    )
    reach = order.reach
    if reach.is_apart:
        engines = engines_apart(reach.own, reach.own_key, is_public=reach.is_public)
    else:
        engines = engines_at(reach.own, reach.clients)
    hint = HINT_APART if reach.is_apart else HINT_BESIDE
    door = HttpDoor(order.config, texts, engines, hint=hint, share=share)
    raise_file_limit(2 * door.max_connections)
    signals = Signals()
    watchdog = watch_loop(
        max_lag_s=order.max_loop_lag_s,
        step_timeout_s=order.step_timeout_s,
        notifier=Notifier(),
    )
    door.lag_s = lambda: watchdog.lag_s
    left = asyncio.create_task(_until_alone(reader))
    try:
        # From the start: the order to end may come at once.
        signals.catch()
        await door.start()
        gc.collect()
        gc.freeze()
        watchdog.start()
        say(Report(is_ready=True))
        await first(signals.wait(1), left, _tell(door, say))
        door.begin_drain()
        await first(signals.wait(2), left, door.drained(order.drain_timeout_s))
    finally:
        with signals.held():
            left.cancel()
            await door.close()
            watchdog.stop()
            say(Report(numbers=door.numbers))


async def _until_alone(reader: asyncio.StreamReader) -> None:
    """Return when the process that started this one is gone."""
    while await reader.read(4096):
        pass


async def _tell(door: HttpDoor, say: Callable[[Report], None]) -> None:
    """Say what is counted, as long as this one serves."""
    told = dict[str, float]()
    while True:
        await asyncio.sleep(TELL_INTERVAL_S)
        numbers = door.numbers
        # Said in any case: who says nothing for long is taken for dead.
        say(Report(numbers=None if numbers == told else numbers))
        told = numbers


if __name__ == "__main__":
    # Not through the interpreter's end: threads that still tokenize are not waited for.
    status = main()
    sys.stderr.flush()
    os._exit(status)
