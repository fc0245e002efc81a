"""``wkvm bench``: hands over to the benchmarks, which sit above this package."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def run(arguments: Sequence[str]) -> NoReturn:
    """Become ``python -m wkvm_bench`` with these arguments. Does not return.

    Not an import: nothing in ``wkvm`` may depend on what measures it.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "wkvm_bench", *arguments])
