"""How a turn took the ids that it absorbed, so that part of it can be done again to the bit.

Of the ids after its start the first may have been pending there, the next came as a prompt, and
the others one by one as it produced them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wkvm.core.registry import VersionRecord


@dataclass(frozen=True, slots=True)
class Path:
    """Ids to absorb after a state, each part in its way; the last of all of them stays pending.

    Attributes:
        pending: absorbed first: none, or one.
        prompt: absorbed as a prompt.
        outputs: absorbed one by one.
    """

    pending: tuple[int, ...]
    prompt: Sequence[int]
    outputs: Sequence[int]

    @property
    def n_ids(self) -> int:
        """How many ids there are in all."""
        return len(self.pending) + len(self.prompt) + len(self.outputs)


def path_of(ids: Sequence[int], first: int, n_given: int, *, pending: Sequence[int] = ()) -> Path:
    """The path that ``ids`` from number ``first`` on took.

    Args:
        ids: a sequence from its start, up to where the path is to lead.
        first: how many of them the state has absorbed that the path starts from.
        n_given: how many of them were given, to the turn or before it; the others were produced.
        pending: of the state that it starts from. If it is not what comes next, it was dropped.
    """
    if first >= n_given:
        # Within the output: what comes next was pending, though it was not kept as such.
        return Path(tuple(ids[first : first + 1]), (), ids[first + 1 :])
    came = tuple(pending) if tuple(ids[first : first + len(pending)]) == tuple(pending) else ()
    at = first + len(came)
    return Path(came, ids[at:n_given], ids[max(at, n_given) :])


def n_given_of(record: VersionRecord) -> int:
    """How many ids of the sequence of a version were given, to its last turn or before it."""
    n_output = record.provenance.parameters.get("n_output", 0)
    n_ids = record.n_computed + record.n_pending
    return n_ids - n_output if isinstance(n_output, int) else n_ids
