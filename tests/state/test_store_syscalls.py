"""System calls fail under the store and under SQLite alike, as strace makes them.

A process works on a store until a call fails for it; whatever it acknowledged is there.
"""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.state.crashes import LIMITS, content_of
from tests.state.stores import opened

PROGRAM = """
import json, sys, time
from tests.state.crashes import LAYOUT, LIMITS
from tests.state.images import an_image
from tests.state.stores import CREATE
from wkvm.core.errors import WkvmError
from wkvm.state.store import Store

store = Store.open(sys.argv[1], clock=time.time, limits=LIMITS)
print("open", flush=True)
for seed in range(4):
    try:
        name = "s%d" % (seed % 2)
        record = store.commit("t", name, an_image(seed, layout=LAYOUT), provenance=CREATE)
        print(json.dumps([name, record.version, seed]), flush=True)
        if seed == 2:
            store.delete("t", "s1")
            print(json.dumps(["s1", None, None]), flush=True)
    except WkvmError as error:
        print(json.dumps(type(error).__name__), flush=True)
"""

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace")


def run(folder: Path, inject: str) -> list[str]:
    """Run the program with a fault. The lines that it wrote."""
    call = inject.partition(":")[0]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    command += ["-e", f"inject={inject}"]
    result = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    # Otherwise the store could not be opened, and said why.
    assert result.returncode == 0 or result.stderr.splitlines()[-1].startswith("wkvm.core.errors.")
    return result.stdout.splitlines()


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("pwrite64", "EIO"),
        ("pwrite64", "ENOSPC"),
        ("writev", "ENOSPC"),
        ("fallocate", "ENOSPC"),
        ("unlinkat", "EROFS"),
    ],
)
@pytest.mark.parametrize("is_sticky", [False, True], ids=["once", "for ever"])
def test_a_system_call_that_fails_loses_nothing_that_was_acknowledged(
    tmp_path: Path, call: str, fault: str, is_sticky: bool
) -> None:
    assert hasattr(errno, fault)
    with opened(tmp_path / "first", limits=LIMITS):
        pass
    for at in range(1, 40):
        folder = tmp_path / f"s{at}"
        shutil.copytree(tmp_path / "first", folder)
        when = f"{at}+" if is_sticky else str(at)
        lines = run(folder, f"{call}:error={fault}:when={when}")
        if "open" not in lines:
            continue
        said = [json.loads(line) for line in lines if line != "open"]
        expected = dict[str, dict[int, int]]()
        for one in said:
            if isinstance(one, list):
                name, version, seed = one
                if version is None:
                    expected.pop(name, None)
                else:
                    expected.setdefault(name, {})[version] = seed
        n_refused = sum(isinstance(one, str) for one in said)
        with opened(folder, limits=LIMITS) as store:
            content, lost = content_of(store)
            assert lost == []
            assert store.check().findings == ()
            if n_refused == 0:
                assert content == expected
            for name, versions in expected.items():
                # A deletion that was refused may have been done, if the catalogue failed.
                assert name == "s1" or versions.items() <= content[name].items()
        shutil.rmtree(folder)
        if n_refused == 0:
            return
