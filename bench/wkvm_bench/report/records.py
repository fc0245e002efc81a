"""Lines of results as they are read: every one with the name of its file."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from wkvm_bench.harness import BenchError

Record: TypeAlias = dict[str, Any]
"""A line, and under ``file`` the name of the file that it was in."""
NAMES = ("bench", "case", "command")
"""Fields that tell lines from each other."""
_NOT_ASKED = re.compile(r" --results \S+| --commit .*?(?= --|$)")
"""What of a command changes nothing of what is measured: the folder of the lines, and the commit,
which tools are told where there is no git."""
SHARED = 1.5
"""From so many processes a core on, a run shares the machine with others."""


def read(paths: Iterable[Path]) -> list[Record]:
    """All lines of files, and of the ``.jsonl`` files of folders, in the order of their names.

    Raises:
        BenchError: a path is neither, or a line is no object of JSON.
    """
    records = list[Record]()
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if path.is_dir() and not files:
            raise BenchError(f"{path}: no file of it ends in .jsonl")
        for file in files:
            records += _lines(file)
    return records


def _lines(file: Path) -> list[Record]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise BenchError(f"{file}: {why}") from error
    records = list[Record]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            # Half a character can be written in JSON, and in no report.
            json.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise BenchError(f"{file}, line {number}: no JSON object")
        for name in NAMES:
            if not isinstance(record.get(name, ""), str):
                raise BenchError(f"{file}, line {number}: {name!r} is no text")
        if command := record.get("command"):
            record["command"] = _NOT_ASKED.sub("", command)
        records.append({**record, "file": file.name})
    return records


def latest(records: Sequence[Record]) -> list[Record]:
    """Of the lines of a case of a command, the last; lines without a case all stay."""
    kept = dict[object, Record]()
    for number, record in enumerate(records):
        key: object = number
        if "bench" in record and "case" in record:
            key = (record["bench"], record["case"], record.get("command"))
            kept.pop(key, None)
        kept[key] = record
    return list(kept.values())


def place(record: Record) -> str:
    """What a figure was measured on: the GPU, where the machine has one."""
    return str(record.get("gpu") or record.get("device") or "a machine without a name")


def place_and_load(*records: Record) -> str:
    """What lines were measured on, and how busy a machine was that had more to do than this."""
    n_cores = records[0].get("n_cores", 1)
    loads = [record.get("load", 0.0) for record in records]
    busy = sorted({f"{load:.0f}" for load in loads if load > SHARED * n_cores}, key=float)
    if not busy:
        return place(records[0])
    told = busy[0] if len(busy) == 1 else f"{busy[0]} to {busy[-1]}"
    return f"{place(records[0])}, at a load of {told} on {n_cores} cores"
