"""What wkvm is made of when it runs: its dependencies, theirs, and the licence of each.

    python -m tools.supply           # writes the table of docs/reliability.md
    python -m tools.supply --sbom    # prints a bill of materials, as CycloneDX has it

All is read from what is installed here; nothing is looked up elsewhere. A licence that does not go
with Apache-2.0 is an error, and so is one that is not known here.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.readme_figures import with_figures

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- licences: begin -->\n", "<!-- licences: end -->\n"

COMPATIBLE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""What a program under Apache-2.0 goes with. MPL-2.0 concerns its own files alone."""

SAID = {
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Names of licences as packages write them."""

OF_MAKER = re.compile(r"(nvidia|cuda)-")
"""Libraries of CUDA, which torch's builds for GPUs ask for: NVIDIA's, under its own licence."""


class LicenceError(Exception):
    """A package whose licence does not go with Apache-2.0, or is not known here."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package that wkvm needs to run.

    Attributes:
        name: canonical.
        licence: an SPDX expression.
        asked_by: which parts of wkvm need it: none for the package itself, or extras.
    """

    name: str
    version: str
    licence: str
    asked_by: tuple[str, ...]


def needed() -> dict[str, Package]:
    """All packages that wkvm and its extras need to run here, by name, those of CUDA aside.

    Extras that are not installed are left out.

    Raises:
        LicenceError: one has none that is known here.
        PackageNotFoundError: one is not installed that wkvm needs in any case.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    parts = {"": project["dependencies"], **project["optional-dependencies"]}
    askers = dict[str, list[str]]()
    for part, requirements in parts.items():
        try:
            names = closure(requirements)
        except PackageNotFoundError:
            if not part:
                raise
            continue
        for name in names:
            askers.setdefault(name, []).append(part)
    return {
        name: _package(name, tuple(askers[name]))
        for name in sorted(askers)
        if not OF_MAKER.match(name)
    }


def closure(requirements: Iterable[str]) -> set[str]:
    """The names of what is required, and of what that requires, on this machine.

    Raises:
        PackageNotFoundError: something is not installed.
    """
    todo, done = [Requirement(one) for one in requirements], set[str]()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if (one.marker is not None and not one.marker.evaluate({"extra": ""})) or name in done:
            continue
        done.add(name)
        for text in distribution(name).requires or ():
            inner = Requirement(text)
            extras = one.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": e}) for e in extras):
                inner.marker = None
                todo.append(inner)
    return done


def licence_of(found: Distribution) -> str:
    """The licence of a package, as an SPDX expression, from what it says of itself.

    Raises:
        LicenceError: that is nothing, or not known here.
    """
    about = found.metadata
    prefix = "License :: OSI Approved :: "
    classified = [
        one.removeprefix(prefix)
        for one in about.get_all("Classifier") or ()
        if one.startswith(prefix)
    ]
    said = next(iter(about.get_all("License") or ()), "")
    if "License-Expression" in about:
        return str(about["License-Expression"])
    if classified and all(one in SAID for one in classified):
        return " AND ".join(sorted({SAID[one] for one in classified}))
    first = said.strip().partition("\n")[0].strip()
    if first in SAID:
        return SAID[first]
    if is_compatible(first):
        return first
    raise LicenceError(f"{about['Name']}: {first or classified or 'no licence'!r}")


def is_compatible(expression: str) -> bool:
    """Whether a licence goes with Apache-2.0; of several, one by OR is enough."""
    if not expression:
        return False
    alternatives = [one.strip(" ()") for one in expression.split(" OR ")]
    if len(alternatives) > 1 and " AND " in expression:
        return all(is_compatible(one) for one in alternatives)  # whatever the brackets mean
    if len(alternatives) > 1:
        return any(one in COMPATIBLE for one in alternatives)
    return all(one.strip(" ()") in COMPATIBLE for one in expression.split(" AND "))


def _package(name: str, asked_by: tuple[str, ...]) -> Package:
    found = distribution(name)
    licence = licence_of(found)
    if not is_compatible(licence):
        raise LicenceError(f"{name}: {licence} does not go with Apache-2.0")
    return Package(name, found.version, licence, asked_by)


def row(one: Package) -> str:
    """A package as the table has it."""
    parts = ", ".join(f"`{part}`" if part else "wkvm" for part in one.asked_by)
    return f"| {one.name} | {one.licence} | {parts} |"


def table() -> str:
    """All packages, as Markdown."""
    head = ["| package | licence | needed by |", "|---|---|---|"]
    return "\n".join([*head, *map(row, needed().values())]) + "\n"


def sbom() -> dict[str, Any]:
    """A bill of materials: CycloneDX 1.6."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": one.name,
                "version": one.version,
                "purl": f"pkg:pypi/{one.name}@{one.version}",
                "licenses": [{"expression": one.licence}],
            }
            for one in needed().values()
        ],
    }


def main() -> int:
    """Write the table, or print a bill of materials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sbom", action="store_true", help="print a bill of materials")
    try:
        if parser.parse_args().sbom:
            print(json.dumps(sbom(), indent=1))
        else:
            page = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(with_figures(page, table(), BEGIN, END), encoding="utf-8")
    except (LicenceError, PackageNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
