"""constraints.txt has a version of everything that is needed, and these are what is installed."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import supply

ROOT = Path(__file__).parents[2]
LINES = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PINS = {canonicalize_name(name): version for name, _, version in (s.partition("==") for s in LINES)}
MADE_WITH = Path(sys.prefix) / ".stamps/constraints.txt"
"""The versions that the Makefile installed this environment with."""


def test_every_line_is_one_version_of_one_package() -> None:
    assert [s for s in LINES if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.]+", s)] == []
    assert len(PINS) == len(LINES)


def test_everything_that_is_needed_to_run_has_a_version() -> None:
    assert set(supply.needed()) - set(PINS) == set()


def test_the_versions_are_those_that_are_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    parts = [
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *(groups[name] for name in groups if name != "evaluation"),
    ]
    others = dict[str, str | None]()
    for requirement in map(Requirement, chain(*parts)):
        pinned = PINS.get(canonicalize_name(requirement.name))
        if pinned is None or not requirement.specifier.contains(pinned):
            others[str(requirement)] = pinned
    assert others == {}


def test_what_is_installed_has_these_versions() -> None:
    if not MADE_WITH.exists():
        pytest.skip("the Makefile did not make this environment")
    made_with = MADE_WITH.read_text(encoding="utf-8").splitlines()
    others = dict[str, str]()
    for name in {canonicalize_name(s.partition("==")[0]) for s in made_with if s[:1].isalnum()}:
        try:
            found = version(name).partition("+")[0]  # torch says which build it is
        except PackageNotFoundError:
            continue  # of a group that is not installed here
        if name in PINS and found != PINS[name]:
            others[name] = found
    assert others == {}
