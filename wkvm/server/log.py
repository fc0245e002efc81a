"""The log of a process, on standard error: lines for people, or a JSON object each.

A JSON line has always the same fields, and never an exception's message, which may hold what a
client sent: it has the exception's type, and where it came from.
"""

import contextlib
import faulthandler
import json
import logging
import re
import sys
import threading
import time
from types import TracebackType
from typing import Literal, TypeAlias

from wkvm.server.log_file import LogFile
from wkvm.server.stacks import causes_of, told_of

LogFormat: TypeAlias = Literal["text", "json"]
COMMAND = "wkvm.cli"
"""The logger of the line with which a command ends: the path that it names was an argument."""
_PATH = re.compile(r"(?<![\w.<])/[^\s:,;'\"()]+/?[^\s:,;'\"()]*")
"""Absolute paths. Messages have none on purpose, but what the system says may."""


class JsonFormatter(logging.Formatter):
    """One line for each record.

    The fields are ``time`` (UTC, RFC 3339), ``level``, ``logger``, ``process``, ``pid`` and
    ``message``; of an exception ``errors``: its type and stack, then those of its causes.

    Args:
        process: what this process is, such as ``serve``.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": record.process,
            "message": _message(record),
        }
        if record.exc_info is not None and record.exc_info[1] is not None:
            told["errors"] = [told_of(one) for one in causes_of(record.exc_info[1])]
        return json.dumps(told)


def start_log(level: str, style: LogFormat, process: str) -> None:
    """Write this process's log to standard error.

    Args:
        level: as ``logging`` has it, in any case.
        process: what it is: ``serve``, ``gateway``, or ``gateway-0`` for one of several.
    """
    formatter = JsonFormatter(process) if style == "json" else _text_formatter(process)
    _protect_standard_error(formatter)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # A signal that ends the process, such as SIGSEGV, or a supervisor's SIGABRT, shows where.
    with contextlib.suppress(OSError, ValueError):
        faulthandler.enable()
    if style == "json":
        _log_what_nobody_caught()


def _protect_standard_error(formatter: logging.Formatter) -> None:
    """Let nobody who writes to standard error be held up by it, or be told that it failed."""

    def lost(n: int) -> str:
        message = "%d lines of the log were lost: standard error did not take them"
        record = logging.LogRecord("wkvm.log", logging.WARNING, "", 0, message, (n,), None)
        return formatter.format(record) + "\n"

    try:
        is_own = sys.stderr.fileno() == sys.__stderr__.fileno()  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return
    if is_own:
        sys.stderr.flush()
        sys.stderr = LogFile(sys.stderr.fileno(), lost=lost)


def _text_formatter(process: str) -> logging.Formatter:
    # Of several processes that write to one file, each says which it is.
    _, _, number = process.partition("-")
    which = f"[{number}]" if number else ""
    return logging.Formatter(f"%(asctime)s %(levelname)s %(name)s{which}: %(message)s")


def _log_what_nobody_caught() -> None:
    """Have lines of the log where Python writes tracebacks with their messages by itself."""
    lost = logging.getLogger("wkvm.uncaught")

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            lost.critical("a thread ended by an exception", exc_info=args.exc_value)

    def of_object(args: "sys.UnraisableHookArgs") -> None:
        if args.exc_value is not None:
            lost.error("an exception could not be raised", exc_info=args.exc_value)

    def of_all(
        kind: type[BaseException], error: BaseException, found: TracebackType | None
    ) -> None:
        del kind, found
        lost.critical("the process ends by an exception", exc_info=error)

    sys.excepthook, threading.excepthook, sys.unraisablehook = of_all, of_thread, of_object


def _message(record: logging.LogRecord) -> str:
    """The message, in which exceptions are named by their types.

    What an exception says of itself may hold what a client sent; what the code says does not.
    """
    if not record.name.startswith("wkvm"):
        # Of asyncio, say: after the first words there may be the representation of anything.
        return re.split(r"[\n:(<%]", str(record.msg), maxsplit=1)[0].strip()
    arguments = record.args
    if isinstance(arguments, tuple):
        arguments = tuple(
            type(one).__name__ if isinstance(one, BaseException) else one for one in arguments
        )
        try:
            message = str(record.msg) % arguments if arguments else str(record.msg)
            return message if record.name == COMMAND else _PATH.sub("PATH", message)
        except (TypeError, ValueError):
            return str(record.msg)
    return str(record.msg)
