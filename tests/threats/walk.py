"""Every place of a type into which a client may write: found by walking it, not by a list.

A body of HTTP and a message of the binary protocol are msgspec types, and their decoders are made
from these. So what is found here is what is taken, and a field that is added later is found too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import inspect

MAX_DEPTH = 6
"""Types within types; some contain themselves."""

Wrap = Callable[[Any], Any]


@dataclass(frozen=True)
class Place:
    """Somewhere in a value of a type.

    Attributes:
        path: what leads there: names of fields, ``[]`` in a list, ``{}`` a key, ``{:}`` a value.
        kind: of what is there.
        wrap: from what is put there to the value of the outermost field.
    """

    path: tuple[str, ...]
    kind: inspect.Type
    wrap: Wrap

    @property
    def is_in_list(self) -> bool:
        """Whether it is one of several, or the first of a pair of them."""
        return self.path[-1] in ("[]", "0")

    @property
    def field(self) -> str:
        """The outermost field."""
        return self.path[0]

    def __str__(self) -> str:
        return ".".join(self.path)

    def within(self, step: str, kind: inspect.Type, wrap: Wrap) -> "Place":
        """A place inside of this one."""
        outer = self.wrap
        return Place((*self.path, step), kind, lambda value: outer(wrap(value)))


@dataclass(frozen=True)
class Samples:
    """Values that may be, to be around the one that is tried.

    Attributes:
        by_name: of fields.
        inside: types of what a type does not say: by the name of its field.
    """

    by_name: Mapping[str, Any]
    inside: Mapping[str, type]

    def of_struct(self, kind: inspect.StructType, /, **but: Any) -> Any:
        """A struct with the fields that it needs, and those of ``but``."""
        if kind.array_like:
            return self.of_array(kind, **but)
        needed = {
            one.encode_name: self.of(one.type, one.encode_name)
            for one in kind.fields
            if one.required and one.encode_name not in but
        }
        if kind.tag is not None and kind.tag_field is not None:
            needed[kind.tag_field] = kind.tag
        return needed | but

    def of_array(self, kind: inspect.StructType, /, **but: Any) -> list[Any]:
        """Likewise where a struct is an array: with all fields that it has."""
        whole = [] if kind.tag is None else [kind.tag]
        for one in kind.fields:
            if one.name in but:
                value = but[one.name]
            elif one.required or one.name in self.by_name:
                value = self.of(one.type, one.name)
            else:
                value = msgspec.to_builtins(one.default, builtin_types=(bytes,))
            whole.append(value)
        return whole

    def of(self, kind: inspect.Type, name: str = "") -> Any:
        """Something of a type."""
        if name in self.by_name:
            return self.by_name[name]
        match kind:
            case inspect.Metadata(type=inner):
                return self.of(inner, name)
            case inspect.UnionType(types=kinds):
                return self.of(kinds[0], name)
            case inspect.LiteralType(values=values):
                return values[0]
            case inspect.StructType():
                return self.of_struct(kind)
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                return [self.of(item)]
            case inspect.TupleType(item_types=items):
                return [self.of(item) for item in items]
            case inspect.DictType(key_type=key, value_type=value):
                return {str(self.of(key)): self.of(value)}
            case inspect.BoolType():
                return True
            case inspect.IntType() | inspect.FloatType():
                return 1
            case inspect.BytesType():
                return b""
            case inspect.EnumType(cls=cls):
                return next(iter(cls)).value
            case _:
                return "x"


def places(kind: Any, samples: Samples) -> Iterator[Place]:
    """All places of a struct, the containers among them, from the outside in."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), kind
    for one in info.fields:
        yield from _inside(Place((one.encode_name,), one.type, lambda value: value), samples)


def _inside(place: Place, samples: Samples) -> Iterator[Place]:
    kind = place.kind
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            if not isinstance(one, inspect.NoneType):
                yield from _inside(Place(place.path, one, place.wrap), samples)
        return
    yield Place(place.path, kind, place.wrap)
    if len(place.path) >= MAX_DEPTH:
        return
    match kind:
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _inside(place.within("[]", item, lambda value: [value]), samples)
        case inspect.TupleType(item_types=items):
            for at, item in enumerate(items):
                step = place.within(str(at), item, partial(_put, samples.of(kind), at))
                yield from _inside(step, samples)
        case inspect.DictType() if place.path[-1] in samples.inside:
            inner = inspect.type_info(samples.inside[place.path[-1]])
            assert isinstance(inner, inspect.StructType)
            yield from _fields(place, inner, samples)
        case inspect.DictType(key_type=key, value_type=item):
            of_key = str(samples.of(key, place.path[-1] + "{}"))
            of_item = samples.of(item)
            yield place.within("{}", key, lambda value: {value: of_item})
            yield from _inside(place.within("{:}", item, lambda value: {of_key: value}), samples)
        case inspect.StructType():
            yield from _fields(place, kind, samples)
        case _:
            pass


def _fields(place: Place, kind: inspect.StructType, samples: Samples) -> Iterator[Place]:
    for one in kind.fields:
        name = one.encode_name
        step = place.within(name, one.type, partial(_with, samples, kind, name))
        yield from _inside(step, samples)


def _with(samples: Samples, kind: inspect.StructType, name: str, value: Any) -> Any:
    return samples.of_struct(kind, **{name: value})


def _put(whole: list[Any], at: int, value: Any) -> list[Any]:
    return [*whole[:at], value, *whole[at + 1 :]]
