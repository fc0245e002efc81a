"""Kernels on a CPU, in Triton's interpreter.

Triton reads ``TRITON_INTERPRET`` while it is imported, so the interpreter has a process of its
own: a module of tests runs itself again there.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether this is that process."""

DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
"""Where kernels can run in this process."""

# Found, not imported: it prints at the end of each process that imported it.
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def starts_the_interpreter(test: Callable[[], None]) -> Callable[[], None]:
    """Mark a test that calls ``run_in_the_interpreter``."""
    outside = pytest.mark.skipif(INTERPRETED, reason="is that process")
    marked: Callable[[], None] = pytest.mark.long(outside(needs_triton(test)))
    return marked


def run_in_the_interpreter(file: str, keywords: str) -> None:
    """See the tests of ``file`` pass there that ``keywords`` choose, as ``-k`` takes them."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    run = subprocess.run(
        [*command, "-k", keywords, file],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
