"""Checkpoint files to named tensors, and nothing of what the tensors mean.

A checkpoint is a folder with ``config.json`` and safetensors files, or one ``.pth`` file.
Nothing in a file is executed.
"""

import hashlib
import json
import os
import pickle
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError
from wkvm.models.safetensors_file import StoredTensor, read_header, reading

PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Weights as many folders had them before safetensors."""

INDEX_NAME = "model.safetensors.index.json"

MAX_DEPTH = 32
"""Of objects and lists within each other in a JSON file."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose headers have been read and hold together. Its data is still on the disk.

    Attributes:
        path: the folder or file.
        config: ``config.json``; empty for a ``.pth`` file.
        generation_config: ``generation_config.json``; empty where there is none.
        files: the weight files, in order of their names.
        stored: the tensors by name. Those of a ``.pth`` file are mapped, not loaded.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    files: tuple[Path, ...]
    stored: Mapping[str, StoredTensor | Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self.stored.items()}

    @property
    def stored_dtype(self) -> str:
        """The dtype that most weights are stored in: torch's name of it."""
        counts = Counter[torch.dtype]()
        for tensor in self.stored.values():
            counts[tensor.dtype] += prod(tensor.shape)
        return str(max(counts, key=counts.__getitem__)).removeprefix("torch.")

    def load(self, name: str) -> Tensor:
        """One tensor, in the dtype it is stored in, in memory of its own.

        Raises:
            CorruptCheckpointError: its file has changed since the headers were read, or cannot be
                read.
        """
        tensor = self.stored[name]
        # A mapped tensor is copied: whoever shortens the file later must not end this process.
        return tensor.load() if isinstance(tensor, StoredTensor) else tensor.clone()

    def load_all(self, names: Sequence[str], device: str) -> Iterator[Tensor]:
        """These tensors in this order, in the dtype they are stored in, on ``cpu`` or ``cuda``.

        Raises:
            CorruptCheckpointError: as ``load``.
        """
        if device == "cpu":
            return map(self.load, names)
        # Here, since it is of no use without a GPU.
        from wkvm.models.upload import uploaded

        tensors = [self.stored[name] for name in names]
        n_bytes = sum(prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)
        return uploaded(tensors, n_bytes, device=device)

    def digest(self) -> str:
        """Hex SHA-256 over the bytes of all weight files, in order of their names.

        Reads every byte once; later calls find the answer under ``$XDG_CACHE_HOME/wkvm``, as long
        as path, size and time of change of each file are the same.

        Raises:
            CorruptCheckpointError: a file cannot be read.
        """
        with reading(self.path):
            return _cached_digest(self.files)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of the checkpoint at ``path``. Cheap: no data is read.

    Raises:
        ModelNotFoundError: nothing there that could be a checkpoint.
        CorruptCheckpointError: a file is cut short, missing, or contradicts another.
        UnsupportedModelError: a kind of file that wkvm does not read.
    """
    try:
        if path.is_dir():
            return _open_folder(path)
        if not path.exists():
            raise ModelNotFoundError(str(path), "no such file or folder")
        if path.suffix == ".pth":
            return Checkpoint(path, {}, {}, (path,), _open_pth(path))
    except OSError as error:
        raise ModelNotFoundError(str(path), f"cannot be read: {error}") from error
    raise UnsupportedModelError(
        str(path), "neither a folder with safetensors files nor a .pth file"
    )


def _open_folder(path: Path) -> Checkpoint:
    files, promised = _weight_files(path)
    config = _read_json(path / "config.json")
    generation = path / "generation_config.json"
    stored = dict[str, StoredTensor | Tensor]()
    for file in files:
        for name, tensor in read_header(file).items():
            if name in stored:
                raise CorruptCheckpointError(str(file), f"{name} is in another file too")
            stored[name] = tensor
    if missing := sorted(promised - stored.keys()):
        raise CorruptCheckpointError(
            str(path / INDEX_NAME), f"names tensors that no file has: {_some(missing)}"
        )
    if not stored:
        raise CorruptCheckpointError(str(path), "its weight files hold no tensor")
    return Checkpoint(
        path, config, _read_json(generation) if generation.exists() else {}, files, stored
    )


def _weight_files(path: Path) -> tuple[tuple[Path, ...], frozenset[str]]:
    """The files, and the tensors that the index says are in them; none without an index."""
    index = path / INDEX_NAME
    if not index.exists():
        single = path / "model.safetensors"
        if not single.is_file():
            _refuse_pickles(path)
            raise ModelNotFoundError(str(path), f"has neither {single.name} nor {INDEX_NAME}")
        return (single,), frozenset()
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptCheckpointError(str(index), "has no weight_map")
    names = {str(name) for name in weight_map.values()}
    for name in names:
        # The index is data: it must not lead out of the folder.
        if Path(name).name != name or name in ("", ".", ".."):
            raise CorruptCheckpointError(str(index), f"names the file {name!r}")
        if not (path / name).is_file():
            raise CorruptCheckpointError(
                str(path / name), "the index names it, but it is not there"
            )
    return tuple(path / name for name in sorted(names)), frozenset(weight_map)


def _refuse_pickles(path: Path) -> None:
    for name in PICKLED:
        if (path / name).exists():
            why = (
                f"has {name}, which could run code when it is read; convert it to safetensors "
                "(docs/models.md)"
            )
            raise UnsupportedModelError(str(path), why)


def _read_json(path: Path) -> dict[str, Any]:
    # Not just whether it exists: a pipe would be waited for without end.
    if not path.is_file():
        raise CorruptCheckpointError(str(path), "missing")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(str(path), f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptCheckpointError(str(path), "not a JSON object")
    level = list[Any](value.values())
    for _ in range(MAX_DEPTH):
        level = [one for inner in level for one in _inside(inner)]
    if level:
        # Whoever goes down there would run out of stack.
        raise CorruptCheckpointError(str(path), f"is nested deeper than {MAX_DEPTH} levels")
    return value


def _inside(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _open_pth(path: Path) -> dict[str, StoredTensor | Tensor]:
    _check_zip(path)
    try:
        loaded = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise UnsupportedModelError(str(path), "holds objects other than tensors") from error
    except OSError:
        raise
    except Exception as error:  # an unpickler that is fed nonsense raises just anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptCheckpointError(str(path), reason) from error
    if not isinstance(loaded, dict) or not loaded:
        raise UnsupportedModelError(str(path), "is not a dictionary of tensors")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UnsupportedModelError(str(path), f"{name!r} is not a named tensor")
        if not tensor.dtype.is_floating_point:
            raise UnsupportedModelError(str(path), f"{name} is of dtype {tensor.dtype}")
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise UnsupportedModelError(str(path), f"{name} is not stored as plain numbers")
        if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise CorruptCheckpointError(str(path), f"{name} has more elements than are stored")
    return loaded


def _check_zip(path: Path) -> None:
    """Make sure that every record lies within the file as it is, since the file will be mapped."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.header_offset + record.compress_size > size:
                    raise CorruptCheckpointError(str(path), f"{record.filename} ends past the file")
                if record.compress_type != zipfile.ZIP_STORED:
                    raise CorruptCheckpointError(str(path), f"{record.filename} is compressed")
    except zipfile.BadZipFile as error:
        raise CorruptCheckpointError(
            str(path), "is cut short, or not written by torch.save since version 1.6"
        ) from error


def _cached_digest(files: tuple[Path, ...]) -> str:
    stats = [(str(file.resolve()), file.stat()) for file in files]
    identity = json.dumps([[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats])
    # The cache only saves time: whatever is wrong with it, the files themselves have the answer.
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # nobody has that home
        return _digest(files)
    entry = base / "wkvm" / "digests" / hashlib.sha256(identity.encode()).hexdigest()
    try:
        cached = entry.read_text("ascii")
    except (OSError, ValueError):
        cached = ""
    if len(cached) == 64 and not set(cached) - set("0123456789abcdef"):
        return cached
    digest = _digest(files)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be writing the same entry: each writes its own file, then renames it.
        draft = entry.with_name(f"{entry.name}.{os.getpid()}")
        draft.write_text(digest, "ascii")
        draft.replace(entry)
    except OSError:
        pass
    return digest


def _digest(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
