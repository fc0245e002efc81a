"""The faults that ``tools.mutants`` plants, by what they are in."""

from tools.faults.doors import DOORS
from tools.faults.ends import ENDS
from tools.faults.engine import ENGINE
from tools.faults.fault import Fault
from tools.faults.moves import MOVES
from tools.faults.overload import OVERLOAD
from tools.faults.store import STORE
from tools.faults.tenants import TENANTS

FAULTS: tuple[Fault, ...] = (*STORE, *ENGINE, *TENANTS, *DOORS, *ENDS, *OVERLOAD, *MOVES)

__all__ = ["FAULTS", "Fault"]
