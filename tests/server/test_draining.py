"""The end of a server: in order, in bounded time, and with an answer for everybody."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import EndReason, Generate, GoAway, Sampling, Tokens, pack_ids

from tests.fakes import FakeModel
from tests.server.fountain import Fountain
from tests.server.harness import (
    TIMEOUT_S,
    VOCAB_SIZE,
    RawClient,
    local_config,
    serving,
    tcp_config,
    timers,
    until,
)
from wkvm.core.config import EngineConfig
from wkvm.core.errors import ConfigError, EngineFailedError
from wkvm.engine.engine import Engine
from wkvm.models.base import Batch
from wkvm.server.crashes import CrashReports
from wkvm.server.guard import Supervision
from wkvm.server.serve import Server, serve

ROOT = Path(__file__).parents[2]


async def test_a_drain_lets_open_lanes_end_and_refuses_new_ones() -> None:
    async with serving(tcp_config(), control_key=None) as rig:
        client, idle = await rig.client(), await rig.client()
        lane = client.start(max_tokens=200)
        await client.next()
        draining = asyncio.create_task(rig.server.drain())
        await idle.next_of(GoAway)
        # a request that crosses with GoAway
        late = Generate(99, pack_ids([1]), Sampling())
        idle.wire._peer_going_away = False
        idle.send(late)
        failed = (await idle.answer(99)).failed
        assert failed is not None
        assert (failed.code, failed.retryable) == (ErrorCode.DRAINING, True)
        # a connection that comes too late
        new = await rig.connect()
        new.write(new.wire.send_hello())
        error = await new.error()
        assert (error.code, error.retryable) == (ErrorCode.DRAINING, True)
        answer = await client.answer(lane)
        assert len(answer.ids[0]) >= 199 - 1
        assert answer.ends[0].reason == EndReason.LENGTH
        await draining


async def test_what_outlasts_the_grace_is_cancelled_and_told_so() -> None:
    slots = EngineConfig(n_slots=16)
    config = tcp_config(drain_timeout_s=0.05)
    async with serving(config, engine_config=slots, control_key=None) as rig:
        clients = [await rig.client() for _ in range(3)]
        lanes = [client.start(max_tokens=10**6, n=5) for client in clients]
        for client in clients:
            await client.next()
        await rig.server.drain()
        await rig.server.close()
        for client, lane in zip(clients, lanes, strict=True):
            answer = await client.answer(lane)
            assert [answer.ends[i].reason for i in range(5)] == [EndReason.CANCELLED] * 5
            assert await client.next() is None


async def test_close_ends_every_connection_though_peers_do_not_read(tmp_path: Path) -> None:
    fountain = Fountain()
    config = local_config(str(tmp_path), max_output_bytes=64 * 1024, write_timeout_s=3600)
    async with serving(config, engine=fountain, control_key=None) as rig:
        await rig.client()
        await rig.connect()
        stuck = await rig.client()
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.start(n=16, max_tokens=10**6, logprobs=20)
        await until(lambda: fountain.n_holds == 16)
        async with asyncio.timeout(TIMEOUT_S):
            await rig.server.close()
        assert rig.server.n_connections == 0
        await rig.assert_idle()


async def test_serve_raises_what_ready_raised_and_cleans_up(tmp_path: Path) -> None:
    async def ready(server: Server) -> None:
        assert server.addresses
        await asyncio.sleep(0)
        raise LookupError("from ready")

    with pytest.raises(LookupError, match="from ready"):
        await serve(engine(), local_config(str(tmp_path)), ready=ready)
    assert os.listdir(tmp_path) == []


async def serve_what_breaks(
    folder: Path,
    supervision: Supervision | None = None,
    told: Callable[[], None] = lambda: None,
) -> None:
    """Serve an engine whose bookkeeping raises once there is a client.

    Args:
        told: called a little after that has heard of it.
    """
    broken = engine()

    def fail(now: float) -> None:
        raise ArithmeticError(f"bookkeeping at {now}")

    async def ready(server: Server) -> None:
        client = RawClient(*await asyncio.open_unix_connection(str(folder / "s")))
        await client.hello()
        broken.plan = fail  # type: ignore[method-assign]
        failed = await client.failure()
        assert failed.code == ErrorCode.ENGINE_FAILED
        # Of what the loop has to do for clients at the end, this is not the first.
        asyncio.get_running_loop().call_later(0.05, told)
        client.abort()

    await serve(broken, local_config(str(folder)), ready=ready, supervision=supervision)


async def test_serve_raises_what_broke_the_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineFailedError) as raised:
        await serve_what_breaks(tmp_path)
    assert isinstance(raised.value.__cause__, ArithmeticError)
    assert os.listdir(tmp_path) == []


async def test_clients_hear_of_an_engine_that_failed_though_the_report_is_not_written_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, in_time = threading.Event(), list[bool]()

    def write(reports: CrashReports, report: Mapping[str, object]) -> None:
        del reports, report
        in_time.append(heard.wait(TIMEOUT_S / 2))

    monkeypatch.setattr(CrashReports, "write", write)
    supervision = Supervision(crashes=CrashReports(tmp_path / "crashes"))
    with pytest.raises(EngineFailedError):
        await serve_what_breaks(tmp_path, supervision, heard.set)
    assert in_time == [True]


async def test_who_goes_on_after_an_engine_that_failed_is_not_ended(tmp_path: Path) -> None:
    others = timers()
    with pytest.raises(EngineFailedError):
        await serve_what_breaks(tmp_path)
    for one in timers() - others:
        one.join(TIMEOUT_S)
    assert timers() <= others


async def test_an_address_in_use_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(ConfigError):
        await serve(engine(), local_config(str(tmp_path)), ready=lambda server: None)


async def test_a_step_that_never_ends_does_not_keep_the_server_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm.server.serve.LAST_STEP_S", 0.05)
    entered, may_return = threading.Event(), threading.Event()

    def block(batch: Batch) -> None:
        entered.set()
        may_return.wait(60)

    hung = Engine(FakeModel(VOCAB_SIZE, before_forward=block), EngineConfig(n_slots=2))
    config, listens = local_config(str(tmp_path), drain_timeout_s=0.05), asyncio.Event()
    serving = asyncio.create_task(serve(hung, config, ready=lambda _: listens.set()))
    try:
        await listens.wait()
        client = await client_of(tmp_path / "s")
        lane = client.start(max_tokens=4)
        await asyncio.to_thread(entered.wait, 60)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await client.answer(lane)).ends[0].reason == EndReason.CANCELLED
        with pytest.raises(EngineFailedError) as raised:
            await serving
        assert raised.value.stalled
        await client.close()
    finally:
        may_return.set()


class Door:
    """A way in that notes what is asked of it, and whether the server listened then."""

    max_connections = 1

    def __init__(self, path: Path, error: Exception | None = None) -> None:
        self._path = path
        self._error = error
        self.calls = list[tuple[str, bool]]()

    def _note(self, call: str) -> None:
        self.calls.append((call, self._path.exists()))

    async def start(self) -> None:
        self._note("start")
        if self._error is not None:
            raise self._error

    def begin_drain(self) -> None:
        self._note("begin_drain")

    async def drained(self, timeout_s: float) -> None:
        self._note("drained")

    async def close(self) -> None:
        self._note("close")


async def test_doors_open_after_the_server_drain_with_it_and_close_before_it(
    tmp_path: Path,
) -> None:
    door = Door(tmp_path / "s")

    async def ready(server: Server) -> None:
        assert door.calls == [("start", True)]
        os.kill(os.getpid(), signal.SIGTERM)

    await serve(engine(), local_config(str(tmp_path)), ready=ready, doors=lambda _: [door])
    assert door.calls == [("start", True), ("begin_drain", True), ("close", True)]
    assert os.listdir(tmp_path) == []


async def test_signals_cut_off_nothing_of_the_end(tmp_path: Path) -> None:
    class Ending(Door):
        async def close(self) -> None:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
            await super().close()

    door = Ending(tmp_path / "s")

    async def ready(server: Server) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    await serve(engine(), local_config(str(tmp_path)), ready=ready, doors=lambda _: [door])
    assert door.calls[-1][0] == "close"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_door_that_cannot_be_opened_ends_the_server(tmp_path: Path) -> None:
    door = Door(tmp_path / "s", LookupError("no port"))
    ready = list[Server]()
    with pytest.raises(LookupError, match="no port"):
        await serve(
            engine(), local_config(str(tmp_path)), ready=ready.append, doors=lambda _: [door]
        )
    assert ([call for call, _ in door.calls], ready) == (["start", "close"], [])
    assert os.listdir(tmp_path) == []


def engine() -> Engine:
    return Engine(FakeModel(vocab_size=VOCAB_SIZE), EngineConfig(n_slots=2))


# --- a process of its own, and signals -------------------------------------------------------


@contextmanager
def process(path: Path, **settings: object) -> Iterator[subprocess.Popen[str]]:
    # what an end should not wait for takes longer than any test waits
    settings = {"drain_timeout_s": 3600, "write_timeout_s": 3600} | settings
    with subprocess.Popen(
        [sys.executable, "-m", "tests.server.process", str(path), json.dumps(settings)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == f"ready unix://{path}\n"
            yield child
        finally:
            child.kill()


async def client_of(path: Path) -> RawClient:
    client = RawClient(*await asyncio.open_unix_connection(str(path)))
    await client.hello()
    return client


async def end_of(child: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = await asyncio.to_thread(child.communicate, timeout=TIMEOUT_S)
    assert out == "ended False\n"
    return child.returncode, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "s"
    with process(path) as child:
        idle = await client_of(path)
        child.send_signal(number)
        await idle.next_of(GoAway)
        assert await idle.next() is None
        await idle.close()
        status, err = await end_of(child)
    assert (status, err) == (0, "")
    assert not path.exists()


async def test_a_signal_lets_streams_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with process(path) as child:
        client = await client_of(path)
        lane = client.start(max_tokens=100)
        first = await client.next()
        child.send_signal(signal.SIGTERM)
        answer = await client.answer(lane)
        assert isinstance(first, Tokens)
        assert answer.ids[0] == [7] * 99
        assert answer.ends[0].reason == EndReason.LENGTH
        await client.close()
        status, err = await end_of(child)
    assert (status, err) == (0, "")


async def test_streams_beyond_the_grace_are_cancelled_and_the_server_ends(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with process(path, drain_timeout_s=0.2) as child:
        clients = [await client_of(path) for _ in range(10)]
        lanes = [client.start(max_tokens=10**6) for client in clients]
        for client in clients:
            await client.next()
        child.send_signal(signal.SIGTERM)
        for client, lane in zip(clients, lanes, strict=True):
            assert (await client.answer(lane)).ends[0].reason == EndReason.CANCELLED
            await client.close()
        status, err = await end_of(child)
    assert (status, err) == (0, "")


async def test_an_event_loop_that_stands_still_ends_the_process_with_status_71(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with process(path, step_timeout_s=1.0, max_loop_lag_s=0.5) as child:
        client = await client_of(path)
        client.start(max_tokens=10**6)
        await client.next()
        (tmp_path / "s.hang").touch()
        out, err = await asyncio.to_thread(child.communicate, timeout=TIMEOUT_S)
        assert (child.returncode, out) == (71, "")
        assert "process.py" in err
        assert "the event loop does not turn: the process ends" in err
        while await client.next() is not None:
            pass
        await client.close()


async def test_a_second_signal_ends_the_wait_in_order(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with process(path) as child:
        client = await client_of(path)
        lane = client.start(max_tokens=10**6)
        await client.next()
        child.send_signal(signal.SIGTERM)
        await client.next_of(GoAway)
        child.send_signal(signal.SIGTERM)
        assert (await client.answer(lane)).ends[0].reason == EndReason.CANCELLED
        assert await client.next() is None
        await client.close()
        status, err = await end_of(child)
    assert (status, err) == (0, "")
    assert not path.exists()
