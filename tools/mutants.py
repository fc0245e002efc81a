"""Plant known faults, one at a time, in a copy of the code, and say which test finds each.

``python -m tools.mutants`` prints a table; ``--only WORD`` takes the faults that name it. A fault
that no test finds is printed as alive, and the exit status is 1.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("wkvm", "protocol", "clients", "bench", "tests", "docs", "tools", "pyproject.toml")
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: in ``file``, ``old`` (which is there once) becomes ``new``.

    Attributes:
        what: the fault, in words.
        tests: where it is looked for: files or node ids, as pytest takes them.
    """

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PAYLOADS = "wkvm/state/payloads.py"
RUNNER = "wkvm/engine/runner.py"
REQUESTS = "wkvm/engine/states/requests.py"
ORIGINS = "wkvm/engine/states/origins.py"

MUTANTS = (
    Mutant(
        "a payload is not synced",
        PAYLOADS,
        "                self._io.sync(fd)\n",
        "",
        ("tests/state/test_store_faults.py::test_power_may_go_at_any_operation",),
    ),
    Mutant(
        "the folder of payloads is not synced",
        PAYLOADS,
        "            self._sync_folder()\n",
        "",
        ("tests/state/test_store_faults.py::test_power_may_go_at_any_operation",),
    ),
    Mutant(
        "a commit is acknowledged before the catalogue is on the disk",
        "wkvm/state/catalogue.py",
        'self._choose_synchronous(writer, "FULL" if durable else "NORMAL")',
        'self._choose_synchronous(writer, "OFF")',
        ("tests/state/test_store_crashes.py::test_power_loss_loses_nothing_that_was_acknowledged",),
    ),
    Mutant(
        "what was written is not read back",
        PAYLOADS,
        "                self._verify_open(fd, encoded.digest)\n",
        "",
        ("tests/state/test_store_catalogue.py",),
    ),
    Mutant(
        "the bytes of a payload are not compared with their digest",
        PAYLOADS,
        "if root_digest(blank, run(fill, range(n_chunks))) != header.digest:",
        "if root_digest(blank, run(fill, range(n_chunks))) == '':",
        ("tests/state/test_store_damage.py::test_every_class_of_flipped_byte_is_found",),
    ),
    Mutant(
        "a payload's digest is not compared with the catalogue's",
        PAYLOADS,
        "if header.digest != digest:",
        "if header.digest == '':",
        ("tests/state/test_store_damage.py::test_another_versions_file_in_its_place_is_found",),
    ),
    Mutant(
        "the seals of rows are not checked",
        "wkvm/state/tables.py",
        "if seal_of(self.facts(payload)) != self.seal:",
        "if seal_of(self.facts(payload)) == b'':",
        ("tests/state/test_store_damage.py::test_a_row_that_was_changed_is_found",),
    ),
    Mutant(
        "the expected version is not compared with the head",
        "wkvm/state/edits.py",
        "if expected is not None and head != expected:",
        "if expected is not None and head < 0:",
        ("tests/state/test_store_threads.py::test_of_commits_on_one_version_one_wins",),
    ),
    Mutant(
        "another model's state is taken",
        "wkvm/state/image.py",
        "        if found[name] != value:\n",
        "        if name == '':\n",
        ("tests/states/test_refusals.py::test_another_models_state_is_refused",),
    ),
    Mutant(
        "a slot is not zeroed for a request that begins at nothing",
        RUNNER,
        "            self._arena.zero(blank)\n",
        "            pass\n",
        (
            "tests/engine/test_hash_exactness.py::test_no_order_of_arrivals_budgets_slots_and_cancellations_changes_an_id",
        ),
    ),
    Mutant(
        "a state is not put into the slot of the request that goes on from it",
        RUNNER,
        "            self._arena.fill(image[: self._arena.layout.record_bytes], slots)\n",
        "            self._arena.zero(slots)\n",
        ("tests/states/test_traps.py::test_regenerating_with_nothing_new_is_exact_every_time",),
    ),
    Mutant(
        "what is saved shares the memory of the slot",
        "wkvm/state/arena.py",
        'return record.to("cpu", copy=True)',
        'return record.to("cpu")',
        (
            "tests/engine/test_states.py::test_what_is_saved_does_not_change_when_its_slot_goes_to_others",
        ),
    ),
    Mutant(
        "the pending id is forgotten",
        ORIGINS,
        "return Origin(image, record, image.carried.pending)",
        "return Origin(image, record, ())",
        ("tests/states/test_traps.py::test_regenerating_with_nothing_new_is_exact_every_time",),
    ),
    Mutant(
        "the sampler's memory does not travel",
        ORIGINS,
        "        memory=image.carried.sampler,\n        log=",
        "        memory=None,\n        log=",
        (
            "tests/states/test_continuations.py::test_sampled_turns_with_a_kill_between_them_are_the_uninterrupted_run",
        ),
    ),
    Mutant(
        "random positions are counted from the start of the request",
        "wkvm/engine/sampler.py",
        "self._rules[row.slot].n_start + row.position + len(row.ids)",
        "row.position + len(row.ids)",
        (
            "tests/states/test_continuations.py::test_sampled_turns_with_a_kill_between_them_are_the_uninterrupted_run",
        ),
    ),
    Mutant(
        "forks draw the same random numbers",
        "wkvm/engine/states/making.py",
        "keys = None if keeps_key else [_fresh_key() for _ in names]",
        "keys = None",
        (
            "tests/engine/states/test_over_engine.py::test_forks_draw_numbers_of_their_own_unless_they_replay",
        ),
    ),
    Mutant(
        "who comes back is told all at once",
        "wkvm/engine/states/pacing.py",
        "n = max(min(n_all, self.limit), self.n_told)",
        "n = n_all",
        (
            "tests/engine/states/test_returns.py::test_what_was_missed_of_a_turn_that_is_over_comes_as_it_is_granted",
        ),
    ),
    Mutant(
        "a request whose client is gone goes on",
        REQUESTS,
        "            self.cancel(request_id)\n            return\n        turn.is_detached = True",
        "            return\n        turn.is_detached = True",
        (
            "tests/engine/states/test_lives.py::test_a_turn_of_a_lost_client_is_cancelled_by_default",
        ),
    ),
    Mutant(
        "a row of NaN goes on",
        RUNNER,
        "            not_finite=broken,\n",
        "            not_finite=frozenset(),\n",
        ("tests/states/test_traps.py::test_a_row_of_nan_ends_alone_and_nothing_of_it_is_kept",),
    ),
    Mutant(
        "a state that is not finite is kept",
        "wkvm/state/image.py",
        "return not_finite(self.views())",
        "return not_finite({})",
        ("tests/state/test_store.py",),
    ),
    Mutant(
        "a commit that was acknowledged is undone",
        "wkvm/state/catalogue.py",
        'writer.execute("COMMIT")',
        'writer.execute("COMMIT" if not durable else "ROLLBACK")',
        ("tests/states/test_kills.py::test_a_kill_loses_and_spoils_nothing_that_was_acknowledged",),
    ),
    Mutant(
        "handles are found whoever asks",
        "wkvm/state/index.py",
        "{ALL} WHERE h.tenant = ? AND h.name = ? AND",
        "{ALL} WHERE coalesce(h.tenant, ?) IS NOT NULL AND h.name = ? AND",
        (
            "tests/states/test_refusals.py::test_another_tenants_state_is_answered_as_one_that_never_was",
        ),
    ),
    Mutant(
        "what was looked up before is told after a write",
        "wkvm/state/index.py",
        "            for one in self._touched:\n",
        "            for one in ():\n",
        ("tests/state/test_store_index.py",),
    ),
    Mutant(
        "the digest of an imported file is not verified",
        "wkvm/state/filling.py",
        "if digest_of(blank, buffers) != header.digest:",
        "if digest_of(blank, buffers) == '':",
        (
            "tests/states/test_refusals.py::test_a_file_that_is_no_state_is_refused_and_leaves_nothing",
        ),
    ),
    Mutant(
        "cached_tokens counts the pending id",
        "wkvm/engine/states/turns.py",
        "return 0 if self.origin is None else self.origin.image.carried.n_computed",
        "return 0 if self.origin is None else self.origin.image.carried.n_computed + 1",
        ("tests/states/test_traps.py::test_cached_tokens_are_those_that_were_not_computed",),
    ),
)


def planted(mutant: Mutant, folder: Path) -> None:
    """Plant a fault in a copy of the code.

    Raises:
        ValueError: its place is not there exactly once.
    """
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.what}: {text.count(mutant.old)} places in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def copy_to(folder: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "results", ".*cache")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> str | None:
    """The first test that fails; None if all pass."""
    paths = [str(folder / name) for name in ("", "protocol", "clients", "bench")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no end in time"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed is None:
        raise RuntimeError(done.stdout + done.stderr)
    return failed[1]


def table(mutants: tuple[Mutant, ...]) -> Iterator[tuple[Mutant, str | None, float]]:
    """Each fault with the test that finds it, and the seconds that took."""
    with tempfile.TemporaryDirectory() as name:
        clean = Path(name) / "clean"
        clean.mkdir()
        copy_to(clean)
        every = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        failed = run_tests(clean, every)
        if failed is not None:
            raise RuntimeError(f"without any fault, {failed} fails")
        for mutant in mutants:
            began = time.monotonic()
            folder = Path(name) / "planted"
            shutil.copytree(clean, folder)
            planted(mutant, folder)
            yield mutant, run_tests(folder, mutant.tests), time.monotonic() - began
            shutil.rmtree(folder)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="faults that name it")
    only = parser.parse_args().only
    mutants = tuple(one for one in MUTANTS if only in one.what)
    n_alive = 0
    print("| fault | found by |\n|---|---|")
    for mutant, test, seconds in table(mutants):
        n_alive += test is None
        found = "**nothing: it is alive**" if test is None else f"`{test}`"
        print(f"| {mutant.what} | {found} |", flush=True)
        print(f"{seconds:.1f} s", file=sys.stderr)
    return 1 if n_alive else 0


if __name__ == "__main__":
    sys.exit(main())
