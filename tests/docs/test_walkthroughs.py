"""The guide and the quick start show what comes when their commands are given in order."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.walkthrough import PORTS, Step, Walk, matches, steps

ROOT = Path(__file__).parents[2]


def walked(walk: Walk, name: str) -> None:
    """Make all steps of a page, and compare what they print."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    for step in steps((ROOT / name).read_text(encoding="utf-8")):
        printed = walk.make(step)
        if step.shown is not None:
            assert matches(step.shown, printed), (
                f"{name}, line {step.line}: {step.what}\nprints\n{printed}"
            )


@pytest.fixture(scope="module")
def server_of_make_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """What ``make run`` leaves running, for several pages."""
    with Walk(tmp_path_factory.mktemp("walk")) as walk:
        walk.make(Step(0, "console", "make run", None))
        yield walk


@pytest.fixture(scope="module")
def server_with_a_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """What the guide begins with."""
    with Walk(tmp_path_factory.mktemp("walk")) as walk:
        walk.make(Step(0, "console", "wkvm serve --state-dir states", None))
        yield walk


def test_the_guide_shows_what_comes(server_with_a_disk: Walk) -> None:
    server_with_a_disk.forget()
    walked(server_with_a_disk, "docs/guide.md")


@pytest.mark.parametrize("name", ["docs/quickstart.md", "README.md"])
def test_a_page_after_make_run_shows_what_comes(name: str, server_of_make_run: Walk) -> None:
    server_of_make_run.forget()
    walked(server_of_make_run, name)


@pytest.mark.parametrize("name", ["docs/quickstart.md", "README.md"])
def test_the_story_to_ask_for_in_the_browser_is_of_whom_it_was_asked_for(
    name: str, server_of_make_run: Walk
) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    (message,) = re.findall(r"[Ww]rite `([^`]*)`", page)
    hero = re.search(r"named (\w+)", message)
    assert hero
    body = {"messages": [{"role": "user", "content": message}], "n": 8, "max_tokens": 32}
    body |= {"model": "rwkv7-tinystories", "seed": 1}
    asked = f"curl http://{PORTS['http']}/v1/chat/completions -d '{json.dumps(body)}'"
    told = json.loads(server_of_make_run.make(Step(0, "console", asked, None)))
    stories = [one["message"]["content"] for one in told["choices"]]
    assert [one for one in stories if hero[1] not in one] == []


def test_the_programs_of_the_page_on_clients_run(server_with_a_disk: Walk) -> None:
    server_with_a_disk.forget()
    page = (ROOT / "clients/README.md").read_text(encoding="utf-8")
    blocking, aio, states, watching, session, moving = re.findall(
        r"```python\n(.*?)```", page, re.DOTALL
    )
    assert "wkvm_client.migrate(" in moving, "it needs two servers: client/test_migration.py"
    given = (
        "client = wkvm_client.connect('tcp://127.0.0.1:8001')\n"
        "ids, more_ids, question = [5, 6, 7], [8, 9], [10]\n"
    )
    program = "\n".join([blocking, aio, given, states, watching, session, "client.close()"])
    program = program.replace("unix:///run/wkvm.sock", "tcp://127.0.0.1:8001")
    printed = server_with_a_disk.make(Step(0, "python", program, None))
    assert len(printed.split()) > 2
    assert (server_with_a_disk.folder / "agent.safetensors").is_file()


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
