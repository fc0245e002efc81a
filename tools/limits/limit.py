"""What a row of the tables is."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["", "B", "s", "B/s", "share"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One row.

    Attributes:
        what: is limited.
        by: the flag that sets it, or the value, where no flag does.
        beyond: what becomes of what is more.
        test: that shows it, in ``tests``.
        unit: of the value; none where it is a count.
    """

    what: str
    by: str | float
    beyond: str
    test: str
    unit: Unit = ""
