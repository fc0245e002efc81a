"""``wkvm states``: operations on the states that a server keeps."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import wkvm_client
from wkvm_client.blocking_states import States
from wkvm_client.errors import StateExistsError
from wkvm_client.states import LogEntry, StateInfo, StatePage

from wkvm.assembly.models import find_model
from wkvm.assembly.texts import check_tokenizer
from wkvm.cli import states_output as output
from wkvm.cli.place import key_explained, note, tokenizer_of
from wkvm.cli.states_parser import tags_of
from wkvm.cli.status import EXIT_FAILURE
from wkvm.cli.terminal import harmless
from wkvm.core.config import API_KEY_VARIABLE
from wkvm.core.errors import ConfigError

PAGE = 100
"""States, or versions, that are asked for at a time."""


def run(args: argparse.Namespace) -> int:
    """Carry out one action.

    Returns:
        0; 1 if a replay has other bytes, or a file cannot be read or written.

    Raises:
        ConfigError: the arguments contradict each other.
        WkvmError, TextError, ClientError: it failed, and nothing has changed.
    """
    if not args.timeout_s > 0:
        raise ConfigError("timeout-s", f"{args.timeout_s:g} is not a positive time")
    api_key = args.api_key or os.environ.get(API_KEY_VARIABLE)
    with _connected(args.connect, api_key) as client:
        states = client.states.within(args.timeout_s)
        try:
            return ACTIONS[args.action](args, client, states)
        except BrokenPipeError:
            raise  # of standard output, not of a file
        except OSError as error:
            note(f"{error.filename or args.file}: {error.strerror or error}")
            return EXIT_FAILURE


def _connected(address: str, api_key: str | None) -> wkvm_client.Client:
    with key_explained(address, api_key):
        return wkvm_client.connect(address, api_key=api_key)


def _show(args: argparse.Namespace, told: Any, lines: Iterator[str]) -> int:
    """Print what came: for machines, or for people."""
    if args.json:
        print(json.dumps(told))
    else:
        for line in lines:
            print(harmless(line, sys.stdout))
    return 0


def _one(args: argparse.Namespace, info: StateInfo) -> int:
    return _show(args, asdict(info), output.rows([info]))


def _several(args: argparse.Namespace, infos: list[StateInfo]) -> int:
    return _show(args, {"states": [asdict(info) for info in infos]}, output.rows(infos))


# --- actions ------------------------------------------------------------------------------


def _create(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    if (args.text is None) == (args.ids is None):
        raise ConfigError("ids", "either a text or --ids is to be absorbed")
    ids = args.ids
    if ids is None:
        tokenizer = tokenizer_of(args.tokenizer, find_model(args.model))
        hint = "give the right one with --tokenizer or --model, or give --ids"
        check_tokenizer(tokenizer, client.server, hint=hint)
        from_input = args.text == "-"
        text = sys.stdin.buffer.read().decode(errors="replace") if from_input else args.text
        ids = tokenizer.encode(text, special=args.special)
    try:
        info = states.create(
            args.name,
            ids,
            state=args.start,
            tags=tags_of(args.tag),
            expires_in_s=args.expires_in_s,
            expected_version=args.expected_version,
            durability=args.durability,
            checkpoint_every=args.checkpoint_every,
            idempotency_key=args.idempotency_key,
        )
    except StateExistsError as error:
        if args.start:
            raise
        raise StateExistsError(f"{error}; to append to it: --from {args.name}") from error
    return _one(args, info)


def _get(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    info = states.get(args.state)
    return _show(args, asdict(info), output.details(info))


def _list(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    if args.versions_of and (args.prefix or args.tag):
        raise ConfigError("versions-of", "goes with neither a prefix nor tags")

    def page(cursor: str, limit: int) -> StatePage:
        if args.versions_of:
            return states.versions(args.versions_of, cursor=cursor, limit=limit)
        return states.list(args.prefix, tags=tags_of(args.tag), cursor=cursor, limit=limit)

    _check_limit(args.limit)
    infos, cursor = list[StateInfo](), ""
    while args.limit is None or len(infos) < args.limit:
        left = PAGE if args.limit is None else min(args.limit - len(infos), PAGE)
        part = page(cursor, left)
        infos += part.states
        cursor = part.next
        if not cursor:
            break
    return _several(args, infos)


def _fork(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    infos = states.fork(
        args.state,
        args.names,
        tags=tags_of(args.tag),
        expires_in_s=args.expires_in_s,
        keep_randomness=args.keep_randomness,
        durability=args.durability,
        idempotency_key=args.idempotency_key,
    )
    return _several(args, list(infos))


def _snapshot(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    info = states.snapshot(
        args.state,
        save_as=args.save_as,
        expected_version=args.expected_version,
        durability=args.durability,
        idempotency_key=args.idempotency_key,
    )
    return _one(args, info)


def _hibernate(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    return _one(args, states.hibernate(args.state, args.tier))


def _resume(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    return _one(args, states.resume(args.state))


def _rollback(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    info = states.rollback(
        args.state,
        version=args.version,
        position=args.position,
        expected_version=args.expected_version,
        idempotency_key=args.idempotency_key,
    )
    return _one(args, info)


def _rename(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    info = states.rename(args.state, args.name, expected_version=args.expected_version)
    return _one(args, info)


def _tag(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    info = states.tag(args.state, dict(args.tags), expected_version=args.expected_version)
    return _one(args, info)


def _expire(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    in_s = None if args.never else args.in_s
    return _one(args, states.expire(args.state, in_s, expected_version=args.expected_version))


def _delete(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    states.delete(args.state, expected_version=args.expected_version)
    return _show(args, {"deleted": args.state}, iter([f"{args.state} is deleted"]))


def _mutate(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    try:
        parameters = msgspec.json.decode(args.parameters, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        why = "a JSON object, such as '{\"factor\": 0.5}'"
        raise ConfigError("parameters", why) from None
    info = states.mutate(
        args.operation,
        args.states,
        args.save_as,
        parameters,
        tags=tags_of(args.tag),
        expires_in_s=args.expires_in_s,
        expected_version=args.expected_version,
        durability=args.durability,
        idempotency_key=args.idempotency_key,
    )
    return _one(args, info)


def _diff(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    found = states.difference(args.state, args.other)
    return _show(args, asdict(found), output.difference(found))


def _log(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    _check_limit(args.limit)
    entries, before = list[LogEntry](), 0
    while args.limit is None or len(entries) < args.limit:
        left = PAGE if args.limit is None else min(args.limit - len(entries), PAGE)
        # a version is named in the first question alone: what follows is of the same state
        state = args.state.partition("@")[0] if before else args.state
        part = states.log(state, before=before, limit=left)
        entries += part.entries
        before = part.next
        if not before:
            break
    return _show(args, {"entries": [asdict(one) for one in entries]}, output.history(entries))


def _replay(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    found = states.replay(args.state)
    _show(args, asdict(found), output.replay(found))
    return 0 if found.equal else EXIT_FAILURE


def _export(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    if not args.force and Path(args.file).exists():
        raise ConfigError("file", f"{args.file} is there already; --force writes over it")
    exported = states.export_to(args.state, args.file, format=args.format)
    told = asdict(exported) | {"file": args.file}
    line = f"{args.state} is in {args.file}, {exported.n_bytes:,} bytes"
    return _show(args, told, iter([line]))


def _import(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    info = states.import_from(
        args.name,
        args.file,
        format=args.format,
        tags=tags_of(args.tag),
        expires_in_s=args.expires_in_s,
        expected_version=args.expected_version,
        durability=args.durability,
        idempotency_key=args.idempotency_key,
    )
    return _one(args, info)


def _migrate(args: argparse.Namespace, client: wkvm_client.Client, states: States) -> int:
    if not args.live and states.get(args.state).tier == "device":
        raise StateExistsError(f"{args.state}: a request works on it; --live moves it too")
    api_key = args.target_api_key or args.api_key or os.environ.get(API_KEY_VARIABLE)
    with _connected(args.target, api_key) as there:
        moved = wkvm_client.migrate(
            states,
            args.state,
            there.states.within(args.timeout_s),
            args.target,
            name=args.name,
            timeout_s=args.timeout_s,
        )
    line = (
        f"{moved.source} is {moved.state.ref} at {moved.target} now: {moved.n_bytes:,} bytes, "
        f"{moved.pause_s * 1000:.1f} ms"
    )
    return _show(args, asdict(moved), iter([line]))


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError("limit", f"{limit} is not at least 1")


Action = Callable[[argparse.Namespace, wkvm_client.Client, States], int]

ACTIONS: dict[str, Action] = {
    "create": _create,
    "get": _get,
    "list": _list,
    "fork": _fork,
    "snapshot": _snapshot,
    "hibernate": _hibernate,
    "resume": _resume,
    "rollback": _rollback,
    "rename": _rename,
    "tag": _tag,
    "expire": _expire,
    "delete": _delete,
    "mutate": _mutate,
    "diff": _diff,
    "log": _log,
    "replay": _replay,
    "export": _export,
    "import": _import,
    "migrate": _migrate,
}
