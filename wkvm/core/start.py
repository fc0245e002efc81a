"""States at both ends of a request: what it goes on from, and what is handed out at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wkvm.core.registry import SamplerMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """The state that a request goes on from.

    Attributes:
        record: the bytes of a slot, in host memory: opaque here, and not to be written to. Several
            requests with one object cost one upload.
        n_computed: tokens that it has absorbed.
        pending: ids that were sampled and not fed, which come before the prompt: one at most.
        memory: what the sampler remembers; None for nothing.
    """

    record: Any
    n_computed: int
    pending: tuple[int, ...] = ()
    memory: SamplerMemory | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saved:
    """The state of a request, copied to host memory.

    Attributes:
        record: the bytes of its slot; whoever gets it owns it.
        n_computed: tokens that it has absorbed, those of the start included.
        absorbed: the ids absorbed since the start, in order.
        pending: the id that was sampled and not absorbed: what stopped it, or its last output.
        memory: what the sampler remembers.
    """

    record: Any
    n_computed: int
    absorbed: Sequence[int]
    pending: tuple[int, ...]
    memory: SamplerMemory
