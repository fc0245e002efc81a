"""Tensors of a ``.pth`` file that may be anybody's, without an unpickler.

Such a file is a zip archive of a pickle and of the tensors' bytes. A pickle is a program. This
module runs the few instructions that describe a dictionary of tensors, over values of its own, and
refuses all others: no class is looked up, nothing is imported or called.
"""

import io
import pickletools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from wkvm.core.errors import BadStateFileError

MAX_PICKLE_BYTES = 2**20
MAX_RECORDS = 4096
"""Of the archive."""

STORAGES = {
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
}
"""The dtypes that are read, by the names that pickles have for them."""


@dataclass(frozen=True, slots=True)
class _Global:
    """The name of a class or function, and nothing but the name."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """A record of the archive that holds numbers."""

    dtype: torch.dtype
    key: str


@dataclass(frozen=True, slots=True)
class _Strided:
    """A tensor, not read yet."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.storage.dtype.itemsize


class _Mark:
    """Where the arguments of an instruction begin on the stack."""


def read_pth(file: bytes | memoryview) -> dict[str, Tensor]:
    """The tensors by name, in memory of their own.

    Takes at most four times the file's memory.

    Raises:
        BadStateFileError: it is not a dictionary of named tensors as ``torch.save`` writes it, or
            it is damaged.
    """
    # Each entry of the archive's directory begins so; zipfile makes an object of each.
    if bytes(file).count(b"PK\x01\x02") > MAX_RECORDS:
        raise BadStateFileError(f"an archive of more than {MAX_RECORDS} records")
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            return _read(archive, len(file))
    except BadStateFileError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, OSError) as error:
        raise BadStateFileError(f"a damaged .pth file: {error}") from error


def _read(archive: zipfile.ZipFile, n_bytes: int) -> dict[str, Tensor]:
    records = dict[str, zipfile.ZipInfo]()
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise BadStateFileError("a .pth file with compressed records")
        # All records are in a folder whose name is that of the file when it was written.
        records[info.filename.partition("/")[2]] = info
    if sum(info.file_size for info in records.values()) > n_bytes:
        raise BadStateFileError("a .pth file whose records overlap")
    pickle = records.get("data.pkl")
    if pickle is None or pickle.file_size > MAX_PICKLE_BYTES:
        raise BadStateFileError("not a .pth file of version 1.6 or later, or one of many objects")
    if (order := records.get("byteorder")) is not None and archive.read(order) != b"little":
        raise BadStateFileError("a .pth file of a big-endian machine")
    described = _Machine().run(archive.read(pickle))
    if not isinstance(described, dict):
        raise BadStateFileError("not a dictionary of tensors")
    stored = dict[str, tuple[_Strided, zipfile.ZipInfo]]()
    for name, strided in described.items():
        if not isinstance(strided, _Strided):
            raise BadStateFileError("holds objects other than named tensors")
        record = records.get(f"data/{strided.storage.key}")
        if record is None:
            raise BadStateFileError(f"{name:.64} has no data")
        _check_inside(name, strided, record.file_size)
        stored[name] = strided, record
    # One record may be that of many tensors, each of which would get memory of its own.
    if sum(strided.nbytes for strided, _ in stored.values()) > n_bytes:
        raise BadStateFileError("its tensors are larger than the file")
    return {name: _load(strided, archive.read(info)) for name, (strided, info) in stored.items()}


def _check_inside(name: str, strided: _Strided, n_bytes: int) -> None:
    """Make sure that all elements lie in the record, and are not more than it has."""
    numbers = (strided.offset, *strided.shape, *strided.strides)
    if not all(type(n) is int and 0 <= n <= n_bytes for n in numbers):
        raise BadStateFileError(f"{name:.64} is no tensor")
    n_items = n_bytes // strided.storage.dtype.itemsize
    steps = zip(strided.shape, strided.strides, strict=True)
    last = strided.offset + sum((n - 1) * step for n, step in steps)
    if strided.nbytes > n_bytes or (strided.nbytes and last >= n_items):
        raise BadStateFileError(f"{name:.64} has more elements than are stored")


def _load(strided: _Strided, data: bytes) -> Tensor:
    if not data:
        return torch.empty(strided.shape, dtype=strided.storage.dtype)
    itemsize = strided.storage.dtype.itemsize
    whole = bytearray(data[: len(data) // itemsize * itemsize])
    flat = torch.frombuffer(whole, dtype=strided.storage.dtype)
    return flat.as_strided(strided.shape, strided.strides, strided.offset).clone()


class _Machine:
    """A stack and a memo, for one pickle."""

    def __init__(self) -> None:
        self._stack = list[Any]()
        self._memo = dict[int, Any]()

    def run(self, pickle: bytes) -> Any:
        """The value that the program ends with.

        Raises:
            BadStateFileError: an instruction that is not among the few, or that finds on the stack
                what it cannot take.
        """
        try:
            for opcode, argument, _ in pickletools.genops(pickle):
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._step(opcode.name, argument)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise BadStateFileError(f"a damaged pickle: {type(error).__name__}") from error
        raise BadStateFileError("a pickle without an end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(_Mark)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                n = int(name[-1])
                stack[-n:] = [tuple(stack[-n:])]
            case "TUPLE":
                stack.append(tuple(self._above_mark()))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_Global(argument))
            case "STACK_GLOBAL":
                module, of_module = stack.pop(-2), stack.pop()
                stack.append(_Global(f"{module} {of_module}"))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._dictionary()[_key(key)] = value
            case "SETITEMS":
                items = self._above_mark()
                dictionary = self._dictionary()
                for key, value in _pairs(items):
                    dictionary[_key(key)] = value
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                stack.append(_reduced(called, arguments))
            case "BUILD":
                stack.pop()  # attributes of an ordered dictionary, of no use here
                self._dictionary()
            case _:
                raise BadStateFileError(f"a pickle with the instruction {name}")

    def _above_mark(self) -> list[Any]:
        at = len(self._stack) - 1 - self._stack[::-1].index(_Mark)
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _dictionary(self) -> dict[str, Any]:
        top = self._stack[-1]
        if not isinstance(top, dict):
            raise BadStateFileError("a pickle that fills what is no dictionary")
        return top


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise BadStateFileError("a dictionary with keys that are no names")
    return key


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


def _storage(described: Any) -> _Storage:
    kind, of_dtype, key, *_ = described
    if kind != "storage" or not isinstance(of_dtype, _Global) or not isinstance(key, str):
        raise BadStateFileError("a pickle that refers to what is no storage")
    dtype = STORAGES.get(of_dtype.name)
    if dtype is None:
        raise BadStateFileError(f"tensors of {of_dtype.name:.64}, not of {list(STORAGES)}")
    return _Storage(dtype, key)


def _reduced(called: Any, arguments: Any) -> Any:
    """What torch's own functions make of their arguments; others are not called."""
    name = called.name if isinstance(called, _Global) else ""
    match name:
        case "torch._utils _rebuild_tensor_v2":
            storage, offset, shape, strides = arguments[:4]
            if not isinstance(storage, _Storage) or len(shape) != len(strides):
                raise BadStateFileError("a tensor without a storage")
            return _Strided(storage, offset, tuple(shape), tuple(strides))
        case "torch._utils _rebuild_parameter":
            return arguments[0]
        case "collections OrderedDict" if arguments == ():
            return {}
        case _:
            raise BadStateFileError(f"a pickle that calls {name:.64}")
