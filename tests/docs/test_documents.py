"""The documents agree with the repository: links, paths, the example, and what is not said."""

import re
import subprocess
from pathlib import Path

import pytest

from tools.readme_figures import compared, written

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_PATH = re.compile(r"`((?:wkvm|protocol|clients|bench|tests|tools|docs|examples)/[\w./-]*)`")


def tracked() -> list[Path]:
    """Files under version control; all documents and code where there is none."""
    result = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if result.returncode:
        pytest.skip("not a checkout")
    return [ROOT / name for name in result.stdout.split("\0") if (ROOT / name).is_file()]


def documents() -> list[Path]:
    return sorted(p for p in tracked() if p.suffix == ".md")


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as code hosts make them."""
    found = set[str]()
    for heading in re.findall(r"^#+ +(.*)$", document.read_text(encoding="utf-8"), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


def broken_links(document: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            broken.append(link)
    return broken


def test_every_relative_link_leads_somewhere() -> None:
    broken = {str(p.relative_to(ROOT)): links for p in documents() if (links := broken_links(p))}
    assert broken == {}


@pytest.mark.parametrize("name", ["docs/architecture.md", "README.md", "tools/README.md"])
def test_the_paths_that_a_document_names_exist(name: str) -> None:
    named = CODE_PATH.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def readme_programs() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_readmes_example_is_the_tested_one() -> None:
    _, example = readme_programs()
    assert example == (ROOT / "examples/stream_blocking.py").read_text(encoding="utf-8")


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs/adr"
    listed = LINK.findall((folder / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in folder.glob("0*.md"))


def test_no_file_names_a_place_outside_the_repository() -> None:
    places = re.compile(
        "|".join(["/" + "work/", "/" + "root/", "/" + "home/", r"\.\./" + "shared"])
    )
    text = {
        path: path.read_text(encoding="utf-8")
        for path in tracked()
        if path.suffix in {".md", ".py", ".toml", ".txt", ".jsonl", ".json", ""}
        and path.stat().st_size < 2**20
    }
    naming = {str(p.relative_to(ROOT)) for p, content in text.items() if places.search(content)}
    assert naming - {".ci/run"} == set()


def test_the_readmes_figures_are_the_measured_ones() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == written(readme, ROOT / "bench/results"), "run: python -m tools.readme_figures"
    page = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    assert page == compared(page, ROOT / "bench/results"), "run: python -m tools.readme_figures"
