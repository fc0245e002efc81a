"""The programs on the pages of HTTP run as they stand, on a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.clients_http.conftest import Door
from tests.clients_http.outside import evaluation_python

DOCS = Path(__file__).parents[2] / "docs"


def output_of(page: str, door: Door, key: str, *, python: str = sys.executable) -> str:
    """What the first program of a page prints; the address and the key alone are others."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    program = found[1]
    for there, here in ("http://127.0.0.1:8000", door.url), ('"none"', repr(key)):
        assert there in program
        program = program.replace(there, here)
    env = environment()
    if python != sys.executable:
        del env["PYTHONPATH"]
    return subprocess.check_output([python, "-c", program], text=True, env=env, timeout=300)


def test_chat(door: Door, key: str) -> None:
    lines = output_of("chat.md", door, key).splitlines()
    assert re.fullmatch(r'weather \{"city":"(Paris|Rome)"\}', lines[0])
    assert re.fullmatch(r"kind='(fox|hen|snake)' can_fly=(True|False)", lines[-1])


def test_embeddings(door: Door, key: str) -> None:
    assert output_of("embeddings.md", door, key) == "[320, 320]\n"


@pytest.mark.slow
def test_responses(door: Door, key: str) -> None:
    text = output_of("responses.md", door, key)
    assert "response.created\n" in text
    assert "\nresponse.completed\n" in text


@pytest.mark.slow
def test_anthropic(door: Door, key: str) -> None:
    text = output_of("anthropic.md", door, key, python=evaluation_python())
    assert "output_tokens=" in text
