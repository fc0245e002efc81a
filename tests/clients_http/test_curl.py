"""``curl`` against a real server: what comes over the line, and how connections end."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import wait_until_idle
from tests.clients_http.conftest import ANSWER, MODEL, QUESTION, Door

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")

CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
}
HTTP_ERROR = 22


@dataclass(frozen=True, slots=True)
class Curl:
    """Runs curl on a path of the server, with the key."""

    url: str
    config: Path

    def command(self, path: str, *arguments: str) -> list[str]:
        """The command line."""
        base = ["curl", "-q", "-sS", "--noproxy", "*", "-K", str(self.config)]
        return [*base, *arguments, self.url + path]

    def __call__(self, path: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end."""
        command = self.command(path, *arguments)
        return subprocess.run(command, capture_output=True, timeout=300, check=False)


@pytest.fixture
def curl(door: Door, key: str, tmp_path: Path) -> Curl:
    config = tmp_path / "curlrc"
    config.write_text(f'header = "Authorization: Bearer {key}"\n')
    return Curl(door.url, config)


def posted(body: object) -> tuple[str, ...]:
    return ("-H", "Content-Type: application/json", "--data-binary", json.dumps(body))


def events(output: bytes) -> list[bytes]:
    """The data of each event of a stream, which is nothing but events."""
    *blocks, rest = output.split(b"\n\n")
    assert rest == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [block.removeprefix(b"data: ") for block in blocks]


def test_an_answer_is_one_json_object(curl: Curl) -> None:
    result = curl("/v1/chat/completions", *posted(CHAT), "--fail")
    assert (result.returncode, result.stderr) == (0, b"")
    assert json.loads(result.stdout)["choices"][0]["message"]["content"] == ANSWER


def test_a_stream_is_events_up_to_done(curl: Curl) -> None:
    result = curl("/v1/chat/completions", *posted(CHAT | {"stream": True}), "-N", "--fail")
    assert result.returncode == 0
    *chunks, done = events(result.stdout)
    assert done == b"[DONE]"
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER


def test_the_headers_of_a_stream_keep_proxies_from_holding_it_back(curl: Curl) -> None:
    body = CHAT | {"stream": True, "max_tokens": 1}
    result = curl("/v1/chat/completions", *posted(body), "-N", "-D", "-", "-o", "/dev/null")
    status, *lines = result.stdout.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    assert status.startswith("http/1.1 200")
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"


def test_a_connection_is_kept_for_the_next_request(curl: Curl, door: Door) -> None:
    body = posted(CHAT | {"max_tokens": 1})
    result = curl(
        *("/v1/chat/completions", *body, "-o", "/dev/null", "-w", "%{num_connects}\n"),
        *("-o", "/dev/null", f"{door.url}/v1/chat/completions"),
    )
    assert result.stdout == b"1\n0\n"


def test_a_client_that_goes_away_frees_its_slot(curl: Curl, door: Door) -> None:
    body = CHAT | {"stream": True, "max_tokens": 1_000_000, "ignore_eos": True}
    command = curl.command("/v1/chat/completions", *posted(body), "-N")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"data: ")
        process.kill()
    wait_until_idle(door.server)


@pytest.mark.parametrize(
    "body", ["", "{", "null", "[]", '"x"', "{}", '{"model": 5}', "\udcff", "[" * 100_000]
)
def test_a_body_that_is_no_request_is_a_bad_request(curl: Curl, body: str, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(body.encode(errors="surrogateescape"))
    result = curl("/v1/chat/completions", "--data-binary", f"@{file}", "-w", "\n%{http_code}")
    error, status = result.stdout.rsplit(b"\n", 1)
    assert status == b"400"
    assert json.loads(error)["error"]["type"] == "invalid_request_error"


def test_an_error_is_curls_error_with_fail(curl: Curl) -> None:
    for body in (CHAT | {"temperature": -1}, CHAT | {"model": "other", "stream": True}):
        assert curl("/v1/chat/completions", *posted(body), "--fail").returncode == HTTP_ERROR


def test_without_a_key_health_alone_is_open(door: Door) -> None:
    def status(path: str) -> str:
        command = ["curl", "-q", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}"]
        done = subprocess.run([*command, door.url + path], capture_output=True, check=True)
        return done.stdout.decode()

    assert [status(path) for path in ("/health", "/ready")] == ["200", "200"]
    assert [status(path) for path in ("/v1/models", "/metrics", "/none")] == ["401"] * 3


def test_http_1_0_gets_a_whole_answer_and_the_end_of_the_connection(curl: Curl) -> None:
    result = curl("/v1/chat/completions", "--http1.0", *posted(CHAT), "-i")
    head, body = result.stdout.split(b"\r\n\r\n", 1)
    assert result.returncode == 0
    assert head.split(b"\r\n")[0].endswith(b"200 OK")
    assert b"chunked" not in head.lower()
    assert json.loads(body)["choices"][0]["message"]["content"] == ANSWER


def test_http_1_0_gets_a_stream_without_chunks(curl: Curl) -> None:
    body = CHAT | {"stream": True}
    result = curl("/v1/chat/completions", "--http1.0", *posted(body), "-N", "-i")
    head, stream = result.stdout.split(b"\r\n\r\n", 1)
    assert result.returncode == 0
    assert b"chunked" not in head.lower()
    assert events(stream)[-1] == b"[DONE]"


def test_a_body_that_waits_for_100_continue_is_asked_for(curl: Curl) -> None:
    # Longer than the server waits for a body would be, if it did not answer.
    waits = ("-H", "Expect: 100-continue", "--expect100-timeout", "600")
    result = curl("/v1/chat/completions", *posted(CHAT), *waits, "-i", "--max-time", "120")
    assert result.returncode == 0
    assert result.stdout.startswith(b"HTTP/1.1 100")
    assert json.loads(result.stdout.rsplit(b"\r\n\r\n", 1)[1])["object"] == "chat.completion"


def test_a_body_that_is_too_large_is_refused(curl: Curl, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(json.dumps(CHAT | {"x": "x" * 5_000_000}).encode())
    result = curl("/v1/chat/completions", "--data-binary", f"@{file}", "-w", "\n%{http_code}")
    error, status = result.stdout.rsplit(b"\n", 1)
    assert status == b"413"
    assert json.loads(error)["error"]["code"] == "request_too_large"


def test_a_compressed_body_is_refused(curl: Curl) -> None:
    compressed = ("-H", "Content-Encoding: gzip", "-w", "\n%{http_code}")
    result = curl("/v1/chat/completions", *posted(CHAT), *compressed)
    assert result.stdout.endswith(b"\n415")


def test_text_of_all_planes_goes_in_and_out_whole(curl: Curl) -> None:
    prompt = "한국어 🙂 e\u0301 \u0000 \U0010ffff"
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "echo": True}
    result = curl("/v1/completions", *posted(body))
    assert json.loads(result.stdout)["choices"][0]["text"].startswith(prompt)
