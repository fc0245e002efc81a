"""What a model or a server writes does nothing to the terminal."""

import io
import re
from collections.abc import Iterator

import pytest

from wkvm.assembly.models import BUNDLED
from wkvm.cli import main
from wkvm.cli.terminal import harmless
from wkvm.gateway.text import StopText, load_tokenizer


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


EVERY_CONTROL = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))


def test_of_the_controls_only_newline_and_tab_reach_a_terminal() -> None:
    shown = harmless(EVERY_CONTROL, Terminal())
    assert re.sub(r"\\x[0-9a-f]{2}", "", shown) == "\t\n"
    assert harmless("\x1b[2J\x9b é\u00a0", Terminal()) == r"\x1b[2J\x9b" + " é\u00a0"


def test_a_file_gets_the_text_as_it_is() -> None:
    assert harmless(EVERY_CONTROL, io.StringIO()) == EVERY_CONTROL


@pytest.mark.parametrize(
    ("stdout", "text"), [(Terminal(), r"\x1b\x1b" + "\n"), (io.StringIO(), "\x1b\x1b\n")]
)
def test_complete_shows_controls_on_a_terminal_and_pipes_them_on(
    stdout: io.StringIO, text: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (escape,) = load_tokenizer(BUNDLED).encode("\x1b")
    allowed = ("--allowed-ids", str(escape), "--max-tokens", "2", "--ignore-eos")
    monkeypatch.setattr("sys.stdout", stdout)
    assert main(["complete", "x", "--connect", address, *allowed]) == 0
    assert stdout.getvalue() == text


def test_chat_shows_controls_on_a_terminal(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Terminal()
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello!\n"))
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr(
        "wkvm.gateway.text.TextStream.feed", lambda stream, ids: StopText("\x1b]0;x\x07")
    )
    assert main(["chat", "--connect", address, "--max-tokens", "1"]) == 0
    assert stdout.getvalue().startswith(r"\x1b]0;x\x07")


def test_a_failure_does_nothing_to_a_terminal(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    assert main(["complete", "x", "--connect", address, "--tokenizer", "/no\x1b[2J"]) == 2
    assert r"/no\x1b[2J" in stderr.getvalue()


def test_states_show_controls_that_a_server_tells(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = Terminal()
    monkeypatch.setattr("sys.stdout", stdout)

    def lines(_: object) -> Iterator[str]:
        yield "\x1b]0;x\x07"

    monkeypatch.setattr("wkvm.cli.states.output.rows", lines)
    assert main(["states", "list", "--connect", address]) == 0
    assert stdout.getvalue() == r"\x1b]0;x\x07" + "\n"
