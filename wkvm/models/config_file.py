"""``config.json`` as what an architecture knows of it, with transformers' defaults."""

from collections.abc import Mapping
from math import isnan, prod
from typing import Any, TypeVar

import msgspec

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.weights import Checkpoint

T = TypeVar("T", bound=msgspec.Struct)


def read_config(checkpoint: Checkpoint, kind: type[T], config: Mapping[str, Any]) -> T:
    """The fields of ``kind``; one that the file leaves out has its default.

    Args:
        config: the checkpoint's, or a part of it.

    Raises:
        CorruptCheckpointError: one is missing that has no default, or is of another type.
    """
    try:
        plain = {name: _plain(value) for name, value in config.items()}
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise CorruptCheckpointError(str(checkpoint.path), f"config.json: {error}") from error


def refuse_others(
    checkpoint: Checkpoint, config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Check fields that would change what is computed.

    Args:
        allowed: by the name of a field, the values that are run. A field that is absent is fine.

    Raises:
        UnsupportedModelError: a field has another value.
    """
    for name, values in allowed.items():
        if name in config and config[name] not in values:
            raise UnsupportedModelError(
                str(checkpoint.path),
                f"config.json has {name} {config[name]!r}; run is {' or '.join(map(repr, values))}",
            )


def check_at_least(checkpoint: Checkpoint, **numbers: int) -> None:
    """Check that each of these sizes is at least 1, and that there are weights for it.

    Nobody is to count to a billion because a file says so.

    Raises:
        CorruptCheckpointError: one is not.
    """
    n_stored = sum(map(prod, checkpoint.shapes.values()))
    for name, value in numbers.items():
        if value < 1 or (n_stored and value > n_stored):
            why = f"config.json says {name} is {value}"
            raise CorruptCheckpointError(str(checkpoint.path), why)


def _plain(value: Any) -> Any:
    """``value`` with the numbers that JSON does not have: transformers writes them as objects."""
    if isinstance(value, float) and isnan(value):
        raise ValueError("a number is NaN")
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return _plain(float(value["__float__"]))
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
