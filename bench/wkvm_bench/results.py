"""What was measured, for people and as JSON lines with all that is needed to judge it."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import wkvm
from wkvm_bench.harness import Bar, Comparison, Finding, Summary

RESULTS = Path(__file__).parents[1] / "results"
"""Where a checkout keeps the lines. An installed package has no such folder."""
PACKAGES = (
    *("torch", "numpy", "msgspec", "uvloop", "rwkv", "aiohttp"),
    *("fastapi", "uvicorn", "pydantic", "orjson"),
)


def environment() -> dict[str, object]:
    """The commit, the device and the versions of this run."""
    return {
        "commit": _commit(),
        "device": _cpu_name(),
        **({"gpu": gpu} if (gpu := _gpu_name(Path("/proc/driver/nvidia/gpus"))) else {}),
        "n_cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        # A run that others on the machine give way to is told from one that shares it.
        **({"nice": nice} if (nice := os.getpriority(os.PRIO_PROCESS, 0)) else {}),
        "versions": {
            "python": platform.python_version(),
            "wkvm": wkvm.__version__,
            **{name: version for name in PACKAGES if (version := _version(name))},
        },
    }


def to_line(
    bench: str,
    result: Comparison | Finding,
    *,
    command: Sequence[str],
    settings: Mapping[str, object],
    environment: Mapping[str, object],
) -> str:
    """One result as a line of JSON, without the newline."""
    if isinstance(result, Finding):
        figures: dict[str, object] = {"value": result.value}
        judged = result.value
    else:
        figures = {
            "a": {"name": result.a_name, **asdict(Summary.of(result.a))},
            "b": {"name": result.b_name, **asdict(Summary.of(result.b))},
            "ratio": asdict(result.ratio),
        }
        judged = result.ratio.median
    bar = result.bar
    record = {
        "bench": bench,
        "case": result.case,
        "unit": result.unit,
        **figures,
        **({} if bar is None else {"bar": str(bar), "met": bar.is_met(judged)}),
        **({"besides": dict(result.besides)} if result.besides else {}),
        **_origin(command, settings, environment),
    }
    return json.dumps(_rounded(record))


def to_rung_line(
    bench: str,
    case: str,
    rung: Mapping[str, object],
    *,
    command: Sequence[str],
    settings: Mapping[str, object],
    environment: Mapping[str, object],
) -> str:
    """A rung of a ladder of loads as a line of JSON, without the newline."""
    record = {
        "bench": bench,
        "case": case,
        "rung": rung,
        **_origin(command, settings, environment),
    }
    return json.dumps(_rounded(record))


def _origin(
    command: Sequence[str], settings: Mapping[str, object], environment: Mapping[str, object]
) -> dict[str, object]:
    return {
        "settings": settings,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(command),
        **environment,
    }


def to_text(bench: str, result: Comparison | Finding) -> str:
    """One result as lines to read."""
    lines = _finding(bench, result) if isinstance(result, Finding) else _comparison(bench, result)
    lines += [f"    {name}: {value:,.4g}" for name, value in result.besides.items()]
    return "\n".join(lines)


def _finding(bench: str, finding: Finding) -> list[str]:
    return [
        f"{bench}, {finding.case}: {finding.value:,.5g} {finding.unit}"
        f"{_verdict(finding.bar, finding.value)}"
    ]


def _comparison(bench: str, comparison: Comparison) -> list[str]:
    lines = [f"{bench}, {comparison.case}:"]
    for name, samples in ((comparison.a_name, comparison.a), (comparison.b_name, comparison.b)):
        s = Summary.of(samples)
        lines.append(
            f"  {name:<28} {s.median:>12,.5g} {comparison.unit}"
            f"   (p10 {s.p10:,.5g}, p90 {s.p90:,.5g}, n {s.n})"
        )
    ratio = comparison.ratio
    lines.append(
        f"  ratio {ratio.median:.2f} (p10 {ratio.p10:.2f}, p90 {ratio.p90:.2f})"
        f"{_verdict(comparison.bar, ratio.median)}"
    )
    return lines


def _verdict(bar: Bar | None, value: float) -> str:
    if bar is None:
        return ""
    return f"; the bar is {bar}: {'met' if bar.is_met(value) else 'MISSED'}"


def append(folder: Path, bench: str, lines: Sequence[str]) -> Path:
    """Add lines to the benchmark's file in ``folder``, made if missing, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{bench}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def _rounded(value: object) -> object:
    """Six digits are more than any of these measurements has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def _commit() -> str:
    """The checkout's commit, with a plus where files differ from it; unknown outside one."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changed = git(
            "status", "--porcelain", "--untracked-files=no", ":(top)", ":(top,exclude)bench/results"
        )
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _gpu_name(folder: Path) -> str | None:
    """Of the first GPU, as its driver says it; no torch is needed for that."""
    for file in sorted(folder.glob("*/information")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
