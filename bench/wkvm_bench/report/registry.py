"""Which sections a report has, and in which order.

A benchmark whose lines have a ``ratio`` or a ``value`` is in the last section without more ado.
To have a chapter of its own, with words and plots, it gives its ``Section`` in a module of this
package as ``SECTIONS``; the module's name is entered below, and the benchmark's in ``others.OWN``.
"""

import importlib

from wkvm_bench.report.sections import Section

MODULES = ("serving", "peers", "resident", "gpu", "rooflines", "others")
"""Modules of this package that have ``SECTIONS``, in the order of a report."""


def sections() -> list[Section]:
    """All sections, in order."""
    found = list[Section]()
    for name in MODULES:
        found += importlib.import_module(f"wkvm_bench.report.{name}").SECTIONS
    return found
