"""``wkvm serve``: arguments to settings to a running server."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from wkvm_protocol.messages import MAX_SHORT_TEXT

from wkvm.assembly.models import find_model, model_name, require_engine
from wkvm.cli.engine_flags import ENGINE_FLAGS, MODEL_FLAGS
from wkvm.cli.failures import say_failure
from wkvm.cli.flags import ADDRESS_FLAGS, LIMIT_FLAGS, PROCESS_FLAGS, values_of
from wkvm.cli.pressure_flags import PRESSURE_FLAGS
from wkvm.cli.serving import announce, http_settings, http_texts, start_log
from wkvm.cli.store_flags import STORE_FLAGS
from wkvm.core.api_keys import ApiKey, parse_api_keys
from wkvm.core.config import API_KEY_VARIABLE, MAX_SLOTS, EngineConfig, ServerConfig
from wkvm.core.errors import ConfigError, EngineFailedError
from wkvm.core.pressure_config import PressureConfig
from wkvm.core.state_config import StateConfig
from wkvm.gateway.text import Tokenizer, TokenizerError, load_tokenizer
from wkvm.server.crashes import CrashReports, told_settings
from wkvm.server.guard import EXIT_ENGINE_FAILED, EXIT_STALLED, Supervision, leave_now
from wkvm.server.notify import Notifier
from wkvm.server.pressure import Pressure

MAX_KEYS_BYTES = 16 * 1024 * 1024
"""Of a file of keys, some hundred thousand of them: a device or a wrong file may have no end."""
CRASHES_FOLDER = "crashes"
RESPONSES_FOLDER = "responses"
"""In the folder of the states, both; the store knows that they are not its own."""


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain.

    Prints one line once clients can connect: ``ready`` and the addresses.

    Raises:
        ConfigError, CheckpointError, MissingExtraError: there will be no server.
    """
    start_log(args)
    path = find_model(args.model if args.model_path is None else args.model_path)
    server_config = server_settings(args)
    http = http_settings(args, server_config.api_keys)
    if http is None and server_config.binary_port is None and server_config.binary_uds is None:
        why = "nothing would be served: there is no --binary-uds, --port or --uds either"
        raise ConfigError("binary-port", why)
    engine_values = values_of(args, ENGINE_FLAGS + MODEL_FLAGS)
    is_auto = engine_values["n_slots"] is None
    if is_auto:
        engine_values["n_slots"] = MAX_SLOTS
    engine_config = EngineConfig(**engine_values)
    state_config = StateConfig(**values_of(args, STORE_FLAGS))
    pressure_config = PressureConfig(**values_of(args, PRESSURE_FLAGS))
    if http is not None and http.responses_dir is None and state_config.folder is not None:
        http = replace(http, responses_dir=os.path.join(state_config.folder, RESPONSES_FOLDER))
    # A folder's name need not be UTF-8, what clients are told must be.
    name = (args.served_model_name or model_name(path)).encode("utf-8", "replace").decode()
    if len(name) > MAX_SHORT_TEXT:
        raise ConfigError("served-model-name", f"longer than {MAX_SHORT_TEXT} characters")
    texts = None if http is None else http_texts(args, path, _tokenizer(path))
    from wkvm.assembly.reach import beside_server
    from wkvm.assembly.workers import Workers, check_workers

    check_workers(args.gateway_workers)
    crashes = crash_reports(args.crash_dir, state_config.folder)
    notifier = Notifier.of_environment()
    require_engine()

    from wkvm.assembly import http as assembly
    from wkvm.assembly.engine import build_engine, check_slots, device_memory
    from wkvm.assembly.starting import told_to_start
    from wkvm.assembly.states import OpenStates, check_states
    from wkvm.server.listen import check_addresses
    from wkvm.server.serve import Server
    from wkvm.server.serve import run as run_server

    if not is_auto:
        check_slots(path, engine_config)
    check_addresses(server_config)
    check_states(state_config)
    if http is not None:
        assembly.check_http(http, has_keys=bool(server_config.api_keys))
    with told_to_start(http, has_keys=bool(server_config.api_keys)):
        engine = build_engine(
            path, engine_config, served_name=name, takes_grammars=True, fits_slots=is_auto
        )
        states = OpenStates(engine, state_config)
    opened = list[assembly.HttpDoor | Workers]()

    def doors(server: Server) -> list[assembly.HttpDoor | Workers]:
        if pressure_config:
            server.sheds(Pressure(pressure_config, state_config.folder))
        if http is None or texts is None:
            return opened
        if not args.gateway_workers:
            opened.append(assembly.beside(server, http, texts))
            return opened
        workers = Workers(
            beside_server(server, has_keys=bool(server_config.api_keys)),
            http,
            args.gateway_workers,
            model=path,
            texts=texts,
            process=server_config,
            log_level=args.log_level,
            log_format=args.log_format,
        )
        opened.append(workers)
        return opened

    def ready(server: Server) -> None:
        announce([*server.addresses, *(one for door in opened for one in door.addresses)])

    supervision = Supervision(
        notifier=notifier,
        crashes=crashes,
        settings=told_settings(server_config, engine_config, state_config, http),
        memory=device_memory(engine),
    )
    try:
        run_server(
            engine,
            server_config,
            ready=ready,
            doors=doors,
            states=states.serve,
            supervision=supervision,
        )
    except EngineFailedError as error:
        say_failure("serve", str(error), args.log_format)
        # A step that does not end, or a device that is lost, would hold the interpreter's end up.
        leave_now(EXIT_STALLED if error.stalled else EXIT_ENGINE_FAILED)
    return 0


def crash_reports(given: str | None, state_folder: str | None) -> CrashReports | None:
    """Where reports go, if anywhere.

    Args:
        given: the flag; None without it.

    Raises:
        ConfigError: the folder that was given cannot be used.
    """
    if given == "none":
        return None
    if given is not None:
        reports = CrashReports(Path(given))
        reports.check()
        return reports
    return None if state_folder is None else CrashReports(Path(state_folder, CRASHES_FOLDER))


def _tokenizer(model: Path) -> Tokenizer:
    try:
        return load_tokenizer(model)
    except TokenizerError as error:
        why = f"HTTP needs the model's tokenizer; 'none' serves the binary protocol alone: {error}"
        raise ConfigError("port", why) from error


def server_settings(args: argparse.Namespace) -> ServerConfig:
    """The settings of the server, keys included.

    Raises:
        ConfigError: one is not allowed, or a keys file cannot be read.
    """
    values = values_of(args, ADDRESS_FLAGS + LIMIT_FLAGS + PROCESS_FLAGS)
    return ServerConfig(**values, api_keys=api_keys(args.api_key, args.api_keys_file))


def api_keys(given: list[str] | None, file: str | None) -> tuple[ApiKey, ...]:
    """The keys from flags, or else from the environment, and from a file.

    Raises:
        ConfigError: a key is malformed, or the file cannot be read.
    """
    from_environment = os.environ.get(API_KEY_VARIABLE)
    if given is None and from_environment is not None:
        given = [from_environment]
    keys = [ApiKey.of(key) for key in given or ()]
    if file is not None:
        try:
            with open(file, "rb") as opened:
                text = opened.read(MAX_KEYS_BYTES + 1)
            if len(text) > MAX_KEYS_BYTES:
                raise ConfigError("api-keys-file", f"{file}: longer than {MAX_KEYS_BYTES} bytes")
            keys += parse_api_keys(text.decode())
        except OSError as error:
            raise ConfigError("api-keys-file", f"{file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError("api-keys-file", f"{file}: not UTF-8") from error
    return tuple(keys)
