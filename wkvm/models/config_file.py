"""``config.json`` as what an architecture knows of it, with transformers' defaults."""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan, prod
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.weights import Checkpoint

T = TypeVar("T", bound=msgspec.Struct)

MAX_FACTOR = 1e30
"""Of numbers that are multiplied with: float32 ends at 3e38."""

Factor: TypeAlias = Annotated[float, msgspec.Meta(ge=-MAX_FACTOR, le=MAX_FACTOR)]
"""A number that is multiplied with, within a tuple: others are held to it anyway."""

Epsilon: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""What a norm adds under its root."""

MAX_LAYERS = 1024
"""Also of the lists, and of the patterns, that say what each layer is."""

MAX_EXPERTS = 2**18
"""Of all layers together. Names and shapes of all weights are made before any is looked for."""

MAX_SIZE = 2**31 - 1

LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "num_nextn_predict_layers",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What the files call the number of layers, or what has an entry for each; and of experts."""

MAX_SHOWN = 100
"""Characters of a value in a message."""


def read_config(checkpoint: Checkpoint, kind: type[T], config: Mapping[str, Any]) -> T:
    """The fields of ``kind``; one that the file leaves out has its default.

    Args:
        config: the checkpoint's, or a part of it.

    Raises:
        CorruptCheckpointError: one is missing that has no default, is of another type, or is
            such that no model has it: what is made of it would take all memory, or be no number.
    """
    path = str(checkpoint.path)
    try:
        plain = {name: _plain(value) for name, value in config.items()}
        read = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        why = str(error)
        if len(why) > 2 * MAX_SHOWN:
            why = f"{why[:MAX_SHOWN]}...{why[-MAX_SHOWN:]}"
        raise CorruptCheckpointError(path, f"config.json: {why}") from error
    fields = msgspec.structs.asdict(read)
    for name, value in fields.items():
        if _is_absurd(value):
            raise CorruptCheckpointError(path, f"config.json says {name} is {shown(value)}")
    n_layers, n_experts = (
        max([_count(fields[name]) for name in names if name in fields], default=0)
        for names in (LAYERS, EXPERTS)
    )
    if n_layers > MAX_LAYERS or max(n_layers, 1) * n_experts > MAX_EXPERTS:
        why = f"config.json says there are {n_layers} layers and {n_experts} experts in each"
        raise CorruptCheckpointError(path, why)
    return read


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
                f"config.json has {name} {shown(config[name])}; "
                f"run is {' or '.join(map(repr, values))}",
            )


def check_sizes(checkpoint: Checkpoint, **numbers: int) -> None:
    """Check that each of these sizes is at least 1, and that there are weights for it.

    Raises:
        CorruptCheckpointError: one is not.
    """
    n_stored = sum(map(prod, checkpoint.shapes.values()))
    for name, value in numbers.items():
        if value < 1 or (n_stored and value > n_stored):
            why = f"config.json says {name} is {value}"
            raise CorruptCheckpointError(str(checkpoint.path), why)


def shown(value: object) -> str:
    """A value of the file as a message has it: cut off if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _plain(value: Any) -> Any:
    """``value`` with the numbers that JSON does not have: transformers writes them as objects."""
    if isinstance(value, float) and isnan(value):
        raise ValueError("a number is NaN")
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return _plain(float(value["__float__"]))
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _count(value: int | str | Sequence[str] | None) -> int:
    if value is None or isinstance(value, int):
        return value or 0
    return len(value)


def _is_absurd(value: object) -> bool:
    """Whether a field is what no model has. Limits, which are pairs, may be infinite."""
    match value:
        case bool():
            return False
        case int():
            return abs(value) > MAX_SIZE
        case float():
            return not isfinite(value) or abs(value) > MAX_FACTOR
        case list() | tuple() | str():
            return len(value) > MAX_LAYERS
        case _:
            return False
