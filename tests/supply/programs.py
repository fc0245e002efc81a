"""Bytes and texts that would make a folder, the canary, if anything ran them."""

import base64
import builtins
import io
import marshal
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Program:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


class Evaluated(Program):
    """Likewise, by a name that is everywhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.eval, (_expression(self.canary),)


def blobs(canary: Path) -> list[bytes]:
    """Files of all kinds that are programs, or hold some."""
    program = Program(canary)
    pickles = [pickle.dumps(one, protocol=n) for n in range(6) for one in (program, {"a": program})]
    pickles.append(pickle.dumps(Evaluated(canary)))
    code = compile(_expression(canary), "canary", "eval")
    objects = np.array([program], dtype=object)
    header = b'{"__metadata__":{"format":"' + _expression(canary).encode().hex().encode() + b'"}}'
    return [
        *pickles,
        *(_saved(program, is_zip=is_zip) for is_zip in (True, False)),
        _zip({"archive/data.pkl": pickles[-2], "archive/version": b"3"}),
        _zip({"__main__.py": _expression(canary).encode()}),
        _array(objects),
        _array(objects, is_archive=True),
        marshal.dumps(code),
        b"\xa7\r\r\n" + bytes(12) + marshal.dumps(code),
        b"GGUF\x03\x00\x00\x00" + bytes(64) + pickles[-1],
        len(header).to_bytes(8, "little") + header,
        *(text.encode() for text in texts(canary)),
    ]


def texts(canary: Path) -> list[str]:
    """Texts that some language, or some library, would run."""
    expression = _expression(canary)
    return [
        expression,
        f"{{{{ cycler.__init__.__globals__.os.mkdir('{canary}') }}}}",
        f"{{% set x = lipsum.__globals__['os'].mkdir('{canary}') %}}",
        f"!!python/object/apply:os.mkdir ['{canary}']",
        f"$(mkdir {canary})`mkdir {canary}`;mkdir {canary}",
        f"'; ATTACH DATABASE '{canary}' AS canary; --",
        f"{{0.__class__.__init__.__globals__[os].mkdir({canary})}}",
        base64.b64encode(pickle.dumps(Program(canary))).decode(),
        f"file://{canary}",
        "http://127.0.0.1:9/canary",
    ]


def _expression(canary: Path) -> str:
    return f"__import__('os').mkdir({str(canary)!r})"


def _saved(program: Program, *, is_zip: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"blocks.0.att.time_state": program}, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


def _array(objects: Any, *, is_archive: bool = False) -> bytes:
    file = io.BytesIO()
    if is_archive:
        np.savez(file, a=objects)
    else:
        np.save(file, objects, allow_pickle=True)
    return file.getvalue()


def _zip(records: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return file.getvalue()
