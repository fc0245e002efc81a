"""``wkvm gateway``: HTTP in front of a server of the binary protocol that runs elsewhere."""

import argparse
import os

from wkvm.assembly.http import apart, check_http, run_apart
from wkvm.assembly.models import find_model
from wkvm.cli.place import key_explained, tokenizer_of
from wkvm.cli.serving import announce, http_settings, http_texts, start_log
from wkvm.core.config import API_KEY_VARIABLE, ServerConfig
from wkvm.core.errors import ConfigError


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain.

    Prints one line once clients can connect: ``ready`` and the addresses.

    Raises:
        ConfigError, SettingError, TextError, ClientError: there will be no gateway.
    """
    start_log(args)
    config = http_settings(args)
    if config is None:
        raise ConfigError("port", "without TCP a unix socket is needed, --uds")
    # Its range is that of the server's setting.
    drain_timeout_s = ServerConfig(drain_timeout_s=args.drain_timeout_s).drain_timeout_s
    path = find_model(args.model)
    texts = http_texts(args, path, tokenizer_of(args.tokenizer, path))
    # Whether clients need keys is known once the engine was asked.
    check_http(config, has_keys=True)
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE)
    with key_explained(args.engine, api_key):
        door = apart(config, texts, args.engine, api_key)
        run_apart(door, drain_timeout_s=drain_timeout_s, ready=lambda: announce(door.addresses))
    return 0
