"""Mutations: states made of states, other than by tokens.

A mutation is pure: it reads its parents and makes a new image, or it raises and there is nothing.
What travels beside the tensors comes from the first parent, whatever the operation: the token log,
``n_computed``, the pending id and the sampler's memory. So a state is a function of its token log
and of the mutations on its record, and its next token follows the last one of the first parent.

Of a hybrid the recurrence alone is changed: what its attention layers keep is the first parent's.

With deferred writes a parent may have tokens in its ring. They are taken into its matrices first,
and the result's ring is empty.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from torch import Tensor

import wkvm
from wkvm.core.errors import (
    InvalidParameterError,
    MutationFailedError,
    StateNotFiniteError,
    WkvmError,
)
from wkvm.core.kinds import TensorKind, of_kind
from wkvm.core.layout import StateLayout
from wkvm.core.registry import Parent, Provenance
from wkvm.state.arithmetic import not_finite
from wkvm.state.folding import Fold, folded
from wkvm.state.guest_changes import check_parents, check_tensors, without_guest
from wkvm.state.image import StateImage, views_of
from wkvm.state.memory import host_memory
from wkvm.state.operations import BUILTIN, Operation, Parameters

GROUP = "wkvm.mutations"
"""The entry points that plug-ins are found by. Each is named like its operation."""

AnyOperation: TypeAlias = Operation[Any]
REVISION = "revision"
"""The key in a record's parameters that says which revision of the operation made it."""


@dataclass(frozen=True, slots=True)
class Mutated:
    """A new state and how it came to be.

    Attributes:
        image: the state.
        provenance: enough, with the parents, to make the same bytes again.
    """

    image: StateImage
    provenance: Provenance


class Mutations:
    """The operations that may be asked for.

    Attributes:
        operations: by name.
        broken: plug-ins that could not be loaded, and why. Asking for one of them raises.
    """

    def __init__(
        self,
        plugins: Iterable[AnyOperation] = (),
        broken: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._builtin = frozenset(one.name for one in BUILTIN)
        self.operations: Mapping[str, AnyOperation] = MappingProxyType(
            {one.name: one for one in (*plugins, *BUILTIN)}
        )
        self.broken = MappingProxyType(dict(broken))

    @classmethod
    def installed(cls, found: Iterable[EntryPoint] | None = None) -> "Mutations":
        """The built-in operations and those of all plug-ins.

        A plug-in that cannot be loaded, is no operation, or has a name that is taken, is in
        ``broken``; it stops no other. Nothing is raised.

        Args:
            found: the entry points; without it those of the installed packages. Loading one runs
                its module.
        """
        plugins, broken = dict[str, AnyOperation](), dict[str, str]()
        taken = {one.name for one in BUILTIN}
        for point in entry_points(group=GROUP) if found is None else found:
            if point.name in taken:
                broken[point.value] = f"an operation {point.name!r} exists already"
                continue
            try:
                plugins[point.name] = _checked(point.name, point.load())
                taken.add(point.name)
            except Exception as error:  # noqa: BLE001  somebody else's module raises just anything
                broken[point.name] = f"{point.value}: {type(error).__name__}: {error}"
        return cls(plugins.values(), broken)

    def apply(
        self,
        name: str,
        parameters: Mapping[str, Any],
        parents: Sequence[StateImage],
        *,
        refs: Sequence[Parent] = (),
        fold: Fold | None = None,
    ) -> Mutated:
        """Make a new state of ``parents``. They are not changed.

        On the calling thread: 3 to 12 ms for states of 12.8 MB, and 110 ms for noise. Pages are
        copied once and looked through once, about 0.3 ms a MiB.

        Args:
            name: of the operation.
            parameters: as JSON has them.
            parents: in order; what is not changed comes from the first.
            refs: what the parents are called, for the record; as many, or none.
            fold: takes the tokens in a parent's ring into its matrices.

        Raises:
            InvalidParameterError: there is no such operation, or these are no parameters of it, or
                it takes another number of parents, or a ring is not empty and there is no ``fold``,
                or attention layers would have to forget, or to remember two histories.
            StateMismatchError: the parents belong to different models or have different layouts.
            StateNotFiniteError: the result has NaN or infinity.
            MutationFailedError: a plug-in is broken, raised, or returned what does not fit.
        """
        operation = self._operation(name)
        if not operation.min_parents <= len(parents) <= operation.max_parents:
            takes = f"{operation.min_parents} to {operation.max_parents}"
            raise InvalidParameterError("parents", f"{name} takes {takes}, not {len(parents)}")
        if refs and len(refs) != len(parents):
            raise ValueError(f"{len(refs)} refs of {len(parents)} parents")
        given = _read(operation, parameters)
        for other in parents[1:]:
            other.check_fits(parents[0].identity)
        check_tensors(name, given.tensors, parents[0].layout)
        if operation.joins and parents[0].layout.guest is not None:
            check_parents(name, parents)
        whole = [folded(image, fold) for image in parents]
        image = self._result(operation, given, whole)
        canonical = msgspec.json.decode(msgspec.json.encode(given))  # lists, as a record has them
        provenance = Provenance(
            operation=name,
            parameters={**canonical, REVISION: operation.revision},
            parents=tuple(refs),
            n_before=parents[0].carried.n_computed,
            n_after=image.carried.n_computed,
            seed=canonical.get("seed"),
            engine=wkvm.__version__,
        )
        return Mutated(image, provenance)

    def replay(
        self, provenance: Provenance, parents: Sequence[StateImage], *, fold: Fold | None = None
    ) -> Mutated:
        """Do again what ``provenance`` records: from the same parents come the same bytes.

        Raises:
            InvalidParameterError: it was another revision of the operation.
            WkvmError: as ``apply``.
        """
        parameters = dict(provenance.parameters)
        revision = parameters.pop(REVISION, None)
        here = self._operation(provenance.operation).revision
        if revision != here:
            raise InvalidParameterError(
                "operation",
                f"{provenance.operation} was done by revision {revision!r}; here is {here}",
            )
        refs = provenance.parents
        return self.apply(provenance.operation, parameters, parents, refs=refs, fold=fold)

    def _operation(self, name: str) -> AnyOperation:
        operation = self.operations.get(name)
        if operation is not None:
            return operation
        if name in self.broken:
            raise MutationFailedError(name, self.broken[name])
        raise InvalidParameterError("operation", f"not one of {sorted(self.operations)}")

    def _result(
        self, operation: AnyOperation, parameters: Parameters, parents: Sequence[StateImage]
    ) -> StateImage:
        first = parents[0]
        if operation.name in self._builtin:
            layout = (
                operation.layout(parameters, first.layout) if operation.layout else first.layout
            )
            changed = operation.apply(parameters, [without_guest(image) for image in parents])
        else:
            layout, changed = _plugin_result(operation, parameters, parents)
        n_bytes = layout.image_bytes(first.carried.n_computed)
        record = host_memory(n_bytes)
        before, after = first.views(), views_of(layout, record)
        ring = {one.name for one in of_kind(layout, TensorKind.RING, TensorKind.RING_FILL)}
        for name in after.keys() - ring:  # a ring stays empty
            # Rounded once, to the dtype that the state is kept in.
            after[name].copy_(changed.get(name, before[name]))
        if (bad := not_finite(after)) is not None:
            raise StateNotFiniteError(bad)
        identity = replace(first.identity, fingerprint=layout.fingerprint)
        return replace(first, identity=identity, layout=layout, record=record)


def _read(operation: AnyOperation, parameters: Mapping[str, Any]) -> Parameters:
    try:
        return msgspec.convert(dict(parameters), operation.parameters)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$").lstrip(".").partition("[")[0]
        raise InvalidParameterError(field or "parameters", why) from error
    except RecursionError as error:
        raise InvalidParameterError("parameters", "nested too deeply") from error


def _checked(name: str, loaded: Any) -> AnyOperation:
    """What an entry point led to, if it is an operation of that name."""
    if not isinstance(loaded, Operation):
        raise TypeError(f"is a {type(loaded).__name__}, not an Operation")
    if loaded.name != name:
        raise ValueError(f"is the operation {loaded.name!r}")
    if not issubclass(loaded.parameters, Parameters):
        raise TypeError("its parameters are no Parameters")
    if REVISION in loaded.parameters.__struct_fields__:
        raise ValueError(f"has a parameter {REVISION!r}")
    if not 1 <= loaded.min_parents <= loaded.max_parents:
        raise ValueError(f"takes {loaded.min_parents} to {loaded.max_parents} parents")
    return loaded


def _plugin_result(
    operation: AnyOperation, parameters: Parameters, parents: Sequence[StateImage]
) -> tuple[StateLayout, Mapping[str, Tensor]]:
    """What somebody else's code makes of copies of the parents, checked."""
    first = parents[0]
    copies = [
        {name: tensor.clone() for name, tensor in without_guest(image).items()} for image in parents
    ]
    try:
        layout = operation.layout(parameters, first.layout) if operation.layout else first.layout
        changed = operation.apply(parameters, copies)
        _check_fits(layout, first.layout, changed)
    except WkvmError:
        raise
    except Exception as error:
        raise MutationFailedError(operation.name, f"{type(error).__name__}: {error}") from error
    return layout, changed


def _check_fits(layout: StateLayout, before: StateLayout, changed: Any) -> None:
    if [(spec.name, spec.shape) for spec in layout.tensors] != [
        (spec.name, spec.shape) for spec in before.tensors
    ]:
        raise ValueError("its layout has other tensors than its parents'")
    if layout.guest != before.guest:
        raise ValueError("its layout has other pages than its parents'")
    if not isinstance(changed, Mapping):
        raise TypeError(f"it returned a {type(changed).__name__}, not tensors by name")
    open_to_change = {
        spec.name: spec for spec in of_kind(layout, TensorKind.MATRIX, TensorKind.SHIFT)
    }
    for name, tensor in changed.items():
        spec = open_to_change.get(name)
        if spec is None:
            raise ValueError(f"it returned {name!r}, which is not to be changed")
        if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
            raise TypeError(f"{name} is not a tensor of floats")
        if tuple(tensor.shape) != spec.shape or tensor.device.type != "cpu":
            raise ValueError(f"{name} is {tuple(tensor.shape)}, the layout says {spec.shape}")
