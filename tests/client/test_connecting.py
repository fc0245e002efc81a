"""Addresses, keys that must not travel, pauses between attempts."""

import pytest
import wkvm_client
from wkvm_client import aio
from wkvm_client.addresses import is_loopback, resolve
from wkvm_client.backoff import Backoff
from wkvm_client.errors import ConnectTimeoutError, InvalidParameterError, PlaintextKeyError
from wkvm_protocol.address import TcpAddress


@pytest.mark.parametrize("connect", [wkvm_client.connect, aio.connect], ids=["blocking", "aio"])
def test_a_key_does_not_cross_a_network_in_the_clear(connect: object) -> None:
    assert callable(connect)
    with pytest.raises(PlaintextKeyError, match=r"192\.0\.2\.1"):
        connect("tcp://192.0.2.1:8001", api_key="secret")


@pytest.mark.parametrize("connect", [wkvm_client.connect, aio.connect], ids=["blocking", "aio"])
def test_what_is_no_address_is_refused(connect: object) -> None:
    assert callable(connect)
    with pytest.raises(InvalidParameterError) as raised:
        connect("http://127.0.0.1")
    assert raised.value.field == "address"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_may_have_the_key(host: str) -> None:
    assert is_loopback(host)
    resolve(TcpAddress(host, 1), api_key="secret", allow_plaintext_key=False)


@pytest.mark.parametrize("host", ["10.0.0.1", "::", "0.0.0.0", "example.org", "localhost.example"])
def test_other_hosts_may_not(host: str) -> None:
    with pytest.raises(PlaintextKeyError):
        resolve(TcpAddress(host, 1), api_key="secret", allow_plaintext_key=False)
    resolve(TcpAddress(host, 1), api_key="secret", allow_plaintext_key=True)
    resolve(TcpAddress(host, 1), api_key=None, allow_plaintext_key=False)


def test_a_unix_socket_may_have_the_key() -> None:
    resolve("unix:///run/wkvm.sock", api_key="secret", allow_plaintext_key=False)


async def test_connecting_to_a_host_that_swallows_packets_ends() -> None:
    # a listener whose queue is full answers no more connections
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        with pytest.raises(ConnectTimeoutError):
            await aio.connect(f"tcp://127.0.0.1:{port}", connect_timeout_s=0.05)
        with pytest.raises(ConnectTimeoutError):
            wkvm_client.connect(f"tcp://127.0.0.1:{port}", connect_timeout_s=0.05)
        for filler in fillers:
            filler.close()


def pauses(backoff: Backoff) -> list[float]:
    now_s, found = 100.0, []
    while (pause_s := backoff.next_pause_s(now_s)) is not None:
        now_s += pause_s
        found.append(round(pause_s, 6))
    return found


def test_pauses_double_from_none_to_two_seconds() -> None:
    backoff = Backoff(now_s=100.0, timeout_s=10.0, not_before_s=0.0, random=lambda: 1.0)
    assert pauses(backoff) == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_pauses_are_jittered_down_to_a_half() -> None:
    backoff = Backoff(now_s=100.0, timeout_s=0.2, not_before_s=0.0, random=lambda: 0.0)
    assert pauses(backoff) == [0.0, 0.025, 0.05, 0.1]


def test_the_first_attempt_waits_for_when_the_server_asked() -> None:
    backoff = Backoff(now_s=100.0, timeout_s=5.0, not_before_s=101.5, random=lambda: 1.0)
    assert pauses(backoff)[:2] == [1.5, 0.05]


def test_no_attempt_starts_after_the_deadline() -> None:
    backoff = Backoff(now_s=100.0, timeout_s=5.0, not_before_s=106.0, random=lambda: 1.0)
    assert pauses(backoff) == []
