"""A .pth file is described, never run."""

import io
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from wkvm import state
from wkvm.core.errors import BadStateFileError
from wkvm.state.pth import MAX_RECORDS, read_pth


def saved(value: Any, protocol: int = 2) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    return file.getvalue()


def archive(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        for name, data in records.items():
            written.writestr(f"archive/{name}", data)
    return file.getvalue()


class Program:
    """What a pickle makes of itself when it is unpickled: it creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_come_back_as_they_were_saved(protocol: int, dtype: torch.dtype) -> None:
    given = {"a": torch.randn(2, 3).to(dtype), "b": torch.randn(4, 5, 6).to(dtype).transpose(0, 2)}
    found = read_pth(saved(given, protocol))
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given)


def test_a_modules_dictionary_is_one_of_tensors() -> None:
    module = torch.nn.Linear(2, 3)
    found = read_pth(saved(module.state_dict()))
    assert torch.equal(found["weight"], module.weight)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_program_is_not_run(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    program = pickle.dumps({"a": Program(canary)}, protocol)
    with pytest.raises(BadStateFileError):
        read_pth(archive({"data.pkl": program}))
    assert not canary.exists()
    pickle.loads(program)  # the canary sings where it can
    assert canary.exists()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([torch.zeros(1)], "instruction"),
        ({"a": 1}, "other than named tensors"),
        ({1: torch.zeros(1)}, "no names"),
        ({"a": {"b": torch.zeros(1)}}, "other than named tensors"),
        ({"a": torch.zeros(1, dtype=torch.float64)}, "DoubleStorage"),
        ({"a": torch.zeros(1, dtype=torch.int64)}, "LongStorage"),
        (torch.zeros(1), "not a dictionary"),
    ],
)
def test_what_is_no_dictionary_of_floats_is_refused(value: Any, why: str) -> None:
    with pytest.raises(BadStateFileError, match=why):
        read_pth(saved(value))


def test_tensors_that_share_one_storage_do_not_multiply() -> None:
    base = torch.zeros(1000)
    with pytest.raises(BadStateFileError, match="larger than the file"):
        read_pth(saved({f"t{i}": base for i in range(1000)}))


def test_a_tensor_of_more_elements_than_are_stored_is_refused() -> None:
    with pytest.raises(BadStateFileError, match="more elements"):
        read_pth(saved({"a": torch.zeros(1).expand(3)}))


@pytest.mark.parametrize("records", [{}, {"data.pkl": b""}, {"data.pkl": b"\x80\x02."}])
def test_an_archive_without_a_program_is_refused(records: dict[str, bytes]) -> None:
    with pytest.raises(BadStateFileError):
        read_pth(archive(records))


def test_no_module_of_states_has_an_unpickler() -> None:
    folder = Path(state.__file__ or "").parent
    unpickler = re.compile(r"\bimport pickle\b|\bpickle\.loads?\b|\btorch\.load\b|\bmarshal\b")
    found = [path.name for path in folder.glob("*.py") if unpickler.search(path.read_text())]
    assert found == []


def test_compressed_records_are_refused() -> None:
    bomb = archive({"data.pkl": bytes(2**20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(BadStateFileError, match="compressed"):
        read_pth(bomb)


def test_an_archive_of_many_records_is_refused() -> None:
    with pytest.raises(BadStateFileError, match="records"):
        read_pth(archive({str(i): b"" for i in range(MAX_RECORDS + 1)}))


def test_an_archive_of_a_machine_with_other_bytes_is_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(1)}))) as read:
        records = {name.partition("/")[2]: read.read(name) for name in read.namelist()}
    assert read_pth(archive(records)).keys() == {"a"}
    with pytest.raises(BadStateFileError, match="endian"):
        read_pth(archive({**records, "byteorder": b"big"}))
