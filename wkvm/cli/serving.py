"""What ``serve`` and ``gateway`` have in common: settings of HTTP, the log, the line ``ready``."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from wkvm.assembly.texts import load_texts
from wkvm.cli.flags import values_of
from wkvm.cli.http_flags import HTTP_ADDRESS_FLAGS, HTTP_LIMIT_FLAGS, KEY_LIMIT_FLAGS
from wkvm.core.api_keys import ApiKey
from wkvm.core.errors import ConfigError
from wkvm.core.sampling import MAX_TOKENS
from wkvm.gateway.config import GatewayConfig, Limits
from wkvm.gateway.text import Tokenizer
from wkvm.gateway.texts import Texts
from wkvm.server.log import start_log as start


def http_settings(args: argparse.Namespace, keys: Sequence[ApiKey] = ()) -> GatewayConfig | None:
    """The settings of HTTP; None if it is not to be served.

    Args:
        keys: those of the engine, where they are known here.

    Raises:
        SettingError: one is not allowed.
    """
    values = values_of(args, HTTP_ADDRESS_FLAGS + HTTP_LIMIT_FLAGS)
    config = GatewayConfig(
        host=args.host,
        limits=Limits(**values_of(args, KEY_LIMIT_FLAGS)),
        key_limits={one.digest.hex(): Limits(**dict(one.limits)) for one in keys if one.limits},
        **values,
    )
    return None if config.port is None and config.uds is None else config


def http_texts(args: argparse.Namespace, model: Path, tokenizer: Tokenizer) -> Texts:
    """The text side of a model, for HTTP.

    Raises:
        ConfigError: a limit makes no sense.
        CheckpointError, TextError: a file of the model is damaged.
    """
    limit: int | None = args.default_max_tokens
    if limit is not None and not 1 <= limit <= MAX_TOKENS:
        raise ConfigError("default-max-tokens", f"{limit} is not in [1, {MAX_TOKENS}]")
    texts = load_texts(model, tokenizer, default_max_tokens=limit)
    return replace(texts, tool_parser=args.tool_call_parser, reasoning_parser=args.reasoning_parser)


def start_log(args: argparse.Namespace) -> None:
    """Write the log to standard error."""
    start(args.log_level, args.log_format, args.command)


def announce(addresses: Iterable[str]) -> None:
    """Say that clients can connect.

    Raises:
        ConfigError: standard output takes nothing.
    """
    try:
        print("ready", *addresses, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError("standard output", f"cannot be written: {error}") from error
