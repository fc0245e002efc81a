"""Where ``complete`` and ``chat`` run, and the text layer that fits there."""

import argparse
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wkvm_client.errors import (
    BadPeerError,
    ConnectFailedError,
    ConnectTimeoutError,
    PlaintextKeyError,
    UnauthenticatedError,
)
from wkvm_protocol.messages import HelloOk

from wkvm.assembly.backend import Backend, Local, Remote
from wkvm.assembly.models import find_model, generation_settings, model_name, require_engine
from wkvm.assembly.texts import check_tokenizer
from wkvm.cli.engine_flags import LOCAL_FLAGS
from wkvm.cli.flags import DEFAULT_ADDRESS, Flag, values_of
from wkvm.cli.terminal import harmless
from wkvm.core.config import API_KEY_VARIABLE, EngineConfig
from wkvm.core.errors import ConfigError, InvalidParameterError, MissingExtraError
from wkvm.core.sampling import SamplingParams
from wkvm.gateway.text import (
    ByteTokenizer,
    ChatTemplate,
    Tokenizer,
    load_chat_template,
    load_tokenizer,
)

PROBE_TIMEOUT_S = 2.0
"""How long a server at the default address may take to answer, if none was asked for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Something to generate with, and what turns text into its ids and back.

    Attributes:
        backend: connected.
        tokenizer: that of the model that is served.
        template: for chats.
        suggested: sampling parameters that the model's maker suggests.
    """

    backend: Backend
    tokenizer: Tokenizer
    template: ChatTemplate
    suggested: dict[str, float | int]

    @property
    def server(self) -> HelloOk:
        """What the server says of itself."""
        return self.backend.server


@contextmanager
def open_setting(args: argparse.Namespace) -> Generator[Setting]:
    """Connect to where the arguments say, and load the text layer that belongs to it.

    Raises:
        ConfigError: the arguments contradict each other, or the tokenizer is not the one
            of the model that is served.
        CheckpointError, MissingExtraError, TextError, ClientError: there is none.
    """
    path = find_model(args.model)
    if args.connect is not None and args.local:
        raise ConfigError("local", "cannot be together with --connect")
    if args.connect is not None and (flag := _engine_flag(args)) is not None:
        raise ConfigError(flag, "cannot be together with --connect: the server runs the model")
    tokenizer, template = tokenizer_of(args.tokenizer, path), load_chat_template(path)
    suggested = generation_settings(path).suggested()
    with _open_backend(args, path) as backend:
        hint = "give the right one with --tokenizer or --model, or use --local"
        check_tokenizer(tokenizer, backend.server, hint=hint)
        yield Setting(backend, tokenizer, template, suggested)


def sampling_options(
    args: argparse.Namespace, flags: tuple[Flag, ...], suggested: dict[str, float | int]
) -> dict[str, Any]:
    """What to ask for: flags that were given, then what the model suggests, then defaults.

    Raises:
        ConfigError: a value is out of range. Ids are left to the server, which has the model.
    """
    given = {name: value for name, value in values_of(args, flags).items() if value is not None}
    options: dict[str, Any] = suggested | given
    try:
        SamplingParams(**options)
    except InvalidParameterError as error:
        raise ConfigError(error.field.replace("_", "-"), error.why) from error
    if args.timeout_s is not None:
        if not args.timeout_s > 0:
            raise ConfigError("timeout-s", f"{args.timeout_s:g} is not a positive time")
        options["timeout_s"] = args.timeout_s
    return options


def note(text: str) -> None:
    """Say something that is no output."""
    print(harmless(f"wkvm: {text}", sys.stderr), file=sys.stderr)


def _open_backend(args: argparse.Namespace, path: Path) -> Backend:
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE)
    if args.connect is not None:
        return _open_remote(Remote(args.connect, api_key))
    is_absent = False
    if not args.local and args.model is None and _engine_flag(args) is None:
        try:
            return _open_remote(Remote(DEFAULT_ADDRESS, api_key, PROBE_TIMEOUT_S))
        except (ConnectFailedError, ConnectTimeoutError, BadPeerError):
            is_absent = True
    _check_stateless(args, is_absent=is_absent)
    if is_absent:
        _check_fallback()
        note(f"no server at {DEFAULT_ADDRESS}; running {model_name(path)} in this process")
    config = EngineConfig(n_slots=1, **values_of(args, LOCAL_FLAGS))
    require_engine()
    from wkvm.assembly.engine import build_engine

    return Backend.open(Local(build_engine(path, config, served_name=model_name(path))))


def _engine_flag(args: argparse.Namespace) -> str | None:
    """A flag that says how this process runs a model, if one does; its name without dashes."""
    values, default = values_of(args, LOCAL_FLAGS), EngineConfig()
    for flag in LOCAL_FLAGS:
        if values[flag.field] != getattr(default, flag.field):
            return flag.names[0].removeprefix("--")
    return None


def _check_stateless(args: argparse.Namespace, *, is_absent: bool) -> None:
    """Check that nothing is asked of this process that needs a server's states."""
    for name in ("session", "state", "save_as"):
        if getattr(args, name, ""):
            where = f"there is none at {DEFAULT_ADDRESS}; " if is_absent else ""
            why = f"states are with a server; {where}start wkvm serve, or name one with --connect"
            raise ConfigError(name.replace("_", "-"), why)


def _check_fallback() -> None:
    """Check that what no server does can be done in this process."""
    try:
        require_engine()
    except MissingExtraError as error:
        why = (
            f"there is no server at {DEFAULT_ADDRESS}, and {error}; or name a server with --connect"
        )
        raise ConfigError("connect", why) from error


def _open_remote(server: Remote) -> Backend:
    with key_explained(server.address, server.api_key):
        return Backend.open(server)


@contextmanager
def key_explained(address: str, api_key: str | None) -> Generator[None]:
    """Say in terms of the command line what a key has to do with a failure to connect."""
    try:
        yield
    except UnauthenticatedError as error:
        if api_key is not None:
            raise
        why = f"{address} asks for a key: --api-key or ${API_KEY_VARIABLE}"
        raise UnauthenticatedError(why) from error
    except PlaintextKeyError as error:
        why = f"the key would be readable on the way to {address}: use a tunnel"
        raise PlaintextKeyError(f"{why} or a unix socket") from error


def tokenizer_of(argument: str | None, model: Path) -> Tokenizer:
    """The tokenizer that ``--tokenizer`` names, or else the model's.

    Raises:
        TokenizerError: there is none, or it is damaged.
    """
    if argument == "bytes":
        return ByteTokenizer()
    return load_tokenizer(model if argument is None else Path(argument))
