"""The folder of states in memory goes with its process, however that ends, and no other goes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wkvm.assembly.memory_folder import PREFIX, MemoryFolder

KILLED = """
import os, signal
from wkvm.assembly.memory_folder import MemoryFolder
folder = MemoryFolder()
open(os.path.join(folder.path, "states"), "w").close()
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, by child processes too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def left_by_one_that_is_killed() -> Path:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=environment
    )
    return Path(killed.stdout.strip())


def test_a_folder_is_gone_once_it_is_closed(temporary: Path) -> None:
    folder = MemoryFolder()
    Path(folder.path, "states").touch()
    folder.close()
    folder.close()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    left = left_by_one_that_is_killed()
    assert (left / "states").exists()
    MemoryFolder().close()
    assert not left.exists()


def test_what_a_living_process_has_stays(temporary: Path) -> None:
    one = MemoryFolder()
    two = MemoryFolder()
    assert {Path(one.path), Path(two.path)} == set(temporary.iterdir())
    one.close()
    two.close()


def test_a_link_and_a_file_of_such_a_name_are_left_alone(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (temporary / f"{PREFIX}link").symlink_to(precious)
    (temporary / f"{PREFIX}file").touch()
    before = set(temporary.iterdir())
    MemoryFolder().close()
    assert set(temporary.iterdir()) == before


def test_a_folder_that_is_taken_for_one_left_behind_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[str]()
    open_file = os.open

    def open_late(path: str, flags: int) -> int:
        if not made:
            os.rmdir(path)  # by another process, before it could be locked
        made.append(path)
        return open_file(path, flags)

    monkeypatch.setattr(os, "open", open_late)
    folder = MemoryFolder()
    monkeypatch.undo()
    assert folder.path == made[1] != made[0]
    assert os.path.isdir(folder.path)
    folder.close()
