"""What may stand where a body has a value that is none of several."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_ENUM = re.compile(r"Invalid enum value (?P<value>.+) - at `\$(?P<path>.*)`", re.DOTALL)
_type_info = functools.cache(inspect.type_info)
_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?:\d+|\.\.\.)\]")


def with_allowed(why: str, kind: Any) -> str:
    """What msgspec says of a value, and which values there are, where it is one of a few.

    Args:
        why: msgspec's message.
        kind: what the body was to be.

    Returns:
        The message in msgspec's form, with the place at its end; unchanged where it is about
        something else.
    """
    said = _ENUM.fullmatch(why)
    if said is None:
        return why
    steps = [step["name"] for step in _STEP.finditer(said["path"])]
    values = dict.fromkeys(_values(_type_info(kind), steps))
    if not values:
        return why
    listed = ", ".join(map(repr, values))
    return f"{said['value']} is none of {listed} - at `${said['path']}`"


def _values(info: inspect.Type, steps: list[str | None]) -> Iterator[Any]:
    """The values at the end of a way into a type: names of fields, and None for an item."""
    if isinstance(info, inspect.UnionType):
        for one in info.types:
            yield from _values(one, steps)
    elif isinstance(info, inspect.Metadata):
        yield from _values(info.type, steps)
    elif not steps:
        if isinstance(info, inspect.LiteralType):
            yield from info.values
        elif isinstance(info, inspect.EnumType):
            yield from (one.value for one in info.cls)
    elif isinstance(info, inspect.StructType):
        for field in info.fields:
            if field.encode_name == steps[0]:
                yield from _values(field.type, steps[1:])
    elif isinstance(info, inspect.CollectionType) and steps[0] is None:
        yield from _values(info.item_type, steps[1:])
    elif isinstance(info, inspect.DictType):
        yield from _values(info.value_type, steps[1:])
