"""The digest of a checkpoint: over the bytes of its weight files, remembered while they stay."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.models.tiny_rwkv7 import Tiny, random_weights, write_folder
from wkvm.models.weights import open_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", Tiny(n_layers=1), random_weights(Tiny(n_layers=1)))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_of_one_file_it_is_that_files_sha256(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert open_checkpoint(folder).digest() == sha256(folder / "model.safetensors")


def test_it_is_remembered_until_a_file_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = folder / "model.safetensors"
    checkpoint = open_checkpoint(folder)
    first, stat = checkpoint.digest(), file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert checkpoint.digest() == first
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert checkpoint.digest() == sha256(file) != first


@pytest.mark.parametrize("content", ["", "not a digest", "Z" * 64])
def test_a_damaged_memory_is_not_believed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = open_checkpoint(folder)
    first = checkpoint.digest()
    (entry,) = (tmp_path / "cache/wkvm/digests").iterdir()
    entry.write_text(content)
    assert checkpoint.digest() == first
    assert entry.read_text() == first


def test_without_a_place_to_remember_it_is_computed_all_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    for home in (str(blocked), "~nobody-has-this-name/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert open_checkpoint(folder).digest() == sha256(folder / "model.safetensors")
