"""A server from its command to its end."""

import logging
import os
import re
import shlex
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import wkvm_client
from wkvm_client.errors import UnauthenticatedError

from tests.cli.conftest import (
    KEY,
    RunningServer,
    environment,
    running_server,
    wkvm_command,
)
from tests.state.stores import opened
from wkvm.assembly.engine import auto_slots, build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.cli import main
from wkvm.core.config import EngineConfig
from wkvm.gateway.text import tokenizer_digest
from wkvm.models.registry import describe


def test_the_ready_line_names_the_addresses(server: RunningServer) -> None:
    http = r"http://127\.0\.0\.1:\d+"
    assert re.fullmatch(f"ready {re.escape(server.address)} {http}\n", server.ready_line)


def test_clients_are_told_what_is_served(server: RunningServer) -> None:
    with wkvm_client.connect(server.address, api_key=KEY) as client:
        hello = client.server
    assert (hello.model, hello.n_slots) == ("rwkv7-tinystories", 4)
    assert hello.tokenizer_digest == tokenizer_digest(BUNDLED)


def test_the_key_from_the_environment_is_needed(server: RunningServer) -> None:
    with pytest.raises(UnauthenticatedError), wkvm_client.connect(server.address):
        pass


def test_sigterm_ends_open_requests_and_the_server_with_status_0(tmp_path: Path) -> None:
    with running_server(tmp_path, "--slots", "1", "--drain-timeout-s", "0") as server:
        with wkvm_client.connect(server.address, api_key=KEY) as client:
            stream = client.generate([5], max_tokens=100_000, ignore_eos=True)
            stream.read()
            assert server.end() == 0
            assert stream.completion().reason is wkvm_client.EndReason.CANCELLED
        assert not Path(server.address.removeprefix("unix://")).exists()


def test_a_server_of_64_slots_is_small_and_does_nothing_when_idle(tmp_path: Path) -> None:
    with running_server(tmp_path, "--slots", "64") as server:
        with wkvm_client.connect(server.address, api_key=KEY) as client:
            assert client.server.n_slots == 64
            streams = [client.generate([5, i], max_tokens=4, ignore_eos=True) for i in range(64)]
            assert all(len(stream.completion().ids) == 4 for stream in streams)
        process = psutil.Process(server.process.pid)
        assert process.memory_info().rss < 800 * 2**20
        # Of the process's own time, however busy the machine is: under 1% of a core, once what
        # the requests have left to do is done.
        assert any(used_in(2.0, process) < 0.02 + 1e-6 for _ in range(10))
        assert server.end() == 0


def used_in(seconds: float, process: psutil.Process) -> float:
    """How many seconds of a processor a process uses meanwhile."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def test_standard_streams_that_are_closed_do_no_harm(tmp_path: Path) -> None:
    # A socket in their place would be what messages are written to, or end the process.
    command = " ".join(
        map(shlex.quote, wkvm_command("serve", "--port", "none", "--binary-port", "none"))
    )
    command += f" --binary-uds {shlex.quote(str(tmp_path / 's'))} <&- 2>&-"
    with subprocess.Popen(
        "exec " + command, shell=True, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        with wkvm_client.connect(f"unix://{tmp_path / 's'}", api_key=KEY) as client:
            assert len(list(client.generate([5], max_tokens=2, ignore_eos=True))) == 2
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_a_ready_line_that_cannot_be_written_ends_in_one_line(tmp_path: Path) -> None:
    command = wkvm_command(
        "serve", "--port", "none", "--binary-port", "none", "--binary-uds", str(tmp_path / "s")
    )
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False
        )
    assert ended.returncode == 2
    assert re.fullmatch(r"wkvm serve: standard output: .*No space left.*\n", ended.stderr)


def test_a_name_that_is_not_utf8_is_told_in_part(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, "--served-model-name", os.fsdecode(b"m\xff")) as server,
        wkvm_client.connect(server.address, api_key=KEY) as client,
    ):
        assert client.server.model == "m?"


def test_a_port_in_use_is_named_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    monkeypatch.setattr("wkvm.assembly.engine.load_model", lambda *a, **k: pytest.fail("loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--device", "cpu", "--port", "none", "--binary-port", str(port)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"wkvm serve: binary-port: {port}: Address already in use\n", captured.err)


def test_a_socket_in_use_is_named_before_the_model_is_loaded(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wkvm.assembly.engine.load_model", lambda *a, **k: pytest.fail("loaded"))
    path = server.address.removeprefix("unix://")
    assert main(["serve", "--port", "none", "--binary-port", "none", "--binary-uds", path]) == 2
    why = f"binary-uds: {path}: another server listens there"
    assert capsys.readouterr().err == f"wkvm serve: {why}\n"


def test_a_store_in_use_is_named_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wkvm.assembly.engine.load_model", lambda *a, **k: pytest.fail("loaded"))
    where = ("--port", "none", "--binary-port", "none", "--binary-uds", str(tmp_path / "s"))
    folder = tmp_path / "store"
    with opened(folder):
        assert main(["serve", *where, "--state-dir", str(folder)]) == 1
    assert "another process" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["serve", *where, "--state-dir", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_at_info_it_is_logged_what_was_loaded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="wkvm"):
        engine = build_engine(BUNDLED, EngineConfig(n_slots=3, device="cpu"), served_name="tiny")
    assert engine.info.model == "tiny"
    mib = 3 * describe(BUNDLED, device="cpu").layout.record_bytes / 2**20
    (message,) = caplog.messages
    line = rf"tiny: rwkv7, float32 on cpu, 3 slots, {mib:.1f} MiB of states, loaded in \d+\.\d s"
    assert re.fullmatch(line, message)


def test_the_warm_up_leaves_no_trace_in_the_engine() -> None:
    engine = build_engine(BUNDLED, EngineConfig(n_slots=3, device="cpu"), served_name="x")
    assert engine.info.n_slots == 3
    stats = dict(engine.stats())
    assert {name for name, value in stats.items() if value} == {"n_slots", "n_free_slots"}


def test_slots_auto_takes_half_of_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = describe(BUNDLED, device="cpu")
    free = 4 * model.n_parameters + 10 * model.layout.record_bytes + 5
    monkeypatch.setattr("wkvm.assembly.memory.free_host_bytes", lambda: free)
    assert auto_slots(BUNDLED, device="cpu", dtype="auto") == 5


@pytest.mark.parametrize(("free_bytes", "n_slots"), [(0, 1), (2**50, 1024)])
def test_slots_auto_has_bounds(
    free_bytes: int, n_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm.assembly.memory.free_host_bytes", lambda: free_bytes)
    assert auto_slots(BUNDLED, device="cpu", dtype="auto") == n_slots
