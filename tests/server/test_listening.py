"""Addresses and socket files."""

import asyncio
import fcntl
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from tests.server.harness import local_config, serving, tcp_config, until
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.errors import ConfigError
from wkvm.server import listen as listen_module
from wkvm.server.listen import UnixSocket, bind_tcp, check_addresses, listen


async def test_both_doors_serve_and_are_named(tmp_path: Path) -> None:
    config = ServerConfig(binary_port=0, binary_uds=str(tmp_path / "s"))
    async with serving(config) as rig:
        tcp, unix = rig.server.addresses
        assert tcp.startswith("tcp://127.0.0.1:")
        assert unix == f"unix://{tmp_path}/s"
        for address in (tcp, unix):
            assert (await (await rig.client(address=address)).generate()).ends


async def test_a_connection_within_the_process_needs_no_key() -> None:
    keys = (ApiKey.of("red-key", "red"),)
    async with serving(tcp_config(api_keys=keys, max_connections=1), control_key="red-key") as rig:
        sock = await rig.server.connect_local()
        client = await rig.adopt(sock)
        await client.hello()
        assert (await client.generate()).ends


@pytest.mark.parametrize("n_turns", range(5))
async def test_a_connection_within_the_process_that_nobody_waits_for_leaves_nothing(
    n_turns: int,
) -> None:
    async with serving(tcp_config()) as rig:
        n_before = rig.server.n_connections
        connecting = asyncio.create_task(rig.server.connect_local(is_trusted=False))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        if connecting.cancel():
            await asyncio.wait([connecting])
        if not connecting.cancelled():
            connecting.result().close()
        await until(lambda: rig.server.n_connections == n_before)


def test_the_socket_file_is_for_its_user_alone(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        made = UnixSocket(str(tmp_path / "s"))
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o600
    made.remove()
    made.socket.close()
    assert not (tmp_path / "s").exists()


def test_a_socket_file_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(path)
    made = UnixSocket(path)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
    made.remove()
    made.socket.close()


def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(ConfigError, match="another server listens there"):
            UnixSocket(path)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a socket"):
        UnixSocket(str(path))
    assert path.is_symlink() or path.exists()
    assert kind != "file" or path.read_text() == "precious"


def test_a_file_that_took_the_place_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made = UnixSocket(str(path))
    path.unlink()
    path.write_text("precious")
    made.remove()
    made.socket.close()
    assert path.read_text() == "precious"


def test_of_two_servers_that_start_at_once_one_gets_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "s")
    made = list[UnixSocket]()
    refused = list[str]()

    def start() -> None:
        try:
            made.append(UnixSocket(path))
        except ConfigError as error:
            refused.append(str(error))

    second = threading.Thread(target=start)
    umask = os.umask

    def bind_meanwhile(mask: int) -> int:
        # it is called before and after the bind: now the first is bound and does not listen
        if mask != 0o177 and not second.ident:
            second.start()
            second.join(0.2)
        return umask(mask)

    monkeypatch.setattr(os, "umask", bind_meanwhile)
    start()
    second.join()
    assert len(made) == 1
    assert refused == [f"binary-uds: {path}: another server listens there"]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    made[0].remove()
    made[0].socket.close()


def test_a_lock_that_somebody_keeps_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "LOCK_PATIENCE_S", 0.05)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    made = UnixSocket(str(tmp_path / "s"))
    made.remove()
    made.socket.close()
    os.close(fd)


def test_a_path_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^binary-uds: .*No such file"):
        UnixSocket(str(tmp_path / "no" / "s"))


def test_a_relative_path_that_is_too_long_in_full_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^binary-uds: .*path too long"):
        UnixSocket("x" * 107)


async def test_a_path_that_is_not_utf8_serves_like_any_other(tmp_path: Path) -> None:
    config = ServerConfig(binary_port=None, binary_uds=os.fsdecode(bytes(tmp_path) + b"/\xff"))
    async with serving(config) as rig:
        await rig.assert_alive()


LARGEST = {
    "max_output_bytes": 2**31,
    "max_lanes": 2**53,
    "max_connections": 2**53,
    "max_frame_bytes": 2**32 - 1,
    "ping_interval_s": 2.0**31,
    "auth_timeout_s": 2.0**31,
    "idle_timeout_s": 2.0**31,
}


async def test_a_server_with_the_largest_settings_serves(tmp_path: Path) -> None:
    config = local_config(str(tmp_path), **LARGEST)
    async with serving(config, engine_config=EngineConfig(max_model_len=2**53)) as rig:
        await rig.assert_alive()


def test_an_address_of_another_machine_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"^host: 192\.0\.2\.1 is no address of this machine"):
        bind_tcp("192.0.2.1", 0, loopback_only=False)


def test_a_port_in_use_is_a_config_error_and_nothing_is_left_open(tmp_path: Path) -> None:
    (first,) = bind_tcp("127.0.0.1", 0, loopback_only=True)
    port = first.getsockname()[1]
    n_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"^binary-port: \d+: Address already in use"):
        listen(ServerConfig(binary_port=port, binary_uds=str(tmp_path / "s")))
    assert len(os.listdir("/proc/self/fd")) <= n_files
    assert not (tmp_path / "s").exists()
    first.close()


def test_a_bad_socket_file_closes_the_port_again(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    n_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="not a socket"):
        listen(ServerConfig(binary_port=0, binary_uds=str(tmp_path / "s")))
    assert len(os.listdir("/proc/self/fd")) <= n_files


def test_a_check_of_addresses_leaves_nothing_behind(tmp_path: Path) -> None:
    (taken,) = bind_tcp("127.0.0.1", 0, loopback_only=True)
    config = ServerConfig(binary_port=taken.getsockname()[1], binary_uds=str(tmp_path / "s"))
    with pytest.raises(ConfigError, match=r"^binary-port: \d+: Address already in use"):
        check_addresses(config)
    taken.close()
    n_files = len(os.listdir("/proc/self/fd"))
    check_addresses(config)
    assert len(os.listdir("/proc/self/fd")) <= n_files
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_host_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cannot be resolved"):
        bind_tcp("no-such-host.invalid", 0, loopback_only=False)


def test_a_name_that_is_not_loopback_after_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not loopback"):
        bind_tcp("0.0.0.0", 0, loopback_only=True)


async def test_a_closed_server_leaves_no_file(tmp_path: Path) -> None:
    async with serving(local_config(str(tmp_path))):
        assert (tmp_path / "s").is_socket()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"binary_port": 65_536}, "binary-port"),
        ({"binary_port": -1}, "binary-port"),
        ({"binary_uds": ""}, "binary-uds"),
        ({"binary_uds": "/" + "x" * 107}, "binary-uds"),
        ({"auth_timeout_s": 0.0}, "auth-timeout-s"),
        ({"frame_timeout_s": float("nan")}, "frame-timeout-s"),
        ({"idle_timeout_s": float("inf")}, "idle-timeout-s"),
        ({"write_timeout_s": -1.0}, "write-timeout-s"),
        ({"ping_interval_s": -1.0}, "ping-interval-s"),
        ({"ping_interval_s": float("nan")}, "ping-interval-s"),
        ({"drain_timeout_s": -1.0}, "drain-timeout-s"),
        ({"max_missed_pings": 0}, "max-missed-pings"),
        ({"max_output_bytes": 4095}, "max-output-bytes"),
        ({"max_connections": 0}, "max-connections"),
        ({"max_connections_per_tenant": 0}, "max-connections-per-tenant"),
        ({"max_lanes": 0}, "max-lanes"),
        ({"max_frame_bytes": 65_535}, "max-frame-bytes"),
        ({"max_frame_bytes": 2**32}, "max-frame-bytes"),
        ({"max_output_bytes": 2**31 + 1}, "max-output-bytes"),
        ({"max_lanes": 2**53 + 1}, "max-lanes"),
        ({"ping_interval_s": 2.0**32}, "ping-interval-s"),
        ({"auth_timeout_s": 2.0**32}, "auth-timeout-s"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.setting == named
