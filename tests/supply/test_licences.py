"""What wkvm needs to run has licences that go with its own, and the document lists it."""

import re
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tools import supply

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
LISTED = dict(
    re.findall(
        r"^\| ([\w.-]+) \| ([^|]+) \|", PAGE.split(supply.BEGIN)[1].split(supply.END)[0], re.M
    )
)


PINS = dict(
    line.lower().replace("_", "-").split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if "==" in line
)


def test_every_package_that_is_needed_is_listed_with_its_licence() -> None:
    needed = {
        name: one.licence
        for name, one in supply.needed().items()  # whose licences are good, or this raises
        if one.version.partition("+")[0] == PINS.get(name)
    }
    assert {name: LISTED.get(name) for name in needed} == needed, "run: python -m tools.supply"


def test_every_package_that_is_listed_has_a_version_in_the_constraints() -> None:
    assert set(LISTED) - set(PINS) == {"package"}


def test_nothing_is_listed_whose_licence_is_refused() -> None:
    refused = {name for name, licence in LISTED.items() if not supply.is_compatible(licence)}
    assert refused == {"package"}


@pytest.mark.parametrize(
    "licence",
    [
        "",
        "AGPL-3.0-only",
        "Apache-2.0 AND GPL-3.0-or-later",
        "GPL-2.0-only",
        "GPL-3.0-only OR SSPL-1.0",
        "LicenseRef-Proprietary",
        "MIT OR (Apache-2.0 AND GPL-3.0-only)",
        "UNKNOWN",
    ],
)
def test_what_does_not_go_with_apache_2_is_refused(licence: str) -> None:
    assert not supply.is_compatible(licence)


@pytest.mark.parametrize(
    "licence", ["MIT", "GPL-3.0-only OR MIT", "Apache-2.0 AND MIT", "(MIT AND Zlib)"]
)
def test_what_goes_with_apache_2_is_taken(licence: str) -> None:
    assert supply.is_compatible(licence)


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        ({"License-Expression": "MIT"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: ISC License (ISCL)"}, "ISC"),
        ({"License": "MIT License\n\nCopyright"}, "MIT"),
        ({"License": "Apache-2.0"}, "Apache-2.0"),
    ],
)
def test_a_licence_is_read_from_what_a_package_says(
    headers: dict[str, str], licence: str, tmp_path: Path
) -> None:
    assert supply.licence_of(made(tmp_path, headers)) == licence


def test_a_licence_that_is_not_known_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(supply.LicenceError, match="a licence of our own"):
        supply.licence_of(made(tmp_path, {"License": "a licence of our own"}))


def test_a_bill_of_materials_names_every_package_with_its_version() -> None:
    components = {one["name"]: one["version"] for one in supply.sbom()["components"]}
    assert components == {name: one.version for name, one in supply.needed().items()}


def made(folder: Path, headers: dict[str, str]) -> PathDistribution:
    """A package that says this of itself."""
    message = Message()
    message["Name"] = "something"
    for name, value in headers.items():
        message[name] = value.replace("\n", "\n        ")
    (folder / "METADATA").write_text(message.as_string(), encoding="utf-8")
    return PathDistribution(folder)
