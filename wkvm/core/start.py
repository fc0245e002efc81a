"""Where a request begins if not at nothing, and what is left of one that is to go on later.

A record is a state as the runner has it: the core passes it on and looks at nothing in it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wkvm.core.registry import SamplerMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """A state that a request begins from. Nothing in it may change while requests use it.

    Attributes:
        record: the state's image, ``[image_bytes(n_computed)]`` uint8 in host memory. Requests
            that begin from the same object at the same time share one transfer, and as long as
            one of them lives the full pages of its guest. From pinned memory it goes to a GPU at
            once; other memory is first copied by the thread that launches steps.
        n_computed: how many tokens it has absorbed.
        pending: ids that are absorbed before the prompt: sampled, or held back, and not fed.
        memory: what the sampler remembers. Its key is the request's, unless that has a seed or
            wants a fresh one. Without it nothing was sampled yet, and ``pending`` is of a prompt.
        log: the tokens that it has absorbed, as far as they are known: they are what the
            repetition penalty has seen.
    """

    record: Any
    n_computed: int
    pending: tuple[int, ...] = ()
    memory: SamplerMemory | None = None
    log: Sequence[int] = ()

    @property
    def was_sampled(self) -> bool:
        """Whether ``pending`` is output, not of a prompt."""
        return self.memory is not None and self.memory.n_generated > 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saved:
    """The state of a request, and what a request that goes on from it needs.

    Attributes:
        record: ``[image_bytes(n_computed)]`` uint8 in host memory; nobody writes to it any more.
        n_computed: how many tokens it has absorbed, those before the request included.
        absorbed: which of them this request absorbed, in order.
        pending: the id that was sampled, or held back, and not fed; or none.
        memory: of the sampler; None if nothing was ever sampled.
    """

    record: Any
    n_computed: int
    absorbed: Sequence[int]
    pending: tuple[int, ...]
    memory: SamplerMemory | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """What is put into a slot, and told to the sampler, before the first row of a request.

    Attributes:
        record: as in ``Start``.
        n_start: tokens that were absorbed before the request: the positions of random numbers
            are counted from there.
        counts: of the penalties, by id, as in ``SamplerMemory``; empty for a request without.
        seen: ids that occurred before; empty likewise.
        fed_output: ids of output that the request absorbs with its prompt. They are counted
            before it.
        slot: where the record is on the device instead; its pages are granted with the slot.
    """

    record: Any
    n_start: int
    counts: Sequence[tuple[int, float]] = ()
    seen: Collection[int] = ()
    fed_output: tuple[int, ...] = ()
    slot: int | None = None


class Save(NamedTuple):
    """A slot whose state is copied to the host, and the number under which the copy comes back.

    Attributes:
        pages: that hold its tokens, in order, if all rows of the plans before run. They are
            nobody else's until the copy has come back; rows write to the last one alone, and to
            that only if it is not full.
        check_from: look for NaN and infinity in the record, and in ``pages`` from this one on: a
            state with any is not saved. None for not looking.
    """

    slot: int
    ticket: int
    pages: tuple[int, ...] = ()
    check_from: int | None = None


class Copy(NamedTuple):
    """A slot whose record is copied to another one, and looked at for NaN and infinity.

    Attributes:
        ticket: under which it is told that they are there; no Save has it.
        pages: that are looked at, too.
    """

    source: int
    target: int
    ticket: int
    pages: tuple[int, ...] = ()


class Grant(NamedTuple):
    """The pages of the guest pool that a slot has from here on, until its next grant.

    Attributes:
        pages: for all tokens that its request may ever absorb, in order.
        n_shared: how many of the first ones hold what they should: full pages of ``record``,
            which a grant before this one fills. Nobody writes to them.
        record: the image whose pages are put into the first of the others; None for none.
        ticket: no other grant has it.
        beside: whether the image is loaded while other steps run, and that it is told under the
            ticket. Else it is there before the rows of the plan.
    """

    slot: int
    pages: tuple[int, ...]
    n_shared: int = 0
    record: Any = None
    ticket: int = 0
    beside: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SavedRecord:
    """A state as the runner gives it back.

    Attributes:
        record: as in ``Saved``.
        counts, seen: of the penalties, for a request that has some: ids of the output and how
            often, less by decay; and all ids that occurred.
    """

    record: Any
    counts: tuple[tuple[int, float], ...] = ()
    seen: frozenset[int] = field(default_factory=frozenset[int])
