"""Servers in processes of their own that start in some ten milliseconds, to be killed.

A nursery imports everything once, and forks a server whenever it is asked to. A server is a whole
one: sockets, loop, engine, store; only its model may be one of the tests'. No product can be
started like this.

As a program it reads one JSON object a line: ``{"start": {...}}`` or ``{"wait": pid}``.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What server to start.

    Attributes:
        uds: path of the binary protocol's socket.
        folder: of its store.
        model: ``hash`` or ``bundled``.
        n_words: of the hash model's record.
        has_guest: the hash model's states have pages.
        engine: settings of the engine that differ from the defaults.
    """

    uds: str
    folder: str
    model: str = "hash"
    n_words: int = 64
    has_guest: bool = False
    engine: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Started:
    """A server that is ready."""

    nursery: "Nursery"
    pid: int
    addresses: list[str]

    @property
    def address(self) -> str:
        """Of the binary protocol."""
        return next(one for one in self.addresses if one.startswith("unix://"))

    def kill(self) -> None:
        """SIGKILL; back when the process is gone."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.nursery.wait(self.pid) == signal.SIGKILL

    def end(self) -> int:
        """SIGTERM, and the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.nursery.wait(self.pid)


class ServerNotStartedError(Exception):
    """A server ended before it was ready; the message says with which exception."""


class Nursery:
    """The test's side of it. All servers that are left are killed at the end.

    Args:
        preload: a library that the servers are to have before all others.
    """

    def __init__(self, preload: str = "") -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **({"LD_PRELOAD": preload} if preload else {}),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.states.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self, ask: Ask) -> Started:
        """A server, ready.

        Raises:
            ServerNotStartedError: it could not be started.
        """
        Path(ask.uds).unlink(missing_ok=True)
        answer = self._ask({"start": asdict(ask)})
        if "failed" in answer:
            self.wait(answer["pid"])
            raise ServerNotStartedError(answer["failed"])
        return Started(self, answer["pid"], answer["ready"])

    def wait(self, pid: int) -> int:
        """How a server ended, once it has: an exit status, or the signal that killed it."""
        status = int(self._ask({"wait": pid})["ended"])
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the nursery is gone; see its standard error"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill what is left."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def serve(ask: Ask) -> None:
    """Serve until a signal comes. In a forked process."""
    from tests.states.server import run_server

    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # closed, its number would go to a socket
    run_server(ask, ready=lambda addresses: say(ready=addresses, pid=os.getpid()))


def main() -> None:
    import tests.states.server  # noqa: F401  imported once, for all that are forked

    libc = ctypes.CDLL(None)
    while line := sys.stdin.readline():
        match json.loads(line):
            case {"start": given}:
                if os.fork() == 0:
                    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                    status = 1
                    try:
                        serve(Ask(**given))
                        status = 0
                    except BaseException as error:
                        say(failed=f"{type(error).__name__}: {error}", pid=os.getpid())
                        raise
                    finally:
                        sys.stderr.flush()
                        os._exit(status)
            case {"wait": pid}:
                say(ended=os.waitpid(pid, 0)[1])
            case other:
                raise ValueError(f"no such thing to do: {other}")


if __name__ == "__main__":
    main()
