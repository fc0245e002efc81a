"""What any version of wkvm has written is read as what it was, or refused by a rule."""

import hashlib
import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

from tests.soak import tell
from tests.state.corpus import CONTENTS, HERE, RECORDS, contents_of, facts_of
from tests.state.stores import opened, put
from wkvm.core.errors import BadStateFileError, BadStoreError
from wkvm.state.catalogue import SCHEMA_VERSION
from wkvm.state.exchange import Receiver, export_image
from wkvm.state.format import FORMAT, decode_header, header_bytes
from wkvm.state.image import decode_image, encode_image

EXPECTED = json.loads(CONTENTS.read_text())
STATES = sorted(path.name for path in HERE.glob("*.safetensors"))
STORES = sorted(path.name for path in HERE.glob("store-*.tar.xz"))

SUMS = dict(line.split()[::-1] for line in (HERE / "SHA256SUMS").read_text().splitlines())
"""Of each file, as it was written. A line is added, and never changed."""


def unpack(name: str, folder: Path) -> None:
    """An archive's files in a folder. They are our own, as their digests say."""
    with tarfile.open(HERE / name) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Python before 3.11.4
            archive.extractall(folder)


def test_no_file_of_the_corpus_was_changed_or_taken_away() -> None:
    here = {path.name: path for path in HERE.iterdir() if path.suffix in (".safetensors", ".xz")}
    assert here.keys() == SUMS.keys() == EXPECTED.keys()
    for name, path in here.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == SUMS[name], name


def test_every_format_that_there_is_has_files() -> None:
    assert any(name.startswith(f"state-{FORMAT}-") for name in STATES)
    assert f"export-{FORMAT}.safetensors" in STATES
    assert f"store-{SCHEMA_VERSION}.tar.xz" in STORES


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_read_as_what_it_was(name: str) -> None:
    image = decode_image((HERE / name).read_bytes())
    assert json.loads(json.dumps(facts_of(image))) == EXPECTED[name]


@pytest.mark.parametrize("name", STATES)
def test_what_is_written_under_a_number_is_what_was_written_under_it(name: str) -> None:
    kind, number, *_ = name.removesuffix(".safetensors").split("-")
    if number != FORMAT:
        return  # wkvm reads it, and writes the newest alone
    data = (HERE / name).read_bytes()
    image = decode_image(data)
    if kind == "export":
        assert b"".join(export_image(image, RECORDS, omitted=2).chunks()) == data
    else:
        assert encode_image(image).tobytes() == data


def test_an_export_is_imported_with_its_history() -> None:
    for path in HERE.glob("export-*.safetensors"):
        data = path.read_bytes()
        image = decode_image(data)
        receiver = Receiver(len(data), image.identity, image.layout, vocab_size=2**31 - 1)
        receiver.feed(data)
        imported = receiver.finish()
        assert imported.history.records == RECORDS
        assert imported.history.omitted == 2
        assert json.loads(json.dumps(facts_of(imported.image))) == EXPECTED[path.name]


@pytest.mark.parametrize("name", STORES)
def test_a_store_has_what_it_had_and_goes_on(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path)
    with opened(tmp_path / "store") as store:
        assert json.loads(json.dumps(contents_of(store))) == EXPECTED[name]
        assert store.check().findings == ()
        # Numbers of names and versions that were there are not given again, and keys are known.
        assert put(store, "gone", 7).version > 1
        assert put(store, "a", 8).version == 5
        assert store.committed("t", "a", "k") is not None
    with opened(tmp_path / "store") as store:
        assert store.check().findings == ()


@pytest.mark.parametrize("number", ["0", "2", "10", "01", "", "next"])
def test_a_state_of_another_format_is_refused_by_its_number(number: str) -> None:
    data = (HERE / f"state-{FORMAT}-rwkv7.safetensors").read_bytes()
    old = f'"wkvm.format":"{FORMAT}"'.encode()
    header = data[8 : header_bytes(data[:8])]
    assert header.count(old) == 1
    changed = header.replace(old, f'"wkvm.format":"{number}"'.encode()).rstrip()
    raw = data[:8] + changed.ljust(len(header))
    with pytest.raises(BadStateFileError, match=f"format {number}, not {FORMAT}"):
        decode_header(raw)


@pytest.mark.parametrize("number", [0, SCHEMA_VERSION + 1, 2**31 - 1])
def test_a_store_of_another_format_is_refused_and_left_as_it_is(
    number: int, tmp_path: Path
) -> None:
    unpack(STORES[-1], tmp_path)
    folder = tmp_path / "store"
    with sqlite3.connect(folder / "catalogue.db") as database:
        database.execute(f"PRAGMA user_version={number}")
    database.close()
    before = {path: path.read_bytes() for path in (folder / "payloads").iterdir()}
    with pytest.raises(BadStoreError, match="format"), opened(folder):
        pass
    assert {path: path.read_bytes() for path in (folder / "payloads").iterdir()} == before


def test_all_of_the_corpus_is_told() -> None:
    for name in STATES:
        image = decode_image((HERE / name).read_bytes())
        assert encode_image(image).content_id == EXPECTED[name]["content_id"]
    tell(12, "files of all versions are read as what they were", len(EXPECTED), "files")
