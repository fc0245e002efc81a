"""Chats that are states of the server."""

import io
import json
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from wkvm.cli import main

SUN, STORY = "What is the sun?", "Tell me a story."


NUMBERS = count()


class Shell:
    """Chats with piped input, greedy and short, and asks for states.

    Attributes:
        a, b: names that no session has had yet: versions of one name are never counted anew.
        notes: what the last chat said beside its answers.
    """

    def __init__(
        self, address: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.address = address
        self.a, self.b = (f"chat-{next(NUMBERS)}" for _ in range(2))
        self.notes = list[str]()
        self._patch = patch
        self._capsys = capsys

    def chat(self, *lines: str, arguments: tuple[str, ...] = (), status: int = 0) -> list[str]:
        """The lines of answers."""
        self._patch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        how = ("--temperature", "0", "--max-tokens", "40", "--connect", self.address)
        assert main(["chat", *how, *arguments]) == status
        captured = self._capsys.readouterr()
        self.notes = captured.err.splitlines()
        return captured.out.splitlines()

    def state(self, action: str, *arguments: str) -> Any:
        assert main(["states", action, "--connect", self.address, *arguments, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture
def shell(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    shell = Shell(address, monkeypatch, capsys)
    yield shell
    for one in shell.state("list", "chat-")["states"]:
        shell.state("delete", one["name"])


def test_a_session_answers_as_a_chat_that_is_sent_whole_and_goes_on_in_the_next(
    shell: Shell,
) -> None:
    whole = shell.chat("Hello!", SUN, STORY)
    first = shell.chat("Hello!", SUN, arguments=("--session", shell.a))
    assert shell.notes == [f"wkvm: session {shell.a} is new"]
    assert shell.state("get", shell.a)["version"] == 2
    second = shell.chat(STORY, arguments=("--session", shell.a))
    assert shell.notes[0].startswith(f"wkvm: session {shell.a} goes on at {shell.a}@2, ")
    assert first + second == whole


def test_a_turn_of_a_session_ends_where_its_text_does(shell: Shell) -> None:
    shell.chat(SUN, arguments=("--session", shell.a))
    n_before = shell.state("get", shell.a)["n_computed"]
    answer = shell.chat(SUN, "/undo", SUN, arguments=("--session", shell.b))
    assert answer[0] == answer[1]
    assert shell.state("get", shell.b)["n_computed"] == n_before


def test_undo_takes_a_turn_back_in_the_session(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    lines = ("Hello!", SUN, "/undo", f"/save {path}")
    shell.chat(*lines, arguments=("--session", shell.a))
    said, _ = json.loads(path.read_text())["messages"]
    assert said["content"] == "Hello!"
    back = shell.state("get", shell.a)
    assert (back["version"], back["operation"]) == (3, "rollback")
    assert shell.chat(SUN, arguments=("--session", shell.a)) == shell.chat("Hello!", SUN)[1:]


def test_undo_of_the_first_turn_leaves_no_session(shell: Shell) -> None:
    shell.chat("Hello!", "/undo", "/system Be kind.", arguments=("--session", shell.a))
    assert "wkvm: the system message is set" in shell.notes
    assert shell.state("list", shell.a)["states"] == []


def test_what_was_said_before_this_chat_is_not_undone_by_it(shell: Shell) -> None:
    shell.chat("Hello!", arguments=("--session", shell.a))
    shell.chat("/undo", arguments=("--session", shell.a))
    assert "wkvm: there is nothing to undo" in shell.notes
    assert shell.state("get", shell.a)["version"] == 1


def test_retry_answers_again_from_where_it_was(shell: Shell) -> None:
    seeded = ("--session", shell.a, "--temperature", "1", "--seed", "1")
    one, other, after = shell.chat(STORY, "/retry", SUN, arguments=seeded)
    assert one != other
    assert after
    log = shell.state("log", shell.a)["entries"]
    assert [one["provenance"]["operation"] for one in log] == ["generate"] * 2


@pytest.mark.parametrize("line", ["/reset", "/system Be kind."])
def test_what_a_session_does_not_forget_is_said(shell: Shell, line: str) -> None:
    shell.chat("Hello!", line, arguments=("--session", shell.a))
    assert "session" in shell.notes[-1]
    assert shell.state("get", shell.a)["version"] == 1


def test_a_chat_begins_at_a_state_which_stays_as_it_is(shell: Shell) -> None:
    whole = shell.chat("Hello!", SUN)
    shell.chat("Hello!", arguments=("--session", shell.a))
    before = shell.state("get", shell.a)
    assert shell.chat(SUN, "/reset", SUN, arguments=("--state", shell.a)) == [whole[1]] * 2
    both = ("--session", shell.b, "--state", f"{shell.a}@1")
    assert shell.chat(SUN, arguments=both) == [whole[1]]
    assert shell.state("get", shell.a) == before
    assert shell.state("get", shell.b)["parents"] == [f"{shell.a}@1"]


def test_what_cannot_be_begun_is_named(shell: Shell) -> None:
    shell.chat(arguments=("--state", "chat-none"), status=2)
    assert shell.notes == ["wkvm chat: state: there is no chat-none"]
    shell.chat("Hello!", arguments=("--session", shell.a))
    shell.chat(arguments=("--session", shell.a, "--state", shell.a), status=2)
    assert "--state" in shell.notes[-1]
    shell.chat(arguments=("--session", shell.a, "--system", "x"), status=2)
    assert shell.notes[-1] == f"wkvm chat: system: session {shell.a} has begun"
    shell.chat(arguments=("--session", "../x"), status=1)


def test_sessions_are_with_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--local", "--session", "x"]) == 2
    assert "states are with a server" in capsys.readouterr().err


def test_a_message_that_is_refused_changes_no_session(shell: Shell) -> None:
    shell.chat("Hello!", arguments=("--session", shell.a))
    too_long = "word " * 300_000
    answers = shell.chat(too_long, SUN, arguments=("--session", shell.a))
    assert shell.state("get", shell.a)["version"] == 2
    assert answers[-1:] == shell.chat("Hello!", SUN)[1:]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_an_answer_and_the_session_has_what_there_is_of_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[str]()

    def write_and_interrupt(text: str = "", **options: object) -> None:
        written.append(text)
        if len(written) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("wkvm.cli.chat.print", write_and_interrupt, raising=False)
    shell.chat(STORY, arguments=("--session", shell.a, "--max-tokens", "100000"))
    assert "wkvm: cancelled" in shell.notes
    assert shell.state("get", shell.a)["version"] == 1
