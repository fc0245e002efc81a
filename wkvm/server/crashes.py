"""Reports of a process that cannot go on: one JSON file each, few of them, and small.

A report is for who has to find out why. It holds counts, shapes, versions and places in code: no
text, no id of a token, no name or key of a client, and no path.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
import re
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wkvm
from wkvm.core.errors import ConfigError
from wkvm.server.stacks import causes_of, stacks_of_threads, told_of

MAX_REPORTS = 16
"""The oldest go when another one comes."""
MAX_BYTES = 256 * 1024
"""Of one report; what it has of rows of steps is left out first."""
_NAME = re.compile(r"crash-\d{8}T\d{6}Z-\d+(-\d+)?\.json", re.ASCII)
_PACKAGES = ("torch", "triton", "aiohttp", "msgspec", "uvloop", "safetensors", "llguidance")
_WORDS = frozenset({"device", "dtype", "state", "quantization", "request_log"})
"""Settings that are one of a few words; of all others, only numbers and switches are told."""
_DEVICE = re.compile(
    r"CUDA (error|out of memory)|cuDNN|CUBLAS|Triton Error|\[enforce fail at alloc_"
)
"""Messages that begin so come from a device or its driver, and hold nothing of a request."""

logger = logging.getLogger("wkvm.crashes")


class CrashReports:
    """Writes reports to a folder. May be used from any thread.

    Args:
        folder: it is made where it is missing, for this user alone, when there is a report.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self) -> None:
        """Make the folder now.

        Raises:
            ConfigError: it cannot be made, or not be written to.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("crash-dir", f"{self._folder}: {error.strerror}") from error
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise ConfigError("crash-dir", f"{self._folder}: this user cannot write there")

    def write(self, report: Mapping[str, Any]) -> str | None:
        """Write a report; the name of its file, or None if it could not be written."""
        name = time.strftime("crash-%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{os.getpid()}"
        try:
            data = _fitting(report)
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for suffix in ("", *(f"-{n}" for n in range(1, 10))):
                path = self._folder / f"{name}{suffix}.json"
                with contextlib.suppress(FileExistsError):
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # which follows no link
                    fd = os.open(path, flags, 0o600)
                    try:
                        with open(fd, "wb") as file:
                            file.write(data)
                            file.flush()
                            os.fsync(fd)
                    except OSError:
                        # A part of one would take the place of a whole one.
                        path.unlink(missing_ok=True)
                        raise
                    self._trim(path.name)
                    return path.name
        except OSError as error:
            logger.error("no crash report could be written: %s", error.strerror)
        return None

    def _trim(self, written: str) -> None:
        """Remove all but the newest reports, and no other file.

        Args:
            written: the newest, whatever the clock said when the others were written.
        """
        names = {one.name for one in self._folder.iterdir() if _NAME.fullmatch(one.name)}
        found = sorted(names - {written})
        for name in found[: max(0, len(found) - (MAX_REPORTS - 1))]:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()


def report_of(
    reason: str,
    status: int,
    *,
    error: BaseException | None = None,
    settings: Mapping[str, object] | None = None,
    steps: Mapping[str, object] | None = None,
    counters: Mapping[str, int] | None = None,
    memory: Mapping[str, int] | None = None,
    uptime_s: float = 0.0,
) -> dict[str, Any]:
    """What a report holds; docs/operations.md has its fields.

    Args:
        reason: ``engine_failed``, ``step_stalled`` or ``loop_stalled``.
        status: with which the process ends.
        settings: as ``told_settings`` gives them.
        steps: what the last steps were made of.
        counters: of the engine.
        memory: bytes by name, of the device.
        uptime_s: since the engine was served.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "format": 1,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "reason": reason,
        "exit_status": status,
        "uptime_s": round(uptime_s, 1),
        "versions": versions(),
        "settings": dict(settings or {}),
        "errors": [] if error is None else _chain(error),
        "memory": {"max_rss_bytes": usage.ru_maxrss * 1024, **(memory or {})},
        "counters": {
            name: n for name, n in (counters or {}).items() if re.search(r"_le_\d+$", name) is None
        },
        "threads": stacks_of_threads(),
        "steps": dict(steps or {}),
    }


def told_settings(*configs: object) -> dict[str, object]:
    """What of settings may be told: numbers, switches, and words of a few."""
    told = dict[str, object]()
    for config in configs:
        if not dataclasses.is_dataclass(config):
            continue
        for one in dataclasses.fields(config):
            value = getattr(config, one.name)
            if (
                value is None
                or isinstance(value, bool | int | float)
                or (one.name in _WORDS and isinstance(value, str))
            ):
                told[one.name] = value
    return told


def versions() -> dict[str, str]:
    """Of wkvm, Python, and the packages that matter."""
    found = {"wkvm": wkvm.__version__, "python": platform.python_version()}
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _chain(error: BaseException) -> list[dict[str, object]]:
    """An exception and its causes, newest first: types and places, and what a device said."""
    chain = list[dict[str, object]]()
    for one in causes_of(error):
        told = told_of(one)
        if isinstance(one, RuntimeError) and _DEVICE.match(str(one)):
            told["message"] = str(one)[:2000]
        chain.append(told)
    return chain


def _fitting(report: Mapping[str, Any]) -> bytes:
    """A report as JSON, of which so much is left out that it is short enough."""
    for dropped in ((), ("steps",), ("steps", "threads"), ("steps", "threads", "counters")):
        kept = {
            name: "left out: too long" if name in dropped else value
            for name, value in report.items()
        }
        data = json.dumps(kept, indent=1).encode() + b"\n"
        if len(data) <= MAX_BYTES:
            return data
    return json.dumps({"format": 1, "reason": "too long"}).encode() + b"\n"
