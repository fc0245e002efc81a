"""The console that is shipped was built from the sources that are here, and nobody edited it."""

import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
BUILT = ROOT / "wkvm/gateway/console"
MANIFEST = json.loads((BUILT / "manifest.json").read_text(encoding="utf-8"))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sources() -> list[str]:
    """As ``clients/console/build/sources.ts`` names them, without tests."""
    text = (CLIENTS / "console/build/sources.ts").read_text(encoding="utf-8")
    [listed] = re.findall(r"SOURCES = \[(.*?)\]", text, re.S)
    paths: list[str] = []
    for name in re.findall(r'"([^"]+)"', listed):
        files = (
            sorted((CLIENTS / name).rglob("*")) if (CLIENTS / name).is_dir() else [CLIENTS / name]
        )
        paths += [str(one.relative_to(CLIENTS)) for one in files if one.is_file()]
    return sorted(path for path in paths if not re.search(r"\.test\.tsx?$", path))


def test_the_console_was_built_from_these_sources() -> None:
    lines = "".join(f"{digest((CLIENTS / path).read_bytes())}  {path}\n" for path in sources())
    assert MANIFEST["sources"] == digest(lines.encode()), "run: npm run build in clients/console"


def test_the_built_files_are_those_of_the_build_and_no_others() -> None:
    files = {
        str(path.relative_to(BUILT)): digest(path.read_bytes())
        for path in BUILT.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert files == MANIFEST["files"], "run: npm run build in clients/console"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    page = (BUILT / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page)
    assert not re.search(r"(?:src|href)=\"(?!\./)", page)


LOCKS = [CLIENTS / "console/package-lock.json", CLIENTS / "typescript/package-lock.json"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_a_lock_file_names_no_registry(lock: Path) -> None:
    assert '"resolved"' not in lock.read_text(encoding="utf-8")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_a_lock_file_has_all_that_its_packages_need(lock: Path) -> None:
    # Otherwise `npm ci` refuses it: seen with an optional package that no registry had.
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    locked = {path.rpartition("node_modules/")[2] for path in packages}
    kinds = ("dependencies", "devDependencies", "optionalDependencies")
    needed = {name for one in packages.values() for kind in kinds for name in one.get(kind, {})}
    assert needed - locked == set()


def test_what_is_built_in_of_others_comes_with_its_licence() -> None:
    package = json.loads((CLIENTS / "console/package.json").read_text(encoding="utf-8"))
    [file] = BUILT.glob("assets/licences-*.txt")
    licences = file.read_text(encoding="utf-8")
    assert {name for name in package["dependencies"] if f"{name} " not in licences} == set()
    assert set(re.findall(r"^[@\w/.-]+ [\d.]+: (.+)$", licences, re.M)) == {"MIT"}
