"""The guide and the quick start show what comes when their commands are given in order."""

import shutil
from pathlib import Path

import pytest

from tests.docs.walkthrough import Walk, matches, steps

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["guide.md", "quickstart.md"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_comes(name: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    with Walk(tmp_path) as walk:
        for step in steps((DOCS / name).read_text(encoding="utf-8")):
            printed = walk.make(step)
            if step.shown is not None:
                assert matches(step.shown, printed), (
                    f"docs/{name}, line {step.line}: {step.what}\nprints\n{printed}"
                )


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("", "", True),
        ("", "a\n", False),
        ("a ... b", "a and much more b\n", True),
        ("a ... b", "a\nb\n", False),
        ("a\n...\nz", "a\nm\nn\nz\n", True),
        ("a\n...\nz", "a\nm\nn\ny\n", False),
        ('{"x":1,...}', '{"x":1,"y":2}', True),
        ('{"x":1,...}', '{"x":2,"y":2}', False),
    ],
)
def test_dots_stand_for_what_is_left_out(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) == same


def test_a_page_is_read_in_order() -> None:
    page = (
        "text\n\n```console\n$ one \\\n    more\nout\n$ two\n^C\n```\n\n"
        "```python\nthree()\n```\n\n```text\nfour\n```\n\n```toml\nno = 1\n```\n"
    )
    found = [(step.line, step.what, step.shown) for step in steps(page)]
    assert found == [
        (4, "one \\\n    more", "out"),
        (7, "two", ""),
        (8, "^C", None),
        (12, "three()\n", "four\n"),
    ]
