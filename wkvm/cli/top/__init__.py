"""``wkvm top``: the states of a server and its gauges, in a terminal. Needs the extra ``top``."""

import argparse
import os
from functools import partial

from wkvm_client import aio

from wkvm.cli.place import key_explained
from wkvm.core.config import API_KEY_VARIABLE
from wkvm.core.errors import ConfigError, MissingExtraError


def run(args: argparse.Namespace) -> int:
    """Show a server until the user leaves.

    Returns:
        0.

    Raises:
        MissingExtraError: the extra is not installed.
        ConfigError: a flag has a value that it cannot have.
        ClientError: nobody answers there, or the key is none of the server's.
    """
    if not 0.1 <= args.interval_s <= 60:
        raise ConfigError("interval-s", "0.1 to 60")
    try:
        from wkvm.cli.top.app import TopApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("textual", "rich"):
            raise
        raise MissingExtraError("top", "textual") from None
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE)
    app = TopApp(
        partial(aio.connect, args.connect, api_key=api_key),
        address=args.connect,
        prefix=args.prefix,
        interval_s=args.interval_s,
    )
    with key_explained(args.connect, api_key):
        app.run()
        if app.fatal is not None:
            raise app.fatal
    return 0
