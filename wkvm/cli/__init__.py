"""The command line: arguments to settings to a running server, a client, or a report.

The parser is built without any command's own imports, so that ``wkvm --help`` is fast
and works without torch.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from wkvm import __version__
from wkvm.cli.parser import parse
from wkvm.cli.status import EXIT_FAILURE, EXIT_INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        The exit status: 0, 1 for what went wrong, 2 for what cannot be asked for or needs
        something that is not installed, 130 after Ctrl-C.

    Raises:
        SystemExit: the arguments cannot be parsed (2), or help was asked for (0).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["bench"]:
        # Its arguments are not parsed here; its own parser does, --help included.
        from wkvm.cli import bench

        return bench.run(arguments[1:])
    args = parse(arguments)
    _fill_standard_streams()
    _tolerate_any_text()
    try:
        status = _run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone. Nothing is to be said to anybody, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except Exception as error:
        from wkvm.cli.failures import remedy, say_failure, status_of

        failure = status_of(error)
        if failure is None:
            raise
        style = getattr(args, "log_format", "text")
        say_failure(args.command, f"{error}{remedy(error)}", style)
        return failure


def _fill_standard_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed.

    Otherwise the first socket would become one: what libraries write to standard error would go
    to a client, and libuv ends the process when it is to close such a file.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # Python has no object for what was closed when it began.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115


def _tolerate_any_text() -> None:
    """Let input that is not UTF-8, and a terminal that cannot show a character, end nothing."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(args: argparse.Namespace) -> int:
    """Import what the command needs, and run it."""
    match args.command:
        case "serve":
            from wkvm.cli import serve

            return serve.run(args)
        case "gateway":
            from wkvm.cli import gateway

            return gateway.run(args)
        case "complete":
            from wkvm.cli import complete

            return complete.run(args)
        case "chat":
            from wkvm.cli import chat

            return chat.run(args)
        case "inspect":
            from wkvm.cli import inspect_model

            return inspect_model.run(args)
        case "states":
            from wkvm.cli import states

            return states.run(args)
        case "top":
            from wkvm.cli import top

            return top.run(args)
        case "store":
            from wkvm.cli import store

            return store.run(args)
        case _:
            print(f"wkvm {__version__}")
            return 0
