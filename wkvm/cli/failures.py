"""Which exceptions end a command with one line on standard error, and with which status."""

import logging
import sys

from wkvm_client.errors import ClientError, ConnectFailedError, PlaintextKeyError

from wkvm.cli.status import EXIT_FAILURE, EXIT_USAGE
from wkvm.cli.terminal import harmless
from wkvm.core.errors import ConfigError, MissingExtraError, ModelNotFoundError, WkvmError
from wkvm.gateway.errors import SettingError, TextError, TokenizerNotFoundError
from wkvm.server.log import COMMAND, start_log

USAGE_FAILURES = (
    ConfigError,
    SettingError,
    MissingExtraError,
    ModelNotFoundError,
    TokenizerNotFoundError,
    PlaintextKeyError,
)
"""What was asked for cannot be had here."""

FAILURES = (WkvmError, TextError, ClientError)
"""Everything else that is raised on purpose."""


def status_of(error: Exception) -> int | None:
    """The exit status for an exception; None for a bug, which shows its traceback."""
    if isinstance(error, USAGE_FAILURES):
        return EXIT_USAGE
    return EXIT_FAILURE if isinstance(error, FAILURES) else None


def say_failure(command: str, message: str, style: str) -> None:
    """Say in one line on standard error why a command ends.

    Args:
        style: of the log: ``json`` makes it a line of that.
    """
    if style == "json":
        start_log("error", "json", command)  # it may have failed before it had a log
        logging.getLogger(COMMAND).error("%s", message)
    else:
        print(harmless(f"wkvm {command}: {message}", sys.stderr), file=sys.stderr)


def remedy(error: Exception) -> str:
    """What to do, to be said after an exception's own words; often there is nothing to add."""
    if isinstance(error, ConnectFailedError):
        return "; `wkvm serve` starts a server, --binary-port and --binary-uds say where"
    return ""
