"""Pages that are walked through: their commands are run in order, and what they print is compared.

In a block ``console`` a line that begins with ``$ `` is a command, with the lines that follow as
long as a quote is open or a backslash is at the end; what comes then is its output. ``...`` stands
for anything in a line, and as a line of its own for any lines. ``^C`` ends the server that was
started last. A block ``python`` is a program; a block ``text`` right after it is what it prints.

Addresses are those of the defaults in a page, and of free ports when it is run.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import wkvm_client

BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = {"http": "127.0.0.1:8000", "tcp": "127.0.0.1:8001"}
"""Where servers of a page are, by the kind of their addresses."""
CLONE = ".venv/bin/"
"""Where the command is in a clone: pages may say so."""
SERVER = re.compile(r"wkvm serve\b|make run\b")
MAKE_RUN = ("--state-dir", ".states")
"""What the Makefile gives a server."""
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Step:
    """One command or program of a page.

    Attributes:
        line: where it is in the page.
        kind: ``console`` or ``python``.
        what: the command, or the text of the program; ``^C`` for the end of a server.
        shown: what the page says that it prints; None where it says nothing of it.
    """

    line: int
    kind: str
    what: str
    shown: str | None


def steps(page: str) -> Iterator[Step]:
    """What there is to do in a page, in order."""
    blocks = [(m[1], m[2], page.count("\n", 0, m.start()) + 2, m) for m in BLOCK.finditer(page)]
    for at, (kind, text, line, found) in enumerate(blocks):
        if kind == "console":
            yield from _commands(text, line)
        elif kind == "python":
            shown = None
            if at + 1 < len(blocks):
                follower, output, _, other = blocks[at + 1]
                if follower == "text" and not page[found.end() : other.start()].strip():
                    shown = output
            yield Step(line, kind, text, shown)


def _commands(text: str, line: int) -> Iterator[Step]:
    rows = text.splitlines()
    at = 0
    while at < len(rows):
        start = at
        if rows[at] == "^C":
            at += 1
            yield Step(line + start, "console", "^C", None)
            continue
        assert rows[at].startswith("$ "), f"line {line + at} is no command: {rows[at]}"
        command = [rows[at].removeprefix("$ ")]
        while not _is_whole("\n".join(command)):
            at += 1
            command.append(rows[at])
        at += 1
        output = list[str]()
        while at < len(rows) and not rows[at].startswith("$ ") and rows[at] != "^C":
            output.append(rows[at])
            at += 1
        yield Step(line + start, "console", "\n".join(command), "\n".join(output))


def _is_whole(command: str) -> bool:
    """Whether a shell would run it, or ask for more."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


def matches(shown: str, printed: str) -> bool:
    """Whether an output is what a page shows."""
    pattern = ""
    for row in shown.strip("\n").splitlines():
        if row == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += r"[^\n]*?".join(map(re.escape, row.rstrip().split("..."))) + r"[ ]*\n"
    return (
        re.fullmatch(pattern, printed.strip("\n") + "\n" if printed.strip("\n") else "") is not None
    )


@dataclass
class Walk(AbstractContextManager["Walk"]):
    """A folder, in which steps are made, and the servers that they start."""

    folder: Path
    _servers: list[subprocess.Popen[str]] = field(default_factory=list)
    _here: dict[str, str] = field(default_factory=dict)
    _command: str = ""
    _ready: str = ""

    def make(self, step: Step) -> str:
        """Carry a step out; what it printed, with the addresses of the page.

        The command of a server that runs already starts no other.

        Raises:
            AssertionError: a program failed, or a server did not start.
        """
        if step.what == "^C":
            self._end()
            return ""
        what = self.here(step.what).removeprefix(CLONE)
        if step.kind == "python":
            return self._told(self._run([sys.executable, "-c", what], step))
        if SERVER.match(what):
            return self._told(self._serve(what))
        if what.startswith("wkvm states ") and "--connect" not in what:
            what += f" --connect tcp://{self._here[PORTS['tcp']]}"
        return self._told(self._run(["bash", "-c", what], step))

    def here(self, words: str) -> str:
        """What a page says, with the addresses of the servers that run."""
        for there, here in self._here.items():
            words = words.replace(there, here)
        return words

    def forget(self) -> None:
        """Delete all states, so that the next page lists its own; their names are used up."""
        with wkvm_client.connect(f"tcp://{self._here[PORTS['tcp']]}") as client:
            while states := client.states.list().states:
                for state in states:
                    client.states.delete(state.name)

    def _run(self, command: list[str], step: Step) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._env(),
            timeout=TIMEOUT_S,
            check=False,
        )
        if step.kind == "python":
            assert done.returncode == 0, f"line {step.line}: {done.stderr}"
        return done.stdout

    def _serve(self, what: str) -> str:
        if self._servers and what == self._command:
            return self._ready
        flags = shlex.split(what)[2:] if what.startswith("wkvm serve") else MAKE_RUN
        command = [sys.executable, "-m", "wkvm", "serve", *flags]
        server = subprocess.Popen(
            [*command, "--port", "0", "--binary-port", "0", "--seed", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self._env(),
        )
        self._servers.append(server)
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("ready "), ready
        for address in ready.split()[1:]:
            kind, _, here = address.partition("://")
            self._here[PORTS[kind]] = here
        self._command, self._ready = what, ready
        return ready

    def _told(self, printed: str) -> str:
        for there, here in self._here.items():
            printed = printed.replace(here, there)
        return printed

    def _env(self) -> dict[str, str]:
        """One thread, the packages as this process sees them, and a command ``wkvm``."""
        programs = self.folder / ".bin"
        programs.mkdir(exist_ok=True)
        program = programs / "wkvm"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m wkvm "$@"\n')
        program.chmod(0o700)
        env = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        return {name: value for name, value in env.items() if name != "WKVM_API_KEY"}

    def _end(self) -> None:
        server = self._servers.pop()
        server.send_signal(signal.SIGINT)
        assert server.wait(TIMEOUT_S) == 0
        self._close(server)

    @staticmethod
    def _close(server: subprocess.Popen[str]) -> None:
        for stream in (server.stdout, server.stderr):
            assert stream is not None
            stream.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.kill()
            server.wait()
            self._close(server)
