"""``wkvm chat``: a conversation in the terminal, or with piped input.

What a turn sends, and what is kept of it, is the affair of ``wkvm.cli.courses``.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wkvm_client.errors import ClientError

from wkvm.cli.courses import ChatError, Course, course_of
from wkvm.cli.flags import SAMPLING_FLAGS
from wkvm.cli.place import note, open_setting, sampling_options
from wkvm.cli.terminal import harmless
from wkvm.core.errors import ConfigError, InvalidParameterError
from wkvm.core.sampling import SamplingParams
from wkvm.gateway.text import TextError

MAX_SEED = 2**64
DEFAULTS = dataclasses.asdict(SamplingParams())


def run(args: argparse.Namespace) -> int:
    """Chat until the input ends or ``/quit``.

    Raises:
        WkvmError, TextError, ClientError: there is nothing to chat with.
    """
    with open_setting(args) as setting:
        options = sampling_options(args, SAMPLING_FLAGS, setting.suggested)
        course = course_of(setting, args.session, args.state)
        if args.system is not None and not course.takes_system:
            raise ConfigError("system", f"session {args.session} has begun")
        chat = Chat(course, options, system=args.system)
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            # Line editing and history, where Python has them.
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")
            greeting = f"{setting.server.model} {setting.backend.where}. /help lists the commands."
            print(harmless(greeting, sys.stdout))
        for line in _lines("> " if is_terminal else ""):
            if not chat.take(line):
                break
    return 0


def _lines(prompt: str) -> Iterator[str]:
    """Lines of standard input until it ends. Ctrl-C drops the line that is being written."""
    while True:
        try:
            yield input(prompt)
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:
            print()
            note("Ctrl-D or /quit ends the chat")


class Chat:
    """A conversation and its settings."""

    def __init__(self, course: Course, options: dict[str, Any], *, system: str | None) -> None:
        self._course = course
        self._options = options
        self._system = system
        self._messages = list[dict[str, str]]()
        self._n_answers = 0

    def take(self, line: str) -> bool:
        """Take a line of the user: a command if it begins with a slash, else a message.

        Returns:
            Whether the chat goes on.
        """
        try:
            if line.startswith("/"):
                return self._command(line)
            if line.strip():
                self._say(line)
        except (ChatError, TextError, ClientError) as error:
            note(str(error))
        return True

    def _say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        try:
            self._answer()
        except (ChatError, TextError, ClientError):
            # The message was not answered: it must not be sent along with the next one.
            self._messages.pop()
            raise

    def _answer(self) -> None:
        """Get and print an answer to the last message. What Ctrl-C cuts off is kept."""
        shown = list[str]()

        def put(text: str) -> None:
            # Templates end in "Assistant:", so answers begin with a space.
            text = text if shown else text.lstrip()
            if text:
                shown.append(text)
                print(harmless(text, sys.stdout), end="", flush=True)

        try:
            why = self._course.answer(self._history(), self._options_now(), put)
        finally:
            print()
        if why is not None:
            note(why)
        self._n_answers += 1
        self._messages.append({"role": "assistant", "content": "".join(shown)})

    def _history(self) -> list[dict[str, str]]:
        head = [] if self._system is None else [{"role": "system", "content": self._system}]
        return head + self._messages

    def _options_now(self) -> dict[str, Any]:
        """The options of the next answer. A seed counts on, so that /retry gives another one."""
        seed = self._options.get("seed")
        if seed is None:
            return self._options
        return self._options | {"seed": (seed + self._n_answers) % MAX_SEED}

    # --- commands -------------------------------------------------------------------------

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            raise ChatError(f"there is no command {name}; /help lists them")
        if name == "/quit":
            return False
        command.action(self, rest.strip())
        return True

    def help(self, rest: str) -> None:
        """List the commands."""
        for name, command in COMMANDS.items():
            print(f"{name + ' ' + command.argument:<20} {command.text}")

    def set_system(self, rest: str) -> None:
        """Set the system message."""
        if not self._course.takes_system:
            raise ChatError("a session that has begun keeps its system message")
        self._system = rest or None
        note("the system message is set" if rest else "there is no system message now")

    def reset(self, rest: str) -> None:
        """Forget the conversation."""
        if self._course.is_kept:
            raise ChatError("a session is kept: /undo takes turns back, wkvm states delete ends it")
        self._messages.clear()
        note("the conversation is forgotten")

    def retry(self, rest: str) -> None:
        """Answer the last message again."""
        if not self._messages:
            raise ChatError("there is nothing to answer yet")
        if self._course.is_kept:
            text = self._messages[-2]["content"]
            self._take_back()
            self._say(text)
            return
        last = self._messages.pop()
        try:
            self._answer()
        except (ChatError, TextError, ClientError):
            self._messages.append(last)
            raise

    def undo(self, rest: str) -> None:
        """Forget the last message and its answer."""
        if not self._messages:
            raise ChatError("there is nothing to undo")
        self._take_back()
        note(f"forgotten; {_n_messages(self._messages)} left")

    def _take_back(self) -> None:
        self._course.back()
        del self._messages[-2:]

    def set_option(self, field: str, read: Callable[[str], Any], rest: str) -> None:
        """Set a sampling parameter, or say what it is."""
        if not rest:
            value = self._options.get(field, DEFAULTS[field])
            print(f"{field}: {'not set' if value is None else value}")
            return
        try:
            value = read(rest)
        except ValueError:
            raise ChatError(f"{rest!r} is no value for {field}") from None
        options = self._options | {field: value}
        try:
            SamplingParams(**{name: options[name] for name in DEFAULTS if name in options})
        except InvalidParameterError as error:
            raise ChatError(str(error)) from error
        if field == "seed":
            self._n_answers = 0
        self._options = options
        note(f"{field} is now {value}")

    def save(self, rest: str) -> None:
        """Write the conversation to a file."""
        if not rest:
            raise ChatError("save to which file?")
        history = self._history()
        content = json.dumps({"messages": history}, ensure_ascii=False, indent=1)
        try:
            Path(rest).expanduser().write_text(content + "\n", encoding="utf-8")
        except OSError as error:
            raise ChatError(f"{rest}: {error.strerror}") from error
        note(f"{_n_messages(history)} written to {rest}")


def _n_messages(messages: list[dict[str, str]]) -> str:
    return f"{len(messages)} message{'s' if len(messages) != 1 else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A slash command: its argument as help shows it, what it does, and what does it."""

    argument: str
    text: str
    action: Callable[[Chat, str], None]


def _option(field: str, read: Callable[[str], Any]) -> Callable[[Chat, str], None]:
    return lambda chat, rest: chat.set_option(field, read, rest)


COMMANDS = {
    "/help": Command("", "list the commands", Chat.help),
    "/system": Command(
        "[TEXT]", "set the system message; without text, remove it", Chat.set_system
    ),
    "/reset": Command("", "forget the conversation, but not the system message", Chat.reset),
    "/retry": Command("", "answer the last message again", Chat.retry),
    "/undo": Command("", "forget the last message and its answer", Chat.undo),
    "/temperature": Command("[X]", "set or show the temperature", _option("temperature", float)),
    "/top_p": Command("[X]", "set or show top_p", _option("top_p", float)),
    "/top_k": Command("[N]", "set or show top_k", _option("top_k", int)),
    "/max_tokens": Command("[N]", "set or show the limit of an answer", _option("max_tokens", int)),
    "/seed": Command("[N]", "set or show the seed", _option("seed", int)),
    "/save": Command("FILE", "write the conversation to a file, as JSON", Chat.save),
    "/quit": Command("", "end the chat, as Ctrl-D does", lambda chat, rest: None),
}
