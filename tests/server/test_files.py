"""Of the files that a process may have open, connections leave some to states."""

import subprocess
import sys

from wkvm.server.process import SPARE_FILES

PROGRAM = """
import os, resource, sys
from wkvm.server.process import is_short_of_files
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
opened = []
while not is_short_of_files():
    opened.append(os.open(os.devnull, os.O_RDONLY))
left = 0
try:
    while True:
        os.open(os.devnull, os.O_RDONLY)
        left += 1
except OSError:
    print(left, is_short_of_files())
"""


def left(limit: int) -> list[str]:
    """How many files can be opened after the last connection, and what is said then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(limit)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_an_eighth_of_few_files_is_left() -> None:
    assert left(256) == ["32", "True"]


def test_of_many_files_as_many_are_left_as_others_may_need() -> None:
    assert left(4096) == [str(SPARE_FILES), "True"]
