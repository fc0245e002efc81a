"""How much of a test runs: a little in the suite, and in ``make soak`` as much as was promised.

A test of a layer of [docs/reliability.md] asks ``amount`` how often to try, draws everything that
is random from ``seed``, and says with ``tell`` what it did. ``tools/soak.py`` runs such a test many
times, with other seeds, and adds up what was told.
"""

import json
import os
from pathlib import Path

SOAKING = os.environ.get("WKVM_SOAK") == "1"


def amount(suite: int, part: int) -> int:
    """Return how often a test tries: ``suite`` times, or ``part`` times in one part of a soak."""
    return part if SOAKING else suite


def seed(otherwise: int = 0) -> int:
    """What this run's random choices begin with: in a soak the number of the part, from 1."""
    return int(os.environ["WKVM_SOAK_PART"]) if SOAKING else otherwise


def tell(layer: int, what: str, count: int, unit: str, **figures: float | str) -> None:
    """Say what a test did: ``count`` of ``unit`` of a layer, and what was measured meanwhile.

    Call it once, at the end of a test: what fails tells nothing. Outside of a soak it does nothing.
    """
    path = os.environ.get("WKVM_SOAK_OUTPUT")
    if path is None:
        return
    line = {"layer": layer, "what": what, "part": seed(), "count": count, "unit": unit} | figures
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")
