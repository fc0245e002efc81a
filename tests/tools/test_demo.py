"""``make run``: a completion, the address, and an orderly end."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.walkthrough import MAKE_RUN

ROOT = Path(__file__).parents[2]


def demo(port: int, binary_port: int = 0, state_dir: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tools.demo",
            "--port",
            str(port),
            "--binary-port",
            str(binary_port),
            "--state-dir",
            state_dir,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("as_from_a_terminal", [True, False])
def test_a_completion_is_shown_and_a_signal_ends_it_with_status_0(
    as_from_a_terminal: bool, tmp_path: Path
) -> None:
    state_dir = str(tmp_path / "states") if as_from_a_terminal else ""
    with demo(port=0, state_dir=state_dir) as process:
        assert process.stdout is not None
        lines = list[str]()
        while not lines or not lines[-1].startswith("serving at tcp://127.0.0.1:"):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        if as_from_a_terminal:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 0, rest
    at = next(i for i, line in enumerate(lines) if line.startswith("Once upon a time"))
    assert len("".join(lines[at:]).split()) > 30
    assert re.search(r"base_url=http://127.0.0.1:\d+/v1\n", rest)
    assert re.search(
        r"^serving at tcp://127.0.0.1:\d+ http://127.0.0.1:\d+ - Ctrl-C stops\.$", lines[-1]
    )
    assert bool(state_dir) == (f"States are kept in {state_dir}: " in rest)
    assert bool(state_dir) != ("States are in memory, and gone with the server." in rest)
    assert bool(state_dir) == (tmp_path / "states").is_dir()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize("which", ["port", "binary_port"])
def test_a_taken_port_is_named_and_the_status_is_not_0(which: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with demo(**({"port": 0, "binary_port": 0} | {which: port})) as process:
            output, _ = process.communicate()
    assert process.returncode != 0
    assert f"{port}: Address already in use" in output
    assert "make run PORT=" in output


@pytest.mark.parametrize("given", [[], ["STATES=elsewhere"], ["STATES="]])
def test_make_run_keeps_states_in_a_folder_that_git_ignores_unless_it_is_told_another(
    given: list[str],
) -> None:
    command = ["make", "--dry-run", "run", *given]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    _, _, value = given[0].partition("=") if given else ("", "", ".states")
    assert f"--state-dir '{value}'" in planned
    if not given:
        assert [
            line for line in (ROOT / ".gitignore").read_text().splitlines() if line == ".states/"
        ]
        assert ("--state-dir", value) == MAKE_RUN
