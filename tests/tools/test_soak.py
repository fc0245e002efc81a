"""The runner of a soak: what it runs, what it keeps, and what it says."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tools.soak import LEFT_OVER, main
from tools.soak_layers import LAYERS, TRIALS, Promise, Trial
from tools.soak_record import append, digest_of, read, table, written

ROOT = Path(__file__).parents[2]
PREAMBLE = """
import os, time
from pathlib import Path
from tests.soak import amount, seed, tell
HERE = Path(__file__).parent
"""


class Checkout:
    """A folder that is laid out like the repository, with tests of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.output = root / "results.jsonl"
        for folder in ("wkvm", "protocol", "clients", "bench/wkvm_bench", "tests", "docs"):
            (root / folder).mkdir(parents=True)
        shutil.copy(ROOT / "tests/soak.py", root / "tests/soak.py")
        (root / "wkvm/code.py").write_text("A = 1\n")

    def trial(self, name: str, body: str, *, n_parts: int = 1, **how: Any) -> Trial:
        """A trial of one test, of which each part promises ten tries."""
        file = f"tests/test_{name}.py"
        lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
        (self.root / file).write_text(f"{PREAMBLE}\ndef test_it():\n{lines}")
        fields: dict[str, Any] = {
            "layer": 5,
            "part_s": 1.0,
            "promises": (Promise(name, 10 * n_parts, "tries"),),
        }
        return Trial(tests=(file,), n_parts=n_parts, **fields | how)

    def run(self, *trials: Trial, argv: tuple[str, ...] = ()) -> int:
        return main(["--output", str(self.output), *argv], trials, self.root)

    def lines(self) -> list[dict[str, Any]]:
        if not self.output.exists():
            return []
        return [json.loads(line) for line in self.output.read_text().splitlines()]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # They take a second to be loaded.
    return Checkout(tmp_path / "checkout")


def test_parts_run_with_seeds_of_their_own_and_what_they_tell_is_added_up(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = checkout.trial("flips", "tell(5, 'flips', amount(1, 10), 'tries', s=seed())", n_parts=2)
    assert checkout.run(trial, argv=("--commit", "abc")) == 0
    lines = checkout.lines()
    assert [(line["part"], line["told"][0]["s"]) for line in lines] == [(1, 1), (2, 2)]
    for line in lines:
        assert line["passed"]
        assert line["commit"] == "abc"
        assert line["trial"] == "tests/test_flips.py"
        assert line["code"] == digest_of(checkout.root, trial)
        assert line["seconds"] > 0
    printed = capsys.readouterr().out
    assert "20 of 20 tries: flips (2 of 2 parts); s 1 to 2" in printed
    assert "2 parts passed, 0 failed, 0 were done, 0 are left" in printed


def test_what_passed_at_this_code_is_not_run_again(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = checkout.trial("flips", "tell(5, 'flips', 10, 'tries')")
    assert checkout.run(trial) == 0
    (checkout.root / "docs/page.md").write_text("a page")
    (checkout.root / "wkvm/README.md").write_text("another page")
    checkout.trial("others", "pass")
    assert checkout.run(trial) == 0
    assert len(checkout.lines()) == 1
    assert "0 parts passed, 0 failed, 1 were done, 0 are left" in capsys.readouterr().out


@pytest.mark.parametrize("changed", ["wkvm/code.py", "tests/soak.py", "tests/test_flips.py"])
def test_other_code_is_another_digest(checkout: Checkout, changed: str) -> None:
    trial = checkout.trial("flips", "pass")
    before = digest_of(checkout.root, trial)
    with (checkout.root / changed).open("a") as file:
        file.write("# more\n")
    assert digest_of(checkout.root, trial) != before


def test_what_passed_at_other_code_is_run_again(checkout: Checkout) -> None:
    trial = checkout.trial("flips", "tell(5, 'flips', 10, 'tries')")
    line: dict[str, Any] = {"trial": trial.name, "part": 1, "code": "other", "passed": True}
    append(checkout.output, line | {"seconds": 1.0, "told": []})
    assert checkout.run(trial) == 0
    assert [line["code"] for line in checkout.lines()] == ["other", digest_of(checkout.root, trial)]


def test_a_part_that_fails_is_kept_with_its_seed_and_the_end_of_its_log_and_run_again(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "assert seed() != 1 or (HERE / 'mended').exists(), 'torn'\ntell(5, 'flips', 10, 'tries')"
    trial = checkout.trial("flips", body, n_parts=2)
    assert checkout.run(trial) == 1
    failed, passed = checkout.lines()
    assert (failed["passed"], failed["seed"], failed["why"]) == (False, 1, "status 1")
    assert "AssertionError: torn" in failed["log"]
    assert str(checkout.root) not in failed["log"]
    assert passed["passed"]
    assert "FAILED (status 1)" in capsys.readouterr().out
    (checkout.root / "tests/mended").touch()
    assert checkout.run(trial) == 0
    assert [line["passed"] for line in checkout.lines()] == [False, True, True]


def test_a_part_that_tells_nothing_has_failed(checkout: Checkout) -> None:
    assert checkout.run(checkout.trial("silent", "pass")) == 1
    (line,) = checkout.lines()
    assert (line["passed"], line["why"]) == (False, "told nothing")


def test_a_part_that_takes_too_long_has_failed(checkout: Checkout) -> None:
    trial = checkout.trial("endless", "time.sleep(600)")
    assert checkout.run(trial, argv=("--part-limit-s", "2")) == 1
    (line,) = checkout.lines()
    assert (line["passed"], line["why"]) == (False, "takes longer than 2 s")


def test_a_trial_may_say_how_long_its_parts_may_take(checkout: Checkout) -> None:
    assert checkout.run(checkout.trial("endless", "time.sleep(600)", limit_s=2.0)) == 1
    assert checkout.lines()[0]["why"] == "takes longer than 2 s"


def test_less_than_what_is_promised_is_no_success(checkout: Checkout) -> None:
    assert checkout.run(checkout.trial("few", "tell(5, 'few', 9, 'tries')")) == 1


def test_nothing_is_begun_that_would_not_end_before_the_limit(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    long = checkout.trial("long", "tell(5, 'long', 10, 'tries')", part_s=100.0)
    short = checkout.trial("short", "tell(5, 'short', 10, 'tries')", part_s=1.0)
    assert checkout.run(long, short, argv=("--limit-s", "80")) == LEFT_OVER
    assert [line["trial"] for line in checkout.lines()] == [short.name]
    assert "1 are left" in capsys.readouterr().out


def test_what_runs_at_the_limit_is_ended_and_not_kept(checkout: Checkout) -> None:
    trial = checkout.trial("endless", "time.sleep(600)", part_s=0.1)
    assert checkout.run(trial, argv=("--limit-s", "13")) == LEFT_OVER
    assert checkout.lines() == []


def test_how_long_parts_take_is_known_from_those_that_have_ended(checkout: Checkout) -> None:
    trial = checkout.trial("slower", "tell(5, 'slower', 10, 'tries')", part_s=1.0)
    append(checkout.output, a_line(1, trial=trial.name, code="other", seconds=100.0))
    assert checkout.run(trial, argv=("--limit-s", "80")) == LEFT_OVER


def test_parts_run_side_by_side(checkout: Checkout) -> None:
    body = """
(HERE / f"began-{seed()}").touch()
while not (HERE / f"began-{3 - seed()}").exists():
    time.sleep(0.01)
tell(5, 'pairs', 10, 'tries')"""
    trial = checkout.trial("pairs", body, n_parts=2)
    assert checkout.run(trial, argv=("--jobs", "2")) == 0


def test_a_part_that_keeps_two_cores_busy_counts_for_two(checkout: Checkout) -> None:
    body = """
assert not (HERE / "runs").exists()
(HERE / "runs").touch()
time.sleep(0.3)
(HERE / "runs").unlink()
tell(5, 'wide', 10, 'tries')"""
    wide = checkout.trial("wide", body, n_parts=2, n_cores=2)
    assert checkout.run(wide, argv=("--jobs", "3")) == 0
    # One that wants more than there are runs alone.
    assert checkout.run(checkout.trial("wider", body.replace("wide", "wider"), n_cores=9)) == 0


def test_a_signal_ends_the_run_and_what_had_ended_is_kept(checkout: Checkout) -> None:
    body = """
(HERE / f"began-{seed()}").touch()
if seed() == 2:
    time.sleep(600)
tell(5, 'stopped', 10, 'tries')"""
    trial = checkout.trial("stopped", body, n_parts=2)

    def stop() -> None:
        while not (checkout.root / "tests/began-2").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert checkout.run(trial) == LEFT_OVER
    assert [line["part"] for line in checkout.lines()] == [1]


def test_one_layer_can_be_run(checkout: Checkout) -> None:
    one = checkout.trial("one", "tell(1, 'one', 10, 'tries')", layer=1)
    two = checkout.trial("two", "tell(2, 'two', 10, 'tries')", layer=2)
    assert checkout.run(one, two, argv=("--only", "2")) == 0
    assert [line["layer"] for line in checkout.lines()] == [2]


def test_trials_can_be_chosen_by_their_names(checkout: Checkout) -> None:
    one = checkout.trial("one", "tell(5, 'one', 10, 'tries')")
    two = checkout.trial("two", "tell(5, 'two', 10, 'tries')")
    assert checkout.run(one, two, argv=("--match", "test_two")) == 0
    assert [line["trial"] for line in checkout.lines()] == [two.name]


def test_what_needs_a_program_that_is_not_here_is_left_out_and_said(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = checkout.trial("traced", "pass", needs=("no-such-program",))
    assert checkout.run(trial) == 0
    assert checkout.lines() == []
    assert "not run here: tests/test_traced.py: there is no no-such-program" in (
        capsys.readouterr().out
    )


def test_nothing_random_depends_on_where_a_part_runs(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")
    body = (
        "tell(5, 'env', 10, 'tries', ci=os.environ.get('CI', ''), h=os.environ['PYTHONHASHSEED'])"
    )
    assert checkout.run(checkout.trial("env", body)) == 0
    (told,) = checkout.lines()[0]["told"]
    assert (told["ci"], told["h"]) == ("", "1")


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"trial": "a", "part": 1}\n{"trial": "b", "pa')
    append(path, {"trial": "c", "part": 3})
    assert read(path).keys() == {("a", 1), ("c", 3)}


def a_line(part: int, **fields: Any) -> dict[str, Any]:
    told = {"layer": 5, "what": "flips", "part": part, "count": 1000, "unit": "tries"}
    line = {"trial": "tests/x.py", "part": part, "passed": True, "seconds": 60.0, "commit": "abc"}
    place = {"device": "a CPU", "n_cores": 2, "told": [told | {"p99_ms": part * 1.5, "on": "x"}]}
    return line | place | fields


FLIPS = Trial(
    layer=5,
    tests=("tests/x.py",),
    n_parts=3,
    part_s=1.0,
    promises=(Promise("flips", 3000, "tries"),),
)


def test_the_table_says_what_was_promised_and_what_was_done() -> None:
    lines = [a_line(1), a_line(2), a_line(3, passed=False)]
    text = table([FLIPS], {(one["trial"], one["part"]): one for one in lines})
    assert text.splitlines()[2:] == [
        "| 5: damaged files | flips | 3,000 tries | 2,000 | 2 of 3 at abc, 1 failed | 2.0 "
        "| on x; p99 ms 1.5 to 3 |",
        "",
        "Run on a CPU, 2 cores.",
    ]


def test_only_what_is_between_the_marks_is_replaced(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = checkout.root / "docs/reliability.md"
    page.write_text("a\n<!-- soak: begin -->\nold\n<!-- soak: end -->\nb\n")
    assert checkout.run(FLIPS, argv=("--table",)) == 0
    assert page.read_text() == (
        f"a\n<!-- soak: begin -->\n{table([FLIPS], {})}<!-- soak: end -->\nb\n"
    )


def test_the_page_has_the_table_of_what_was_run() -> None:
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    new = written(page, TRIALS, read(ROOT / "bench/results/soak.jsonl"))

    def of_what_was_run(text: str) -> list[str]:
        return [line for line in text.splitlines() if "| 0 of " not in line]

    assert of_what_was_run(page) == of_what_was_run(new)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda one: one.name)
def test_a_trial_names_tests_that_exist(trial: Trial) -> None:
    for name in trial.tests:
        file, _, test = name.partition("::")
        code = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {test.partition('[')[0]}(" in code if test else "def test_" in code
    assert trial.layer in LAYERS


def test_no_part_is_said_to_take_longer_than_one_may() -> None:
    assert [one.name for one in TRIALS if one.part_s >= one.limit_s] == []


def test_no_promise_is_made_twice() -> None:
    promises = [(one.name, promise.what) for one in TRIALS for promise in one.promises]
    assert len(promises) == len(set(promises))


def test_the_table_names_what_took_longest_of_all_parts_and_adds_up_what_was_counted(
    tmp_path: Path,
) -> None:
    promises = (Promise("flips", 2000, "tries"),)
    trial = Trial(layer=5, tests=("tests/x.py",), part_s=1, promises=promises, n_parts=2)
    path = tmp_path / "results.jsonl"
    told = {"layer": 5, "what": "flips", "count": 1000, "unit": "tries"}
    one = {"longest_ms": 30, "slowest": "a", "statuses": "200:990 400:10"}
    other = {"longest_ms": 70, "slowest": "b", "statuses": "200:1000"}
    append(path, a_line(1, told=[told | {"part": 1} | one]))
    append(path, a_line(2, told=[told | {"part": 2} | other]))
    figures = "longest ms 30 to 70; slowest b; statuses 200: 1,990, 400: 10 |"
    assert figures in table((trial,), read(path))
