"""What is said of durable states: names, identities, versions, provenance, acknowledgements.

Types and rules alone. Where the bytes are, and what holds after a crash, is ``wkvm.state``'s.
"""

import enum
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self, cast

from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Grammar

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
"""What a handle may be called. A name is data: it never becomes part of a path."""

MAX_VERSION = 2**53
"""Versions fit a float64 exactly, for readers that have no other numbers."""

TAIL_IDS = 32
"""How many of a state's last ids are known without reading its bytes."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DIGITS = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]*", re.ASCII)


class AckClass(enum.Enum):
    """What a reply promises about the operation that it answers. Each includes the ones before.

    ACCEPTED: it is queued. VISIBLE: others see it; it is in memory and a crash loses it.
    DURABLE: it survives a crash and a loss of power.
    """

    ACCEPTED = "accepted"
    VISIBLE = "visible"
    DURABLE = "durable"


class Durability(enum.Enum):
    """What a client asks of a commit. MEMORY is answered by VISIBLE, DISK by DURABLE."""

    MEMORY = "memory"
    DISK = "disk"


class Ref(NamedTuple):
    """``name`` or ``name@version``. Without a version the newest one, the head, is meant."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def check_name(name: object, where: str = "name") -> str:
    """The name, if it is one.

    Raises:
        InvalidParameterError: it is not what ``NAME`` says.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidParameterError(
            where, "1 to 128 of A-Z a-z 0-9 . _ -, and a letter or digit first"
        )
    return name


def parse_ref(text: str, where: str = "state") -> Ref:
    """Read ``name`` or ``name@version``.

    Raises:
        InvalidParameterError: it is neither.
    """
    name, at, digits = text.partition("@")
    check_name(name, where)
    if not at:
        return Ref(name)
    if _DIGITS.fullmatch(digits) is None or int(digits) > MAX_VERSION:
        raise InvalidParameterError(where, "after the @ comes a version, a number from 1")
    return Ref(name, int(digits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which model a state belongs to. States fit a model iff all three are equal.

    Attributes:
        model_digest: hex, of the weights.
        fingerprint: hex, of the layout.
        tokenizer_digest: hex; empty where the model came without a tokenizer.
    """

    model_digest: str
    fingerprint: str
    tokenizer_digest: str = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not isinstance(value, str) or len(value) > 128 or _HEX.fullmatch(value) is None:
                raise ValueError(f"{one.name}: {value!r} is not a hex digest")

    def to_json(self) -> dict[str, str]:
        """As JSON holds it."""
        return {
            "model_digest": self.model_digest,
            "fingerprint": self.fingerprint,
            "tokenizer_digest": self.tokenizer_digest,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The reverse of ``to_json``.

        Raises:
            ValueError: it is not what ``to_json`` makes.
        """
        return cls(**_exactly(value, cls))


class RandomKey(NamedTuple):
    """Which random numbers a state draws from: each in ``[0, 2^64)``."""

    seed: int
    branch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerMemory:
    """What the sampler remembers of a sequence, beyond the model's state.

    Attributes:
        seed, branch: the key of the random numbers.
        position: the counter of the next random number.
        n_generated: how many ids were sampled since the request began.
        seen: ids that were in the prompt or the output, for the repetition penalty. Ascending.
        counts: pairs of id and how often it was in the output; with a decay, less. By id.
        grammar: what the output follows; None if nothing.
        grammar_ids: what the grammar has been told since it began, in order.
    """

    seed: int
    branch: int
    position: int = 0
    n_generated: int = 0
    seen: tuple[int, ...] = ()
    counts: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    grammar_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seed", "branch", "position", "n_generated"):
            _check_integer(name, getattr(self, name), 2**64)
        for name in ("seen", "grammar_ids"):
            _check_ids(name, getattr(self, name))
        _check_ids("counts", tuple(token_id for token_id, _ in self.counts))
        if not all(type(n) in (int, float) and math.isfinite(n) for _, n in self.counts):
            raise ValueError("counts: a count is not a finite number")

    @property
    def key(self) -> RandomKey:
        """Seed and branch."""
        return RandomKey(self.seed, self.branch)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        grammar = self.grammar
        return {
            "seed": self.seed,
            "branch": self.branch,
            "position": self.position,
            "n_generated": self.n_generated,
            "seen": list(self.seen),
            "counts": [list(pair) for pair in self.counts],
            "grammar": None if grammar is None else [grammar.kind, grammar.source],
            "grammar_ids": list(self.grammar_ids),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The reverse of ``to_json``.

        Raises:
            ValueError: it is not what ``to_json`` makes.
        """
        given = _exactly(value, cls)
        try:
            given["seen"] = tuple(given["seen"])
            given["grammar_ids"] = tuple(given["grammar_ids"])
            given["counts"] = tuple((token_id, n) for token_id, n in given["counts"])
            if given["grammar"] is not None:
                given["grammar"] = Grammar(*given["grammar"])
        except (TypeError, InvalidParameterError) as error:
            raise ValueError(f"not a sampler's memory: {error}") from error
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What travels with the tensors of a state, so that a continuation is exact.

    Attributes:
        n_computed: how many tokens the tensors have absorbed.
        pending: ids that were sampled and not fed: none or one.
        sampler: None for a state that nothing was sampled from.
    """

    n_computed: int
    pending: tuple[int, ...] = ()
    sampler: SamplerMemory | None = None

    def __post_init__(self) -> None:
        _check_integer("n_computed", self.n_computed, 2**48)
        _check_ids("pending", self.pending)
        if len(self.pending) > 1:
            raise ValueError(f"pending: {len(self.pending)} ids, where one at most can be")

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "n_computed": self.n_computed,
            "pending": list(self.pending),
            "sampler": None if self.sampler is None else self.sampler.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The reverse of ``to_json``.

        Raises:
            ValueError: it is not what ``to_json`` makes.
        """
        given = _exactly(value, cls)
        if not isinstance(given["pending"], list):
            raise ValueError("pending: not a list")
        given["pending"] = tuple(cast("list[int]", given["pending"]))
        if given["sampler"] is not None:
            given["sampler"] = SamplerMemory.from_json(given["sampler"])
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """One state that another was made from.

    Attributes:
        ref: ``name@version`` as it was then; empty for bytes that never had a name.
        content_id: of the bytes, which keeps its meaning after renames and deletions; empty for
            no bytes.
    """

    ref: str
    content_id: str


NOTHING = Parent(ref="", content_id="")
"""The first parent of what continues none of its parents: it was made from its first token on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How a version came to be. Replaying it makes the same bytes where the engine promises so.

    Attributes:
        operation: such as ``create``, ``generate``, ``fork``, ``decay``.
        parameters: as JSON can hold them.
        parents: what it was made from, the first one being what it continues.
        n_before, n_after: tokens that the state had absorbed, before and after.
        seed: of the random numbers that the operation drew; None if it drew none.
        engine: the version of wkvm that did it.
        cuts: where a prompt was cut, counted from its start, if that moves bits.
    """

    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parents: tuple[Parent, ...] = ()
    n_before: int = 0
    n_after: int = 0
    seed: int | None = None
    engine: str = ""
    cuts: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "operation": self.operation,
            "parameters": dict(self.parameters),
            "parents": [[one.ref, one.content_id] for one in self.parents],
            "n_before": self.n_before,
            "n_after": self.n_after,
            "seed": self.seed,
            "engine": self.engine,
            "cuts": list(self.cuts),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The reverse of ``to_json``.

        Raises:
            ValueError: it is not what ``to_json`` makes.
        """
        given = _exactly(value, cls)
        try:
            given["parents"] = tuple(
                Parent(ref=ref, content_id=content_id) for ref, content_id in given["parents"]
            )
            given["cuts"] = tuple(given["cuts"])
        except TypeError as error:
            raise ValueError(f"not a provenance: {error}") from error
        return cls(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One version of a handle. It never changes, but for ``ack``, which rises.

    Attributes:
        tenant, name, version: what it is called. A handle that was renamed has its new name.
        content_id: hex BLAKE3 of the payload; equal for versions with equal bytes.
        n_bytes: of the payload.
        identity: which model it belongs to.
        n_computed: tokens that the state has absorbed.
        n_pending: ids that were sampled and not fed.
        tail: the last of the token log and the pending ids, ``TAIL_IDS`` at most.
        key: the random numbers that a continuation draws from, where they are not those that
            the payload names: a fork shares its parent's bytes.
        provenance: how it came to be.
        created_at: seconds since 1970.
        ack: VISIBLE, and DURABLE once it is.
    """

    tenant: str
    name: str
    version: int
    content_id: str
    n_bytes: int
    identity: Identity
    n_computed: int
    n_pending: int
    tail: tuple[int, ...]
    key: RandomKey | None
    provenance: Provenance
    created_at: float
    ack: AckClass

    @property
    def ref(self) -> Ref:
        """Name and version."""
        return Ref(self.name, self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleRecord:
    """A handle as it is now.

    Attributes:
        tenant, name: what it is called.
        head: its newest version.
        n_versions: how many versions it has.
        tags: the client's own.
        created_at, updated_at: seconds since 1970.
        expires_at: from then on it is as if it had been deleted; None for never.
    """

    tenant: str
    name: str
    head: VersionRecord
    n_versions: int
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    created_at: float
    updated_at: float
    expires_at: float | None = None


def canonical_json(value: Any) -> str:
    """The one text of a value: ASCII, keys in order, no spaces.

    Raises:
        TypeError, ValueError: JSON does not have such a value.
    """
    return _ENCODER.encode(value)


def _exactly(value: Any, cls: type[Any]) -> dict[str, Any]:
    names: tuple[str, ...] = cls.__slots__
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if given.keys() != set(names):
        raise ValueError(f"{cls.__name__} has the fields {sorted(names)}")
    return dict(given)


def _check_integer(name: str, value: Any, stop: int) -> None:
    if type(value) is not int or not 0 <= value < stop:
        raise ValueError(f"{name}: {value!r} is not an integer in [0, {stop})")


def _check_ids(name: str, ids: tuple[int, ...]) -> None:
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= 2**31):
        raise ValueError(f"{name}: not ids")
