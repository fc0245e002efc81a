"""Start a server, show one completion from it, and keep serving. This is ``make run``.

States are kept in a folder, so that the next run finds them.

The server is a child process. Ctrl-C and SIGTERM end both; the exit status is the server's, which
is 0 after it has drained.
"""

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

PROMPT = "Once upon a time, there was a clever fox named Mia. Mia lived"


def wkvm(*arguments: str) -> list[str]:
    """The command line that runs ``wkvm`` in this environment."""
    return [sys.executable, "-m", "wkvm", *arguments]


def _typed(*arguments: str) -> str:
    """The same as somebody types it here, where the command is installed beside Python."""
    program = Path(sys.executable).with_name("wkvm")
    if not program.exists():
        return shlex.join(wkvm(*arguments))
    here = Path.cwd()
    shown = program.relative_to(here) if program.is_relative_to(here) else program
    return shlex.join([str(shown), *arguments])


def _said_of_states(folder: str) -> str:
    """How long what is kept under a name will last."""
    if not folder:
        return "States are in memory, and gone with the server."
    return f"States are kept in {folder}: the next run finds them, also after a kill -9."


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the value is the exit status."""
    parser = argparse.ArgumentParser(description="Serve a model and show one completion.")
    parser.add_argument("model", nargs="?", help="what to serve (default: the bundled model)")
    parser.add_argument("--port", default="8000", help="TCP port of HTTP (default: %(default)s)")
    parser.add_argument(
        "--binary-port",
        default="8001",
        help="TCP port of the binary protocol (default: %(default)s)",
    )
    parser.add_argument(
        "--state-dir", default="", help="where states are kept (default: in memory)"
    )
    options = parser.parse_args(argv)
    model = [options.model] if options.model else []

    ports = ["--port", options.port, "--binary-port", options.binary_port]
    kept = ["--state-dir", options.state_dir] if options.state_dir else []
    command = wkvm("serve", *model, *ports, *kept)
    print("starting: wkvm", *command[3:], flush=True)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end(signum: int, _frame: FrameType | None) -> None:
        # From a terminal Ctrl-C reaches the server as well; SIGTERM reaches this process alone.
        if signum == signal.SIGTERM:
            server.terminate()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)

    assert server.stdout is not None
    first_line = server.stdout.readline().split()
    if first_line[:1] == ["ready"]:
        addresses = first_line[1:]
        named = ["--model", options.model] if options.model else []
        show = wkvm("complete", PROMPT, "--connect", addresses[0], *named)
        print(
            f"ready. One completion, streamed:\n\n$ wkvm {shlex.join(show[3:])}\n{PROMPT}", end=""
        )
        sys.stdout.flush()
        subprocess.run(show, check=False)
        print("\nserving at", *addresses, "- Ctrl-C stops.")
        print(_said_of_states(options.state_dir))
        print(f"Open {addresses[1]} in a browser: chats that can be branched, and all states.")
        print("Or, in another terminal:")
        print(f"    {_typed('chat', '--connect', addresses[0], *named)}")
        print(f"    curl {addresses[1]}/v1/models")
        print(f"or OpenAI's client, with base_url={addresses[1]}/v1")
        print(f"or Anthropic's client, with base_url={addresses[1]}", flush=True)
    status = server.wait()
    if first_line[:1] != ["ready"]:
        print(
            "There is no server. Other ports: make run PORT=N BINARY_PORT=N;"
            " another folder of states: STATES=FOLDER",
            file=sys.stderr,
        )
    return status


if __name__ == "__main__":
    raise SystemExit(main())
