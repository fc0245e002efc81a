"""The operations that change a state, each a function of tensors and of parameters that are JSON.

An operation returns the tensors that it changes; of all others the result has those of the first
parent. It computes in float32, without sums whose order is open: a replay has the same bits.

Which tensors an operation takes unless it is told otherwise: the matrices of the recurrence. They
are the memory; the token shifts are one token's activations, which the next token is mixed with,
and half a token is no token. ``reset`` and ``transplant`` take a layer as a whole.

What attention layers keep of tokens, the guest, is not an operation's to change: keys and values
are of tokens at positions. An operation never gets it, and the result has the first parent's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
import torch
from torch import Tensor

from wkvm.core.errors import InvalidParameterError
from wkvm.core.kinds import KINDS, TensorKind
from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.state.arithmetic import noise, squares

StateTensors: TypeAlias = Mapping[str, Tensor]
"""By name, the tensors of one state's record, without its guest's. To be read, never written."""

MAX_PARENTS = 16
MAX_ITEMS = 1024
"""In a list of layers, heads or tensors."""

Item = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Layer = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ITEMS)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Factor = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Bound = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Deviation = Annotated[float, msgspec.Meta(ge=0, le=100)]
_Few = msgspec.Meta(min_length=1, max_length=MAX_ITEMS)

MATRICES = (TensorKind.MATRIX.value,)
WHOLE_LAYERS = (TensorKind.MATRIX.value, TensorKind.SHIFT.value)


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parameters of all operations.

    Attributes:
        tensors: what is changed: ``matrices``, ``shifts``, a family, or a tensor by its name.
        layers: those that are changed, by their place among the layers of the tensor's family; all
            without it.
    """

    tensors: Annotated[tuple[Item, ...], _Few] = MATRICES
    layers: Annotated[tuple[Layer, ...], _Few] | None = None


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, slots=True)
class Operation(Generic[P]):
    """One way to make a state of others.

    Attributes:
        name: what requests and records call it.
        parameters: their type; what is not of it is refused before ``apply``.
        apply: from the parameters and the parents' tensors, in the order that they were named, to
            the tensors that change. Deterministic. It is never given tokens that wait in a ring.
        min_parents, max_parents: how many states it takes.
        revision: rises whenever the same parameters come to give other bytes.
        layout: the result's, where it is not that of the parents. Its guest is theirs.
        joins: several parents become one memory. Then they have the same pages or are refused: of
            two histories there is no mean. False where what is taken of others leaves the guest be.
    """

    name: str
    parameters: type[P]
    apply: Callable[[P, Sequence[StateTensors]], StateTensors]
    min_parents: int = 1
    max_parents: int = 1
    revision: int = 1
    layout: Callable[[P, StateLayout], StateLayout] | None = None
    joins: bool = True


@dataclass(frozen=True, slots=True)
class _Place:
    """A layer of a tensor: its number, and which of the selected layers it is."""

    name: str
    layer: int
    index: int
    n_selected: int


def selected(parameters: Parameters, state: StateTensors) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors that ``parameters`` name, and the layers of each.

    Raises:
        InvalidParameterError: a name that is none, or a layer that the state does not have.
    """
    open_to_change = {
        name: KINDS[name].value
        for name in state
        if KINDS.get(name) in (TensorKind.MATRIX, TensorKind.SHIFT)
    }
    wanted = set(parameters.tensors)
    known = {name: {name, kind, name.partition(".")[0]} for name, kind in open_to_change.items()}
    if unknown := wanted - set().union(*known.values()):
        raise InvalidParameterError(
            "tensors", f"{min(unknown)!r} is not among {sorted(set().union(*known.values()))}"
        )
    for name, names in known.items():
        if not wanted & names:
            continue
        n_layers = state[name].shape[0]
        layers = range(n_layers) if parameters.layers is None else parameters.layers
        if len(set(layers)) != len(layers):
            raise InvalidParameterError("layers", "a layer is named twice")
        if max(layers) >= n_layers:
            raise InvalidParameterError(
                "layers", f"{max(layers)} is not in [0, {n_layers}), the layers of {name}"
            )
        yield name, tuple(layers)


def _changed(
    parameters: Parameters, state: StateTensors, change: Callable[[Tensor, _Place], Tensor]
) -> dict[str, Tensor]:
    """``state``'s selected layers after ``change``, which gets and returns float32."""
    results = dict[str, Tensor]()
    for name, layers in selected(parameters, state):
        before = state[name]
        result = before.clone()
        for index, layer in enumerate(layers):
            result[layer] = change(before[layer].float(), _Place(name, layer, index, len(layers)))
        results[name] = result
    return results


PerLayer: TypeAlias = (
    Factor | Annotated[tuple[Factor | Annotated[tuple[Factor, ...], _Few], ...], _Few]
)
"""One number; or a list with one for each selected layer; where that is a list, one a head."""
SharePerLayer: TypeAlias = (
    Share | Annotated[tuple[Share | Annotated[tuple[Share, ...], _Few], ...], _Few]
)


def _scaled(field: str, factors: Any, x: Tensor, place: _Place) -> Tensor:
    """``x`` of one layer times its factor, or each of its heads times its own."""
    if isinstance(factors, float):
        return x * factors
    if len(factors) != place.n_selected:
        raise InvalidParameterError(
            field, f"{len(factors)} entries for {place.n_selected} selected layers"
        )
    factor = factors[place.index]
    if isinstance(factor, float):
        return x * factor
    if x.dim() != 3 or len(factor) != x.shape[0]:
        heads = x.shape[0] if x.dim() == 3 else "no"
        raise InvalidParameterError(field, f"{len(factor)} entries, {place.name} has {heads} heads")
    return x * torch.tensor(factor, dtype=torch.float32).view(-1, 1, 1)


class Decay(Parameters, frozen=True, kw_only=True):
    """Forget: 0 is all, 1 is nothing."""

    factor: SharePerLayer


class Scale(Parameters, frozen=True, kw_only=True):
    """Weaken, strengthen or turn around."""

    factor: PerLayer


def _decay(parameters: Decay, parents: Sequence[StateTensors]) -> StateTensors:
    return _changed(
        parameters, parents[0], lambda x, place: _scaled("factor", parameters.factor, x, place)
    )


def _scale(parameters: Scale, parents: Sequence[StateTensors]) -> StateTensors:
    return _changed(
        parameters, parents[0], lambda x, place: _scaled("factor", parameters.factor, x, place)
    )


class Blend(Parameters, frozen=True, kw_only=True):
    """The weighted mean of the parents; without weights each counts the same."""

    weights: Annotated[tuple[Share, ...], _Few] | None = None


def _blend(parameters: Blend, parents: Sequence[StateTensors]) -> StateTensors:
    weights = parameters.weights or (1 / len(parents),) * len(parents)
    if len(weights) != len(parents):
        raise InvalidParameterError("weights", f"{len(weights)} for {len(parents)} states")
    if abs(sum(weights) - 1) > 1e-6:
        raise InvalidParameterError("weights", f"their sum is {sum(weights):g}, not 1")

    def mixed(x: Tensor, place: _Place) -> Tensor:
        total = x * weights[0]
        for parent, weight in zip(parents[1:], weights[1:], strict=True):
            total += parent[place.name][place.layer].float() * weight
        return total

    return _changed(parameters, parents[0], mixed)


class Add(Parameters, frozen=True, kw_only=True):
    """The second parent, ``weight`` times, on top of the first. For ``subtract``: taken away."""

    weight: Factor = 1.0


def _add(parameters: Add, parents: Sequence[StateTensors]) -> StateTensors:
    return _summed(parameters, parents, parameters.weight)


def _subtract(parameters: Add, parents: Sequence[StateTensors]) -> StateTensors:
    return _summed(parameters, parents, -parameters.weight)


def _summed(parameters: Add, parents: Sequence[StateTensors], weight: float) -> StateTensors:
    first, second = parents
    return _changed(
        parameters, first, lambda x, place: x + second[place.name][place.layer].float() * weight
    )


class Reset(Parameters, frozen=True, kw_only=True):
    """Zeros, as before the first token."""

    tensors: Annotated[tuple[Item, ...], _Few] = WHOLE_LAYERS


def _reset(parameters: Reset, parents: Sequence[StateTensors]) -> StateTensors:
    return _changed(parameters, parents[0], lambda x, place: torch.zeros_like(x))


class Transplant(Parameters, frozen=True, kw_only=True):
    """Layers of the second parent in place of the first's. They are to be named."""

    tensors: Annotated[tuple[Item, ...], _Few] = WHOLE_LAYERS


def _transplant(parameters: Transplant, parents: Sequence[StateTensors]) -> StateTensors:
    if parameters.layers is None:
        raise InvalidParameterError("layers", "which layers are to be transplanted?")
    first, second = parents
    return _changed(parameters, first, lambda x, place: second[place.name][place.layer].float())


class Noise(Parameters, frozen=True, kw_only=True):
    """Random numbers on top.

    Attributes:
        deviation: their standard deviation.
        relative: in units of the root mean square of each head's matrix, or of each shift.
        seed: the same one gives the same numbers, on any machine.
    """

    deviation: Deviation
    seed: Seed
    relative: bool = True


def _noise(parameters: Noise, parents: Sequence[StateTensors]) -> StateTensors:
    def noisy(x: Tensor, place: _Place) -> Tensor:
        numbers = noise(parameters.seed, place.name, place.layer, x.numel()).view(x.shape)
        numbers *= parameters.deviation
        if parameters.relative:
            size = prod(x.shape[-2:] if x.dim() == 3 else x.shape)
            root = (squares(x.reshape(-1, size)) / size).sqrt().float()
            numbers *= root.view(-1, 1, 1) if x.dim() == 3 else root
        return x + numbers

    return _changed(parameters, parents[0], noisy)


class Clip(Parameters, frozen=True, kw_only=True):
    """Keep small.

    Attributes:
        max_abs: no element is further from 0.
        max_norm: what is longer, a head's matrix (Frobenius) or a shift, is scaled to that length.
    """

    max_abs: Bound | None = None
    max_norm: Bound | None = None


def _clip(parameters: Clip, parents: Sequence[StateTensors]) -> StateTensors:
    max_abs, max_norm = parameters.max_abs, parameters.max_norm
    if max_abs is None and max_norm is None:
        raise InvalidParameterError("max_abs", "neither this nor max_norm is given")

    def clipped(x: Tensor, place: _Place) -> Tensor:
        if max_abs is not None:
            x = x.clamp(-max_abs, max_abs)
        if max_norm is not None:
            size = prod(x.shape[-2:] if x.dim() == 3 else x.shape)
            norms = squares(x.reshape(-1, size)).sqrt()
            # A bound may be so small that it counts as zero; what is shorter is left as it is.
            factors = torch.where(norms > max_norm, max_norm / norms, 1.0).float()
            x = x * (factors.view(-1, 1, 1) if x.dim() == 3 else factors)
        return x

    return _changed(parameters, parents[0], clipped)


class Cast(Parameters, frozen=True, kw_only=True):
    """Round the matrices to another dtype.

    Attributes:
        dtype: that they are rounded to.
        keep_layout: the result is stored as before; else as ``dtype``, which is another layout, for
            an engine that keeps its states so.
    """

    dtype: Literal["float32", "float16", "bfloat16"]
    keep_layout: bool = True


_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def _cast(parameters: Cast, parents: Sequence[StateTensors]) -> StateTensors:
    dtype = _DTYPES[parameters.dtype]
    if not parameters.keep_layout and (
        parameters.layers is not None or parameters.tensors != MATRICES
    ):
        raise InvalidParameterError("keep_layout", "a layout changes for all matrices, or for none")
    rounded = _changed(parameters, parents[0], lambda x, place: x.to(dtype).float())
    if parameters.keep_layout:
        return rounded
    return {name: tensor.to(dtype) for name, tensor in rounded.items()}


def _cast_layout(parameters: Cast, layout: StateLayout) -> StateLayout:
    if parameters.keep_layout:
        return layout
    tensors = tuple(
        TensorSpec(spec.name, spec.shape, parameters.dtype)
        if KINDS.get(spec.name) is TensorKind.MATRIX
        else spec
        for spec in layout.tensors
    )
    return replace(layout, tensors=tensors)


BUILTIN: tuple[Operation[Any], ...] = (
    Operation("decay", Decay, _decay),
    Operation("scale", Scale, _scale),
    Operation("blend", Blend, _blend, min_parents=2, max_parents=MAX_PARENTS),
    Operation("add", Add, _add, min_parents=2, max_parents=2),
    Operation("subtract", Add, _subtract, min_parents=2, max_parents=2),
    Operation("reset", Reset, _reset),
    Operation("transplant", Transplant, _transplant, min_parents=2, max_parents=2, joins=False),
    Operation("noise", Noise, _noise),
    Operation("clip", Clip, _clip),
    Operation("cast", Cast, _cast, layout=_cast_layout),
)
"""The operations that wkvm has itself."""
