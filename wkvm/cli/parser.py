"""The tree of commands and flags. ``docs/cli.md`` has a row for each of them."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from wkvm import __version__
from wkvm.cli.engine_flags import ENGINE_FLAGS, LOCAL_FLAGS, MODEL_FLAGS, STATE_FLAGS
from wkvm.cli.flags import (
    ADDRESS_FLAGS,
    DEFAULT_ADDRESS,
    DRAIN_FLAG,
    EXACT_FLAGS,
    HOST_FLAG,
    LIMIT_FLAGS,
    LOG_FORMATS,
    LOG_LEVELS,
    PROCESS_FLAGS,
    SAMPLING_FLAGS,
    add_flags,
    place,
)
from wkvm.cli.http_flags import HTTP_ADDRESS_FLAGS, HTTP_LIMIT_FLAGS, KEY_LIMIT_FLAGS
from wkvm.cli.pressure_flags import PRESSURE_FLAGS
from wkvm.cli.states_parser import add_actions, add_server
from wkvm.cli.status import EXIT_USAGE
from wkvm.cli.store_flags import STORE_FLAGS
from wkvm.core.config import API_KEY_VARIABLE, EngineConfig, ServerConfig
from wkvm.core.pressure_config import PressureConfig
from wkvm.core.sampling import SamplingParams
from wkvm.core.state_config import StateConfig
from wkvm.gateway.config import DEFAULT_MAX_TOKENS, GatewayConfig, Limits
from wkvm.gateway.parsing.names import AUTO, REASONING_PARSERS, TOOL_PARSERS

MODEL_HELP = (
    "folder with safetensors files, or a .pth file (default: the model that comes with wkvm)"
)


TOKENIZER_HELP = "tokenizer file or folder; 'bytes' if ids are bytes (default: the model's)"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the list of all flags."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and end with status 2."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: it cannot be read (2), or help was asked for (0).
    """
    parser = build_parser()
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        # Said by the command that does not know them, not by ``wkvm``.
        parser.prog = f"{parser.prog} {args.command}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. ``command`` holds which command was given."""
    parser = Parser(
        prog="wkvm",
        description="An inference engine for recurrent language models.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"wkvm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        description = f"{text[0].upper()}{text[1:]}."
        return commands.add_parser(name, help=text, description=description, allow_abbrev=False)

    _serve(command("serve", "serve a model over HTTP and the binary protocol"))
    _gateway(command("gateway", "serve HTTP in front of a server that runs elsewhere"))
    _complete(command("complete", "complete a text"))
    _chat(command("chat", "chat in the terminal"))
    _inspect(command("inspect", "say what a model is, and how many states fit here"))
    add_actions(command("states", "work with the states that a server keeps"), TOKENIZER_HELP)
    _top(command("top", "show the states of a server and its gauges, in the terminal"))
    _store(command("store", "verify or clean a store of states, or say what is in it"))
    # For the list of commands only: ``main`` hands its arguments on unseen.
    command("bench", "run a benchmark: the same as python -m wkvm_bench")
    command("version", "print the version")
    return parser


def _serve(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group()
    model.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    model.add_argument("--model-path", metavar="MODEL", help="the same as MODEL")
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="what clients are told the model is called (default: the name of its folder or file)",
    )
    _log_level(parser)
    add_flags(parser, "addresses", ADDRESS_FLAGS, ServerConfig)
    add_flags(parser, "HTTP", HTTP_ADDRESS_FLAGS + HTTP_LIMIT_FLAGS, GatewayConfig)
    add_flags(parser, "limits of keys", KEY_LIMIT_FLAGS, Limits)
    _default_max_tokens(parser)
    _workers(parser, "beside the engine's; 0 serves it in the engine's")
    keys = parser.add_argument_group("who may connect")
    keys.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"a key; may be repeated. Other users of the machine can see it: ${API_KEY_VARIABLE} "
        "or a file hides it (default: everybody who reaches the server may connect)",
    )
    keys.add_argument(
        "--api-keys-file",
        type=place,
        metavar="FILE",
        help="keys by tenant: lines of tenant:key, or of tenant:SHA-256 of a key",
    )
    add_flags(parser, "the model", MODEL_FLAGS, EngineConfig)
    add_flags(parser, "the engine", ENGINE_FLAGS, EngineConfig)
    add_flags(parser, "named states", STORE_FLAGS, StateConfig)
    add_flags(parser, "memory and disk that are short", PRESSURE_FLAGS, PressureConfig)
    add_flags(parser, "connections", LIMIT_FLAGS, ServerConfig)
    add_flags(parser, "the process", PROCESS_FLAGS, ServerConfig)
    reports = parser.add_argument_group("reports of failures")
    reports.add_argument(
        "--crash-dir",
        type=place,
        metavar="FOLDER",
        help="where reports are left when the engine fails, the newest 16; "
        "'none' leaves none (default: crashes in --state-dir; without one, none)",
    )


def _gateway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        metavar="ADDRESS",
        default=DEFAULT_ADDRESS,
        help="the server: tcp://HOST:PORT or unix:///PATH (default: %(default)s)",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the gateway's own, for readiness and counters; its clients bring theirs "
        f"(default: ${API_KEY_VARIABLE})",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="where tokenizer, template and generation settings of the model that is served are "
        "(default: the model that comes with wkvm)",
    )
    parser.add_argument("--tokenizer", type=place, metavar="PATH", help=TOKENIZER_HELP)
    _log_level(parser)
    add_flags(parser, "addresses", (HOST_FLAG, *HTTP_ADDRESS_FLAGS), GatewayConfig)
    add_flags(parser, "HTTP", HTTP_LIMIT_FLAGS, GatewayConfig)
    add_flags(parser, "limits of keys", KEY_LIMIT_FLAGS, Limits)
    _default_max_tokens(parser)
    _workers(parser, "beside this one; 0 serves it in this one")
    add_flags(parser, "the process", (DRAIN_FLAG, *PROCESS_FLAGS), ServerConfig)


def _top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="of the names (default: all)"
    )
    add_server(parser)
    parser.add_argument(
        "--interval-s",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two readings of the gauges, 0.1 to 60 (default: %(default)s)",
    )


def _log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="warning",
        help="what goes to standard error (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="lines for people, or a JSON object each (default: %(default)s)",
    )


def _workers(parser: argparse.ArgumentParser, where: str) -> None:
    parser.add_argument(
        "--gateway-workers",
        type=int,
        default=0,
        metavar="N",
        help=f"processes that serve HTTP, {where} (default: %(default)s)",
    )


def _default_max_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--default-max-tokens",
        type=int,
        metavar="N",
        help="length of an answer over HTTP, if the request names none (default: the "
        f"max_new_tokens of the model's generation settings, or {DEFAULT_MAX_TOKENS})",
    )
    parser.add_argument(
        "--tool-call-parser",
        choices=TOOL_PARSERS,
        default=AUTO,
        help="how the model writes tool calls (default: %(default)s, which asks the chat template)",
    )
    parser.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default=AUTO,
        help="how it writes what it thinks before it answers (default: %(default)s, which asks "
        "the chat template)",
    )


def _complete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the text; '-' reads standard input")
    parser.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        default=[],
        help="end before this text; may be repeated",
    )
    parser.add_argument(
        "--special",
        action="store_true",
        help="names of special tokens in the prompt stand for these tokens",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object with text, ids, reason and log probabilities at the end",
    )
    parser.add_argument(
        "--state",
        metavar="STATE",
        default="",
        help="go on from this state of the server, NAME or NAME@VERSION; PROMPT may then be empty",
    )
    parser.add_argument(
        "--save-as",
        metavar="NAME",
        default="",
        help="keep the state at the end under this name; not with --stop",
    )
    _engine_or_server(parser)
    add_flags(parser, "sampling", SAMPLING_FLAGS + EXACT_FLAGS, SamplingParams)


def _chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="the system message (default: none)")
    parser.add_argument(
        "--session",
        metavar="NAME",
        default="",
        help="go on with this session of the server, or begin it: a state that keeps what is said",
    )
    parser.add_argument(
        "--state",
        metavar="STATE",
        default="",
        help="begin at this state of the server, NAME or NAME@VERSION, which stays as it is",
    )
    _engine_or_server(parser)
    add_flags(parser, "sampling", SAMPLING_FLAGS, SamplingParams)


def _engine_or_server(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group(
        "where it runs",
        "Without --connect, --local, --model or a flag of the next group: on the server at "
        f"{DEFAULT_ADDRESS} if there is one, otherwise in this process.",
    )
    where.add_argument(
        "--connect", metavar="ADDRESS", help="the server: tcp://HOST:PORT or unix:///PATH"
    )
    where.add_argument("--local", action="store_true", help="run in this process")
    where.add_argument(
        "--model",
        metavar="MODEL",
        help="run this model in this process; with --connect, where tokenizer, template and "
        "generation settings are (default: the model that comes with wkvm)",
    )
    where.add_argument(
        "--tokenizer",
        type=place,
        metavar="PATH",
        help=TOKENIZER_HELP,
    )
    where.add_argument(
        "--api-key", metavar="KEY", help=f"for the server (default: ${API_KEY_VARIABLE})"
    )
    where.add_argument(
        "--timeout-s",
        type=float,
        metavar="S",
        help="end an answer after so long (default: the server's setting)",
    )
    add_flags(parser, "in this process", LOCAL_FLAGS, EngineConfig)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="for which device the layout is told (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of weights and activations, as for serve (default: %(default)s)",
    )
    add_flags(parser, "states", STATE_FLAGS, EngineConfig)


def _store_action(text: str) -> str:
    if text not in ("check", "gc", "stat"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of check, gc and stat")
    return text


def _store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        type=_store_action,
        metavar="ACTION",
        help="check: read and verify all of it; gc: remove what nobody needs; stat: count",
    )
    parser.add_argument(
        "folder", type=place, metavar="FOLDER", help="of the store; no server has it open"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--objects",
        metavar="URL",
        help="its object store: s3://BUCKET/PREFIX or file:///FOLDER (default: none)",
    )
