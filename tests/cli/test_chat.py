"""Chats with piped input."""

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from wkvm.assembly.models import BUNDLED
from wkvm.cli import main
from wkvm.gateway.text import ChatTemplate, load_chat_template

Chat = Callable[..., str]


@pytest.fixture
def chat(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """Send lines, return what was printed. Greedy, so that answers can be told apart."""

    def send(*lines: str, arguments: tuple[str, ...] = ("--temperature", "0")) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["chat", "--connect", address, "--max-tokens", "40", *arguments]) == 0
        return capsys.readouterr().out

    return send


def saved(path: Path) -> list[tuple[str, str]]:
    """A saved conversation."""
    return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]


def test_a_message_gets_an_answer_that_ends_with_the_models_turn(chat: Chat) -> None:
    answer = chat("What is the sun?")
    assert "star" in answer
    assert answer == answer.strip() + "\n"
    assert "<|end|>" not in answer
    assert "User:" not in answer


def test_the_conversation_is_sent_along(chat: Chat, tmp_path: Path) -> None:
    answers = chat("Hello!", "What is the sun?", f"/save {tmp_path}/c.json").splitlines()
    roles_and_texts = saved(tmp_path / "c.json")
    assert roles_and_texts == [
        ("user", "Hello!"),
        ("assistant", answers[0]),
        ("user", "What is the sun?"),
        ("assistant", answers[1]),
    ]


def test_system_and_reset(chat: Chat, tmp_path: Path) -> None:
    chat("Hello!", "/system Be kind.", "/reset", f"/save {tmp_path}/c.json")
    assert saved(tmp_path / "c.json") == [("system", "Be kind.")]
    chat("/system", f"/save {tmp_path}/c.json", arguments=("--system", "x"))
    assert saved(tmp_path / "c.json") == []


def test_undo_forgets_the_last_turn(chat: Chat, tmp_path: Path) -> None:
    chat("Hello!", "What is the sun?", "/undo", f"/save {tmp_path}/c.json")
    assert [text for role, text in saved(tmp_path / "c.json") if role == "user"] == ["Hello!"]


def test_retry_replaces_the_answer_by_another_one(chat: Chat, tmp_path: Path) -> None:
    answers = chat(
        "Tell me a story.", "/retry", f"/save {tmp_path}/c.json", arguments=("--seed", "1")
    ).splitlines()
    assert answers[0] != answers[1]
    assert saved(tmp_path / "c.json") == [("user", "Tell me a story."), ("assistant", answers[1])]


def test_a_seed_repeats_the_chat(chat: Chat) -> None:
    lines = ("Tell me a story.", "And then?")
    assert chat(*lines, arguments=("--seed", "1")) == chat("/seed 1", *lines, arguments=())


def test_sampling_parameters_are_the_models_until_set(chat: Chat) -> None:
    shown = chat(
        "/temperature",
        "/top_p",
        "/top_k",
        "/temperature 0.5",
        "/temperature",
        "/seed",
        arguments=(),
    )
    assert shown.splitlines() == [
        "temperature: 0.8",
        "top_p: 0.9",
        "top_k: 0",
        "temperature: 0.5",
        "seed: not set",
    ]


def test_set_parameters_are_used(chat: Chat) -> None:
    long, short = chat("Tell me a story.", "/max_tokens 2", "/retry").splitlines()
    assert len(short.split()) <= 2 < len(long.split())
    assert long.startswith(short)


def test_commands_say_what_they_have_done_beside_the_answers(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (
        "Hello!",
        "/system Be kind.",
        f"/save {tmp_path}/c",
        "/undo",
        "/seed 7",
        "/reset",
        "/system",
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert main(["chat", "--connect", address, "--max-tokens", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert captured.err.splitlines() == [
        "wkvm: the system message is set",
        f"wkvm: 3 messages written to {tmp_path}/c",
        "wkvm: forgotten; 0 messages left",
        "wkvm: seed is now 7",
        "wkvm: the conversation is forgotten",
        "wkvm: there is no system message now",
    ]


def test_quit_ends_the_chat(chat: Chat) -> None:
    assert chat("/quit", "Hello!") == ""


def test_help_lists_the_commands(chat: Chat) -> None:
    assert "/retry" in chat("/help")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/dance", "there is no command /dance"),
        ("/temperature hot", "'hot' is no value for temperature"),
        ("/temperature nan", "temperature: nan is not a finite number"),
        ("/top_p 7", "top_p: 7.0 is not in (0, 1]"),
        ("/save", "save to which file?"),
        ("/save /no/such/folder/file", "No such file"),
        ("/retry", "there is nothing to answer yet"),
        ("/undo", "there is nothing to undo"),
    ],
)
def test_a_wrong_command_says_so_and_the_chat_goes_on(
    line: str,
    message: str,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n/help\n"))
    assert main(["chat", "--connect", address]) == 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert "/retry" in captured.out


def test_a_refused_message_is_forgotten_and_the_chat_goes_on(chat: Chat, tmp_path: Path) -> None:
    too_long = "word " * 300_000
    chat(too_long, "Hi!", f"/save {tmp_path}/c.json")
    assert [text for role, text in saved(tmp_path / "c.json") if role == "user"] == ["Hi!"]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_answer_and_keeps_what_there_is_of_it(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = f"Tell me a story.\n/save {tmp_path}/1\n/reset\nWhat is the sun?\n/save {tmp_path}/2\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    written = list[str]()

    def write_and_interrupt(text: str = "", **options: object) -> None:
        written.append(text)
        if len(written) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("wkvm.cli.chat.print", write_and_interrupt, raising=False)
    assert main(["chat", "--connect", address, "--temperature", "0"]) == 0
    assert capsys.readouterr().err.startswith("wkvm: cancelled\n")
    assert saved(tmp_path / "1")[-1] == ("assistant", written[0])
    assert "star" in saved(tmp_path / "2")[-1][1]


def test_a_templates_stop_ends_an_answer_but_not_before_min_tokens(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = load_chat_template(BUNDLED)
    stopping = ChatTemplate(template.source, variables=template.variables, stops=("star",))
    monkeypatch.setattr("wkvm.cli.place.load_chat_template", lambda path: stopping)
    assert "star" not in chat("What is the sun?")
    arguments = ("--temperature", "0", "--min-tokens", "40")
    assert "star" in chat("What is the sun?", arguments=arguments)
