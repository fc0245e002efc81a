"""How much main memory this process can still have: of the machine, and of its control groups.

The limit of a container is not among the machine's numbers, and whoever takes more is killed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

NO_LIMIT = 2**60
"""What the first version of control groups says for no limit is above this."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What the files of a control group are called.

    Attributes:
        folder: where the groups are.
        limit, used: files of one number each, bytes.
        dropped: in ``memory.stat``, what of ``used`` are pages of files that make room for others.
    """

    folder: str
    limit: str
    used: str
    dropped: str


FIRST = _Files(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
SECOND = _Files("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def free_host_bytes(root: Path = ROOT) -> int:
    """Main memory that can be had without swapping, and without breaking a limit.

    Args:
        root: of the file system; another one in tests.
    """
    return max(min([_free_on_machine(root), *_left_in_groups(root)]), 0)


def _free_on_machine(root: Path) -> int:
    try:
        return _number_in(root / "proc/meminfo", "MemAvailable:") * 1024
    except (OSError, LookupError, ValueError):
        # Not Linux: what is free without counting caches that could be dropped.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _left_in_groups(root: Path) -> Iterator[int]:
    """What each control group that this process is in has left, if it has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        files = SECOND if not controllers else FIRST
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / files.folder
        # In a container the path may be the machine's, which is not there: its group is at the top.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            left = _left(folder, files)
            if left is not None:
                yield left
            if folder == top:
                break


def _left(folder: Path, files: _Files) -> int | None:
    """What a group has left; None without a limit, or if there is no such group."""
    try:
        # Without a limit, the second version says "max", which is no number.
        limit = int((folder / files.limit).read_text("ascii"))
        used = int((folder / files.used).read_text("ascii"))
        dropped = _number_in(folder / "memory.stat", files.dropped)
    except (OSError, LookupError, ValueError):
        return None
    return limit - used + dropped if limit < NO_LIMIT else None


def _number_in(file: Path, name: str) -> int:
    """The number behind a name, in a file of lines of such."""
    lines = (line.split() for line in file.read_text("ascii").splitlines())
    return int({words[0]: words[1] for words in lines if len(words) > 1}[name])
