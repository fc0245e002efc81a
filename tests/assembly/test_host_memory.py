"""Free memory is the machine's, or less where a control group has a limit."""

from pathlib import Path

import pytest

from wkvm.assembly.host_memory import free_host_bytes

FREE = 8_000_000 * 1024

SECOND = {"proc/self/cgroup": "0::/jobs\n"}
FIRST = {"proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/jobs\n"}


def root(folder: Path, files: dict[str, str]) -> Path:
    """A file system with those files, on a machine where ``FREE`` bytes are free."""
    files = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {FREE // 1024} kB\n"} | files
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "ascii")
    return folder


def second(group: str, limit: str, used: int, dropped: int = 0) -> dict[str, str]:
    """The files of a group of the second version."""
    return {
        f"sys/fs/cgroup{group}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup{group}/memory.current": f"{used}\n",
        f"sys/fs/cgroup{group}/memory.stat": f"anon 5\ninactive_file {dropped}\n",
    }


def first(group: str, limit: int, used: int, dropped: int = 0) -> dict[str, str]:
    """The files of a group of the first version."""
    return {
        f"sys/fs/cgroup/memory{group}/memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory{group}/memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory{group}/memory.stat": f"total_inactive_file {dropped}\n",
    }


def test_without_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert free_host_bytes(root(tmp_path, {})) == FREE


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (SECOND | second("/jobs", "1000000", 400_000), 600_000),
        (SECOND | second("/jobs", "1000000", 400_000, dropped=50_000), 650_000),
        (SECOND | second("/jobs", "max", 400_000), FREE),
        (SECOND | second("/jobs", str(2 * FREE), 400_000), FREE),
        (SECOND | second("/jobs", "1000", 4000), 0),
        (SECOND | second("", "1000000", 0) | second("/jobs", "max", 0), 1_000_000),
        # A container that sees its own group alone, by the path that the machine has for it.
        (SECOND | second("", "700000", 0), 700_000),
        (FIRST | first("/jobs", 1_000_000, 400_000, dropped=50_000), 650_000),
        (FIRST | first("/jobs", 2**63 - 4096, 400_000), FREE),
        (FIRST | first("", 300_000, 0) | first("/jobs", 2**63 - 4096, 0), 300_000),
        (SECOND | {"sys/fs/cgroup/jobs/memory.max": "nonsense"}, FREE),
    ],
)
def test_the_least_that_a_group_has_left_is_what_is_free(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    assert free_host_bytes(root(tmp_path, files)) == expected


def test_where_nothing_is_told_the_system_is_asked(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) > 0
