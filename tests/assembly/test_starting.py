"""While a model is loaded, the HTTP door says that it will be there."""

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from wkvm.assembly import starting
from wkvm.assembly.starting import MAX_HEAD_BYTES, told_to_start
from wkvm.core.errors import ConfigError
from wkvm.gateway import page_routes
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.pages import INDEX, Pages


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, object] | None]:
    url = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, method=method, headers={"Authorization": "Bearer x"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read()
        again = error.headers["Retry-After"]
        status = status if again == "5" else 0
    return status, json.loads(body) if body else None


def test_it_is_alive_and_not_ready_and_nothing_else_is_served() -> None:
    port = free_port()
    with told_to_start(GatewayConfig(port=port), has_keys=False):
        assert get(port, "/health") == (200, {"status": "ok"})
        assert get(port, "/ready") == (503, {"status": "not ready", "reason": "starting"})
        assert get(port, "/ready", "HEAD") == (503, None)
        status, body = get(port, "/v1/models")
        assert status == 503
        assert body is not None
        assert body["error"]["code"] == "starting"  # type: ignore[index]
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(port, "/health")


def test_the_console_is_there_at_once_with_its_policy() -> None:
    """Its page tells that the server is starting, and goes on by itself."""
    port, pages = free_port(), Pages()
    index = pages.get(INDEX)
    if index is None:
        pytest.skip("there is no console in this checkout")
    with told_to_start(GatewayConfig(port=port), has_keys=True):
        for path in ("/", "/?x"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                assert answer.read() == index.body
                assert answer.headers["Content-Security-Policy"] == page_routes.POLICY
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                assert answer.headers["Cache-Control"] == "no-cache"
        for path, method in (("/assets/none.js", "GET"), ("/manifest.json", "GET"), ("/", "POST")):
            assert get(port, path, method)[0] == 503


def test_the_unix_socket_is_answered_at_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "h"
    config = GatewayConfig(port=None, uds=str(path))
    with told_to_start(config, has_keys=False), socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))
        one.settimeout(60)
        one.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 503 ")
    assert not path.exists()


@pytest.mark.parametrize("config", [None, GatewayConfig(port=0)])
def test_nobody_answers_where_there_is_no_port_yet(config: GatewayConfig | None) -> None:
    with told_to_start(config, has_keys=False):
        pass


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"port: {port}"),
            told_to_start(GatewayConfig(port=port), has_keys=False),
        ):
            pytest.fail("begun")


def test_what_is_no_request_gets_no_answer_and_disturbs_nobody() -> None:
    port = free_port()
    with told_to_start(GatewayConfig(port=port), has_keys=False):
        for data in (b"", b"\r\n", b"x" * (2 * MAX_HEAD_BYTES), b"GET / HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                one.sendall(data)
                one.shutdown(socket.SHUT_WR)
                try:
                    assert one.recv(100) == b""
                except ConnectionResetError:
                    continue
        assert get(port, "/health")[0] == 200


def test_further_connections_than_it_takes_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "MAX_CONNECTIONS", 2)
    port = free_port()
    with told_to_start(GatewayConfig(port=port), has_keys=False):
        waiting = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2)]
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
            assert one.recv(100) == b""
        for held in waiting:
            held.close()
