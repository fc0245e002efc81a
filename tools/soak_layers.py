"""What a soak runs: the layers of docs/reliability.md, the tests that show them, and how often.

An owner of a layer adds its trials here. A trial's tests ask ``tests.soak.amount`` how often to try
and end with ``tests.soak.tell``; what they tell is added up over all parts and held to what is
promised, by the words that were told.
"""

from dataclasses import dataclass

PART_LIMIT_S = 480.0
"""No part may take longer."""
LAYERS = {
    0: "a model of the store and the arena",
    1: "a fault in any system call",
    2: "kill -9 at any time",
    3: "power loss",
    4: "full disks and quotas",
    5: "damaged files",
    6: "frames of the binary protocol",
    7: "requests over HTTP",
    8: "many connections",
    9: "overload and draining",
    10: "a day's work, by counts",
    11: "isolation of tenants",
    12: "files of earlier versions",
    13: "on a GPU",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """How often a thing is tried in all parts together.

    Attributes:
        what, unit: as the tests tell it.
        count: at least so many.
    """

    what: str
    count: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Tests that run in as many processes as there are parts, each with another seed.

    Attributes:
        layer: a key of ``LAYERS``.
        tests: files or node ids, as pytest takes them. What stands in these files, in the code
            that is shipped and in what tests share, is the code of this trial: where none of it
            has changed, parts that are done need not be done again.
        n_parts: how many. Part 1 has the seed 1, and so on.
        part_s: roughly how long a part takes on one core.
        promises: what is told, and how much of it by all parts together.
        needs: programs without which the tests show nothing, such as ``strace``.
    """

    layer: int
    tests: tuple[str, ...]
    n_parts: int
    part_s: float
    promises: tuple[Promise, ...]
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """By which its results are known."""
        return " ".join(self.tests)

    @property
    def files(self) -> tuple[str, ...]:
        """Where its tests are."""
        return tuple(sorted({one.partition("::")[0] for one in self.tests}))


TRIALS: tuple[Trial, ...] = (
    # Layer 0.
    # Layer 1.
    # Layer 2.
    # Layer 3.
    # Layer 4.
    # Layer 5.
    # Layer 6.
    # Layer 7.
    # Layer 8.
    # Layer 9.
    # Layer 10.
    # Layer 11.
    # Layer 12.
    # Threats, and what belongs to no layer.
)
