"""The flags, as tables: one row each, from which the parser and the settings are made.

A row of a settings table names the field of its dataclass, so that a default is stated
once, where the field is.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, get_args

from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.pressure_config import PressureConfig
from wkvm.core.sampling import SamplingParams
from wkvm.core.state_config import StateConfig
from wkvm.gateway.config import GatewayConfig, Limits
from wkvm.server.log import LogFormat

DEFAULT_ADDRESS = "tcp://127.0.0.1:8001"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag that sets one field.

    Attributes:
        names: the flag and its aliases.
        field: of the dataclass.
        dest: where the value is kept among the arguments, if not under the field's name.
        kind: what reads the value; None for a switch.
        metavar: what stands for the value in the help text.
        text: the help text; ``%(default)s`` is the field's default.
        choices: the allowed values, where they are few.
        from_model: without the flag the model's generation settings count, not the field.
    """

    names: tuple[str, ...]
    field: str
    kind: Callable[[str], Any] | None
    text: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    from_model: bool = False
    dest: str | None = None


def port(text: str) -> int | None:
    """A TCP port; None for ``none``."""
    try:
        return None if text == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a port nor 'none'") from None


def place(text: str) -> str:
    """A path. An empty one, as of a variable that is not set, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("a path is needed")
    return text


def id_list(text: str) -> tuple[int, ...]:
    """Ids with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ids like 1,2,3") from None


HOST_FLAG = Flag(
    names=("--host",),
    field="host",
    kind=str,
    metavar="HOST",
    text="address or name to bind; beyond loopback a key is needed (default: %(default)s)",
)

ADDRESS_FLAGS = (
    HOST_FLAG,
    Flag(
        names=("--binary-port",),
        field="binary_port",
        kind=port,
        metavar="PORT",
        text="TCP port of the binary protocol; 0 takes a free one, 'none' serves no TCP "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--binary-uds",),
        field="binary_uds",
        kind=place,
        metavar="PATH",
        text="unix socket of the binary protocol (default: none)",
    ),
)

DRAIN_FLAG = Flag(
    names=("--drain-timeout-s",),
    field="drain_timeout_s",
    kind=float,
    metavar="S",
    text="how long open requests have to end after SIGTERM or SIGINT (default: %(default)s)",
)

LIMIT_FLAGS = (
    DRAIN_FLAG,
    Flag(
        names=("--auth-timeout-s",),
        field="auth_timeout_s",
        kind=float,
        metavar="S",
        text="from a connection's start to its HELLO (default: %(default)s)",
    ),
    Flag(
        names=("--frame-timeout-s",),
        field="frame_timeout_s",
        kind=float,
        metavar="S",
        text="from a frame's first byte to its last (default: %(default)s)",
    ),
    Flag(
        names=("--ping-interval-s",),
        field="ping_interval_s",
        kind=float,
        metavar="S",
        text="a peer that is silent for this long is sent a ping; 0 sends none "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--max-missed-pings",),
        field="max_missed_pings",
        kind=int,
        metavar="N",
        text="so many unanswered pings end a connection (default: %(default)s)",
    ),
    Flag(
        names=("--idle-timeout-s",),
        field="idle_timeout_s",
        kind=float,
        metavar="S",
        text="a peer that is silent for this long is given up (default: %(default)s)",
    ),
    Flag(
        names=("--write-timeout-s",),
        field="write_timeout_s",
        kind=float,
        metavar="S",
        text="how long a peer that reads too slowly is kept (default: %(default)s)",
    ),
    Flag(
        names=("--max-output-bytes",),
        field="max_output_bytes",
        kind=int,
        metavar="N",
        text="how much may wait to be sent on one connection (default: %(default)s)",
    ),
    Flag(
        names=("--max-connections",),
        field="max_connections",
        kind=int,
        metavar="N",
        text="of all tenants together (default: %(default)s)",
    ),
    Flag(
        names=("--max-connections-per-tenant",),
        field="max_connections_per_tenant",
        kind=int,
        metavar="N",
        text="of one tenant (default: %(default)s)",
    ),
    Flag(
        names=("--max-lanes",),
        field="max_lanes",
        kind=int,
        metavar="N",
        text="open requests of one connection (default: %(default)s)",
    ),
    Flag(
        names=("--max-frame-bytes",),
        field="max_frame_bytes",
        kind=int,
        metavar="N",
        text="largest frame after HELLO, both ways (default: %(default)s)",
    ),
)

PROCESS_FLAGS = (
    Flag(
        names=("--step-timeout-s",),
        field="step_timeout_s",
        kind=float,
        metavar="S",
        text="a step, or the event loop, that stands still for longer ends the process, with "
        "status 71; 0 for never (default: %(default)s)",
    ),
    Flag(
        names=("--max-loop-lag-s",),
        field="max_loop_lag_s",
        kind=float,
        metavar="S",
        text="an event loop that does not turn for longer is written to the log, with its stack "
        "(default: %(default)s)",
    ),
)

SAMPLING_FLAGS = (
    Flag(
        names=("--max-tokens",),
        field="max_tokens",
        kind=int,
        metavar="N",
        text="end after so many tokens (default: %(default)s)",
    ),
    Flag(
        names=("--min-tokens",),
        field="min_tokens",
        kind=int,
        metavar="N",
        text="no end before so many tokens (default: %(default)s)",
    ),
    Flag(
        names=("--temperature",),
        field="temperature",
        kind=float,
        metavar="X",
        from_model=True,
        text="0 always takes the most likely token (default: the model's own, or 1)",
    ),
    Flag(
        names=("--top-k",),
        field="top_k",
        kind=int,
        metavar="N",
        from_model=True,
        text="keep the N most likely tokens; 0 keeps all (default: the model's own, or 0)",
    ),
    Flag(
        names=("--top-p",),
        field="top_p",
        kind=float,
        metavar="X",
        from_model=True,
        text="keep the most likely tokens whose mass reaches X (default: the model's own, or 1)",
    ),
    Flag(
        names=("--min-p",),
        field="min_p",
        kind=float,
        metavar="X",
        from_model=True,
        text="drop tokens less likely than X times the most likely one "
        "(default: the model's own, or 0)",
    ),
    Flag(
        names=("--repetition-penalty",),
        field="repetition_penalty",
        kind=float,
        metavar="X",
        from_model=True,
        text="on tokens of prompt and output; 1 is off (default: the model's own, or 1)",
    ),
    Flag(
        names=("--presence-penalty",),
        field="presence_penalty",
        kind=float,
        metavar="X",
        text="subtracted once from tokens in the output (default: %(default)s)",
    ),
    Flag(
        names=("--frequency-penalty",),
        field="frequency_penalty",
        kind=float,
        metavar="X",
        text="subtracted for each occurrence in the output (default: %(default)s)",
    ),
    Flag(
        names=("--penalty-decay",),
        field="penalty_decay",
        kind=float,
        metavar="X",
        text="each new token multiplies earlier counts by X; RWKV's habit is 0.996 "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--seed",),
        field="seed",
        kind=int,
        metavar="N",
        text="fixes the random numbers (default: fresh ones)",
    ),
)

EXACT_FLAGS = (
    Flag(
        names=("--stop-ids",),
        field="stop_ids",
        kind=id_list,
        metavar="ID,...",
        text="end when one of these ids is sampled, besides the model's own end ids",
    ),
    Flag(
        names=("--allowed-ids",),
        field="allowed_ids",
        kind=id_list,
        metavar="ID,...",
        text="only these ids may be sampled (default: all)",
    ),
    Flag(
        names=("--ignore-eos",),
        field="ignore_eos",
        kind=None,
        text="go on after the model's own end ids",
    ),
    Flag(
        names=("--logprobs",),
        field="logprobs",
        kind=int,
        metavar="N",
        text="with --json: report the log probability of each token and of the N most likely ones",
    ),
    Flag(
        names=("--prompt-logprobs",),
        field="prompt_logprobs",
        kind=int,
        metavar="N",
        text="with --json: likewise for the tokens of the prompt but the first",
    ),
)


Settings: TypeAlias = (
    type[EngineConfig]
    | type[ServerConfig]
    | type[GatewayConfig]
    | type[SamplingParams]
    | type[StateConfig]
    | type[PressureConfig]
    | type[Limits]
)
"""Of whose fields the flags are."""


def add_flags(
    parser: argparse.ArgumentParser,
    title: str,
    flags: Sequence[Flag],
    settings: Settings,
) -> None:
    """Add rows as a group of ``--help``, with the defaults of ``settings``."""
    defaults = {field.name: field.default for field in fields(settings)}
    group = parser.add_argument_group(title)
    for flag in flags:
        if flag.kind is None:
            group.add_argument(
                *flag.names, dest=flag.dest or flag.field, action="store_true", help=flag.text
            )
        else:
            group.add_argument(
                *flag.names,
                dest=flag.dest or flag.field,
                type=flag.kind,
                metavar=flag.metavar,
                choices=flag.choices,
                default=None if flag.from_model else defaults[flag.field],
                help=flag.text,
            )


def values_of(args: argparse.Namespace, flags: Sequence[Flag]) -> dict[str, Any]:
    """What was given, or the default, by field."""
    given: Mapping[str, Any] = vars(args)
    return {flag.field: given[flag.dest or flag.field] for flag in flags}
