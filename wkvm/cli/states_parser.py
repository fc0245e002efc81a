"""The actions of ``wkvm states`` and their flags. ``docs/cli.md`` has a section for each."""

import argparse
from collections.abc import Sequence

from wkvm.cli.flags import DEFAULT_ADDRESS, id_list
from wkvm.core.config import API_KEY_VARIABLE

DURABILITIES = ("disk", "memory")
FORMATS = ("state", "blinkdl", "fla")
TIERS = ("host", "disk", "cold")
STATE_HELP = "NAME, which is its newest version, or NAME@VERSION"


def add_actions(parser: argparse.ArgumentParser, tokenizer_help: str) -> None:
    """Give the parser of ``wkvm states`` its actions; ``action`` holds which one was given."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", help="what to do; each has its own --help"
    )

    def action(name: str, text: str) -> argparse.ArgumentParser:
        description = f"{text[0].upper()}{text[1:]}."
        made = actions.add_parser(name, help=text, description=description, allow_abbrev=False)
        _where(made)
        return made

    _create(action("create", "absorb a text or ids, and keep the state"), tokenizer_help)
    _state(action("get", "tell about a state"))
    _list(action("list", "list states, or the versions of one"))
    _fork(action("fork", "make new states on the bytes of one"))
    _snapshot(action("snapshot", "make a new version of a state as it is now"))
    _hibernate(action("hibernate", "move the bytes of a state down, and free what they held"))
    _state(action("resume", "bring the bytes of a state up, verified"))
    _rollback(action("rollback", "make a new version that equals an older point"))
    _rename(action("rename", "give a state another name"))
    _tag(action("tag", "set the tags of a state"))
    _expire(action("expire", "let a state expire"))
    _delete(action("delete", "delete a state, or one version of it"))
    _mutate(action("mutate", "change a state other than by tokens"))
    _diff(action("diff", "tell how far two states are apart"))
    _log(action("log", "tell how a state came to be"))
    _state(action("replay", "do again what made a state, and compare the bytes"))
    _export(action("export", "write a state to a file"))
    _import(action("import", "keep a state that is in a file"))
    _migrate(action("migrate", "move a state to another server"))


def add_server(parser: argparse.ArgumentParser) -> None:
    """Which server, and the key for it."""
    parser.add_argument(
        "--connect",
        metavar="ADDRESS",
        default=DEFAULT_ADDRESS,
        help="the server: tcp://HOST:PORT or unix:///PATH (default: %(default)s)",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"for the server (default: ${API_KEY_VARIABLE})"
    )


def _where(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "--timeout-s",
        type=float,
        metavar="S",
        default=60.0,
        help="how long an answer, or the next bytes of a file, may take (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", metavar="STATE", help=STATE_HELP)


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the state that gets a new version")


def _handle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tag",
        action="append",
        type=key_value,
        metavar="KEY=VALUE",
        help="of the state; may be repeated",
    )
    parser.add_argument(
        "--expires-in-s",
        type=float,
        metavar="S",
        help="after so long the state is gone (default: never, or as it was)",
    )


def _expected(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expected-version",
        type=int,
        metavar="N",
        help="only if the newest version is this; 0: only if there is none",
    )


def _durability(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--durability",
        choices=DURABILITIES,
        help="what to wait for (default: the disk, where the server has one)",
    )


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--idempotency-key",
        metavar="KEY",
        default="",
        help="however often it is asked for with one key, it is done once",
    )


def _format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="state",
        help="all of a state, or a time_state in one of two orientations (default: %(default)s)",
    )


def _create(parser: argparse.ArgumentParser, tokenizer_help: str) -> None:
    _name(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="'-' reads standard input")
    parser.add_argument("--ids", type=id_list, metavar="IDS", help="ids in place of a text: 1,2,3")
    parser.add_argument(
        "--from", dest="start", metavar="STATE", default="", help=f"go on from this: {STATE_HELP}"
    )
    parser.add_argument(
        "--special",
        action="store_true",
        help="names of special tokens in the text stand for these tokens",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        default=0,
        help="keep a checkpoint at each multiple of so many tokens; 0 for none "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="where the tokenizer is (default: the model that comes with wkvm)",
    )
    parser.add_argument("--tokenizer", metavar="PATH", help=tokenizer_help)
    _handle(parser)
    _expected(parser)
    _durability(parser)
    _key(parser)


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="of the names (default: all)"
    )
    parser.add_argument(
        "--versions-of", metavar="NAME", default="", help="list the versions of this state instead"
    )
    parser.add_argument(
        "--tag",
        action="append",
        type=key_value,
        metavar="KEY=VALUE",
        help="only states with this tag; may be repeated",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="no more than so many (default: all of them)"
    )


def _fork(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument("names", nargs="+", metavar="NAME", help="of the new states")
    parser.add_argument(
        "--keep-randomness",
        action="store_true",
        help="draw the random numbers that the parent would draw, not fresh ones",
    )
    _handle(parser)
    _durability(parser)
    _key(parser)


def _snapshot(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument(
        "--save-as",
        metavar="NAME",
        default="",
        help="the state that gets the version (default: the same)",
    )
    _expected(parser)
    _durability(parser)
    _key(parser)


def _hibernate(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument(
        "--tier",
        choices=TIERS,
        default="disk",
        help="memory, the disk, or an object store (default: %(default)s)",
    )


def _rollback(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    point = parser.add_mutually_exclusive_group(required=True)
    point.add_argument("--version", type=int, metavar="N", help="the version to go back to")
    point.add_argument("--position", type=int, metavar="N", help="how many tokens are left")
    _expected(parser)
    _key(parser)


def _rename(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument("name", metavar="NAME", help="the new one")
    _expected(parser)


def _tag(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument(
        "tags",
        nargs="*",
        type=key_value,
        metavar="KEY=VALUE",
        help="all that it is to have; none removes them",
    )
    _expected(parser)


def _expire(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--in-s", type=float, metavar="S", help="from now")
    when.add_argument("--never", action="store_true", help="keep it until it is deleted")
    _expected(parser)


def _delete(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    _expected(parser)


def _mutate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "operation", metavar="OPERATION", help="such as decay or blend: docs/states.md lists them"
    )
    parser.add_argument("states", nargs="+", metavar="STATE", help="the first is what is continued")
    parser.add_argument(
        "--save-as", required=True, metavar="NAME", help="the state that gets the result"
    )
    parser.add_argument(
        "--parameters", metavar="JSON", default="{}", help="of the operation (default: %(default)s)"
    )
    _handle(parser)
    _expected(parser)
    _durability(parser)
    _key(parser)


def _diff(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument("other", metavar="OTHER", help="the other one, likewise")


def _log(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument(
        "--limit", type=int, metavar="N", help="no more than so many versions (default: all)"
    )


def _export(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument("file", metavar="FILE", help="what to write; it is there whole or not")
    parser.add_argument(
        "--force", action="store_true", help="write over a file that is there already"
    )
    _format(parser)


def _import(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("file", metavar="FILE", help="that was exported, or a time_state")
    _format(parser)
    _handle(parser)
    _expected(parser)
    _durability(parser)
    _key(parser)


def _migrate(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument(
        "target",
        metavar="ADDRESS",
        help="the other server: tcp://HOST:PORT or unix:///PATH, as clients reach it too",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="also while a request works on it, whose stream then goes on at the other server",
    )
    parser.add_argument(
        "--name", metavar="NAME", default="", help="of the state there (default: the same)"
    )
    parser.add_argument(
        "--target-api-key",
        metavar="KEY",
        help="for the other server (default: the same as for the first)",
    )


def key_value(text: str) -> tuple[str, str]:
    """A tag."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is no KEY=VALUE")
    return key, value


def tags_of(pairs: Sequence[tuple[str, str]] | None) -> dict[str, str] | None:
    """Tags as they are asked for; None if none were given."""
    return None if pairs is None else dict(pairs)
