"""Write the messages of the protocol for the TypeScript client, from those of ``wkvm_protocol``.

    python -m tools.typescript_messages

Fields, types, limits and defaults are read off the Python messages, so that the two cannot differ;
a test holds ``clients/typescript/src/messages.ts`` to what this writes.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect
from wkvm_protocol import messages
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    FEATURES,
    REPLIES,
    ClientMessage,
    EndReason,
    LineageEntry,
    Message,
    Sampling,
    ServerMessage,
    StateInfo,
)

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "clients/typescript/src/messages.ts"

FLOATS = frozenset({"bias_values", "logprobs", "top_logprobs", "vector"})
"""Packed fields that hold float32; the others hold uint32."""
BYTES = frozenset({"data"})
"""Binary fields that hold bytes."""
LARGE = 2**53 - 1
"""The largest integer that is exact as a number of JavaScript."""

HEAD = """\
// Written by tools/typescript_messages.py from the messages of wkvm_protocol. Not to be edited.

import type { Field } from "./fields.js";

/** A number where it is exact, otherwise a bigint. */
export type Integer = number | bigint;
"""


def all_messages() -> list[type[Message]]:
    """Every message, by tag."""
    types = {*get_args(ClientMessage), *get_args(ServerMessage)}
    return sorted(types, key=lambda one: int(str(one.__struct_config__.tag)))


def field_of(name: str, kind: inspect.Type) -> tuple[dict[str, Any], str]:
    """How a field is checked, as ``fields.ts`` reads it; and its type in TypeScript."""
    match kind:
        case inspect.UnionType(types=types):
            (inner,) = (one for one in types if not isinstance(one, inspect.NoneType))
            field, written = field_of(name, inner)
            return {"kind": "nil", "of": field}, f"{written} | null"
        case inspect.BoolType():
            return {"kind": "bool"}, "boolean"
        case inspect.IntType(ge=ge, le=le):
            limits = {"min": ge, "max": le}
            is_small = None not in (ge, le) and int(le or 0) <= LARGE
            given = {key: str(value) for key, value in limits.items() if value is not None}
            return {"kind": "int", **given}, "number" if is_small else "Integer"
        case inspect.EnumType(cls=cls):
            return {"kind": "enum", "of": [one.value for one in cls]}, "number"
        case inspect.FloatType():
            return {"kind": "float"}, "number"
        case inspect.StrType(max_length=longest):
            return {"kind": "text"} | ({} if longest is None else {"max": longest}), "string"
        case inspect.BytesType(min_length=shortest, max_length=longest):
            if name in BYTES:
                return {"kind": "bytes", "min": shortest, "max": longest}, "Uint8Array"
            if name in FLOATS:
                return {"kind": "floats"}, "Float32Array"
            return {"kind": "ids"}, "Uint32Array"
        case (
            inspect.VarTupleType(item_type=item, max_length=longest)
            | inspect.ListType(item_type=item, max_length=longest)
        ):
            field, written = field_of(name, item)
            limit = {} if longest is None else {"max": longest}
            return {"kind": "list", "of": field} | limit, f"readonly {written}[]"
        case inspect.DictType(key_type=key, value_type=value, max_length=longest):
            (key_field, _), (field, written) = field_of(name, key), field_of(name, value)
            limit = {} if longest is None else {"max": longest}
            found = {"kind": "map", "key": key_field, "of": field} | limit
            return found, f"ReadonlyMap<string, {written}>"
        case inspect.StructType(cls=cls):
            return {"kind": "struct", "of": cls.__name__}, cls.__name__
        case _:
            raise TypeError(f"{name}: {kind}")


def default_of(field: inspect.Field, written: str) -> str | None:
    """A default, written in TypeScript; None where there is none."""
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    match value:
        case msgspec.NODEFAULT:
            return None
        case bytes():
            return f"new {written.removesuffix(' | null')}()"
        case tuple() | list():
            return "[]"
        case dict():
            return "new Map()"
        case Sampling():
            return "SAMPLING"
        case None | bool() | int() | float() | str():
            return json.dumps(value)
        case _:
            raise TypeError(f"{field.name}: {value!r}")


def comment_of(cls: type[Message]) -> str:
    """The first sentence of a message's description."""
    first = (cls.__doc__ or "").strip().split("\n\n")[0].replace("``", "`")
    return " ".join(first.split())


def interface(cls: type[Message]) -> Iterator[str]:
    """The interface of a message, and what may be left out to make one."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    yield f"/** {comment_of(cls)} */"
    yield f"export interface {cls.__name__} {{"
    if cls.__struct_config__.tag is not None:
        yield f'  readonly type: "{cls.__name__}";'
    for field in info.fields:
        yield f"  readonly {field.name}: {field_of(field.name, field.type)[1]};"
    yield "}"
    yield ""


def table(cls: type[Message]) -> Iterator[str]:
    """The fields of a message in order, as data."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    tag = cls.__struct_config__.tag
    yield f"  {cls.__name__}: {{"
    yield f"    tag: {'null' if tag is None else tag},"
    yield "    fields: ["
    for field in info.fields:
        check, written = field_of(field.name, field.type)
        default = default_of(field, written)
        rest = "" if default is None else f", default: () => {default}"
        yield f'      {{ name: "{field.name}", field: {json.dumps(check)}{rest} }},'
    yield "    ],"
    yield "  },"


def union(name: str, types: Iterable[type[Message]], comment: str) -> Iterator[str]:
    """A type that is one of several messages."""
    yield f"/** {comment} */"
    yield f"export type {name} ="
    names = [one.__name__ for one in types]
    yield from (f"  | {one}" for one in names[:-1])
    yield f"  | {names[-1]};"
    yield ""


def text() -> str:
    """The whole file."""
    of_client, of_server = get_args(ClientMessage), get_args(ServerMessage)
    lines = [HEAD]
    limits = sorted(one for one in messages.__all__ if one.startswith(("MAX_", "PROTOCOL_")))
    lines += [f"export const {name} = {getattr(messages, name)};" for name in limits]
    lines.append(f'export const MAGIC = "{messages.MAGIC}";')
    lines += ["", "/** Codes of Error and Failed, by name. */", "export const ERROR_CODES = {"]
    lines += [f"  {one.name}: {one.value}," for one in ErrorCode]
    lines += ["} as const;", "", "/** Why a choice ended. */", "export const END_REASONS = {"]
    lines += [f"  {one.name}: {one.value}," for one in EndReason]
    lines += ["} as const;", ""]
    parts: list[type[Message]] = [Sampling, StateInfo, LineageEntry]
    for cls in (*parts, *all_messages()):
        lines += interface(cls)
    lines += union("ClientMessage", sorted(of_client, key=tag_of), "What a client may send.")
    lines += union("ServerMessage", sorted(of_server, key=tag_of), "What a server may send.")
    lines += ["export type AnyMessage = ClientMessage | ServerMessage;", ""]
    lines += ["/** The features without which messages may not be sent. */"]
    lines += ["export const FEATURES: Readonly<Record<string, string>> = {"]
    named = {"PromptHint": messages.PREFIX_FEATURE}
    named |= {one.__name__: feature for one, feature in FEATURES.items()}
    lines += [f'  {one}: "{feature}",' for one, feature in sorted(named.items())]
    lines += ["};", "", "/** What closes the lanes of operations that have one reply. */"]
    lines += ["export const REPLIES: Readonly<Record<string, string>> = {"]
    lines += [f'  {one.__name__}: "{reply.__name__}",' for one, reply in REPLIES.items()]
    lines += ["};", "", "const SAMPLING_FIELDS: readonly Field[] = ["]
    lines += [line.removeprefix("  ") for line in table(Sampling) if line.startswith("      ")]
    lines += ["];", "", "/** Sampling with all fields at their defaults. */"]
    lines += ["const SAMPLING = Object.fromEntries("]
    lines += ["  SAMPLING_FIELDS.map((one) => [one.name, one.default!()]),"]
    lines += [") as unknown as Sampling;", ""]
    lines += ["/** The fields of every message in the order in which they travel. */"]
    lines += ["export const MESSAGES: Readonly<Record<string, MessageTable>> = {"]
    lines += ["  Sampling: { tag: null, fields: SAMPLING_FIELDS },"]
    for cls in (*parts[1:], *all_messages()):
        lines += table(cls)
    lines += ["};", "", "/** A message's tag, null for parts of messages, and its fields. */"]
    lines += ["export interface MessageTable {", "  readonly tag: number | null;"]
    lines += ["  readonly fields: readonly Field[];", "}", ""]
    for name, types in (("FROM_CLIENT", of_client), ("FROM_SERVER", of_server)):
        lines += [f"export const {name}: readonly string[] = ["]
        lines += [f'  "{one.__name__}",' for one in sorted(types, key=tag_of)]
        lines += ["];", ""]
    return "\n".join(lines).rstrip() + "\n"


def tag_of(cls: type[Message]) -> int:
    """Of a message."""
    return int(str(cls.__struct_config__.tag))


def main() -> None:
    """Write the file."""
    TARGET.write_text(text(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
