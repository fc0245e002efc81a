"""``wkvm gateway``: HTTP in front of a server of the binary protocol that runs elsewhere."""

import argparse
import os

from wkvm.assembly.http import HttpDoor, apart, check_http, run_apart
from wkvm.assembly.models import find_model
from wkvm.assembly.reach import at_address
from wkvm.assembly.workers import Workers, check_workers
from wkvm.cli.flags import DRAIN_FLAG, PROCESS_FLAGS, values_of
from wkvm.cli.place import key_explained, tokenizer_of
from wkvm.cli.serving import announce, http_settings, http_texts, start_log
from wkvm.core.config import API_KEY_VARIABLE, ServerConfig
from wkvm.core.errors import ConfigError
from wkvm.server.notify import Notifier


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
    # Their ranges are those of the server's settings.
    process = ServerConfig(**values_of(args, (DRAIN_FLAG, *PROCESS_FLAGS)))
    notifier = Notifier.of_environment()
    path = find_model(args.model)
    texts = http_texts(args, path, tokenizer_of(args.tokenizer, path))
    # Whether clients need keys is known once the engine was asked.
    check_http(config, has_keys=True)
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE)
    check_workers(args.gateway_workers)
    with key_explained(args.engine, api_key):
        if args.gateway_workers:
            door: HttpDoor | Workers = Workers(
                at_address(config, texts, args.engine, api_key),
                config,
                args.gateway_workers,
                model=path,
                texts=texts,
                tokenizer=args.tokenizer,
                process=process,
                log_level=args.log_level,
                log_format=args.log_format,
            )
        else:
            door = apart(config, texts, args.engine, api_key)
        run_apart(door, process, ready=lambda: announce(door.addresses), notifier=notifier)
    return 0
