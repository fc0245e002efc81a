"""Whoever is told to install an extra is told of one that there is."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ["wkvm", "protocol", "clients/wkvm_client", "bench/wkvm_bench"]
NAMED = re.compile(r"wkvm\[([\w,]+)\]")


def extras() -> dict[str, set[str]]:
    """The names of an extra's requirements, by the extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        extra: {re.split(r"[^\w-]", one)[0] for one in needed}
        for extra, needed in project["optional-dependencies"].items()
    }


def test_an_error_names_an_extra_and_a_package_that_is_in_it() -> None:
    found = list[tuple[str, str]]()
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*.py"):
            source = file.read_text(encoding="utf-8")
            if "MissingExtraError(" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                match node:
                    case ast.Call(func=ast.Name("MissingExtraError"), args=[extra, package]):
                        found.append((ast.literal_eval(extra), ast.literal_eval(package)))
                    case _:
                        pass
    assert len(found) > 3
    assert [one for one in found if one[1] not in extras().get(one[0], set())] == []


def test_texts_name_extras_that_there_are() -> None:
    texts = [
        *(p for folder in SOURCES for p in (ROOT / folder).rglob("*.py")),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    named = {
        extra
        for text in texts
        for found in NAMED.findall(text.read_text(encoding="utf-8"))
        for extra in found.split(",")
    }
    assert "engine" in named
    assert named - set(extras()) == set()
