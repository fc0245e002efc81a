"""Random damage to any byte of a store: found before it is used, and of no concern to others.

``test_store_damage.py`` has each kind of damage once, by name.
"""

import contextlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import amount, seed, tell
from tests.state.images import KINDS, an_image, same
from tests.state.simulated import IN_MEMORY
from tests.state.stores import CREATE, Clock, opened
from wkvm.core.errors import BadStoreError, StateDamagedError, StoreFailedError, WkvmError
from wkvm.state.format import header_bytes
from wkvm.state.image import StateImage
from wkvm.state.store import Store

N_HANDLES = 24
LENGTHS = (0, 1, 3, 40, 1100, 3000)
"""Tokens of the states."""
SECTOR, BLOCK = 512, 4096

Images = dict[str, tuple[int, str, int]]
"""By version what ``an_image`` makes it of: a seed, a layout and a number of tokens."""


@pytest.fixture
def pristine() -> Iterator[tuple[Path, Images]]:
    """A store that is closed, and what is in it: two versions of each handle."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        images = Images()
        with opened(Path(folder) / "store") as store:
            for version in (1, 2):
                for at in range(N_HANDLES):
                    kind = list(KINDS)[at % 2]
                    of = (version * 100 + at, kind, LENGTHS[at % len(LENGTHS)])
                    image = an_image(of[0], layout=KINDS[of[1]], n_tokens=of[2])
                    record = store.commit("t", f"n{at}", image, provenance=CREATE)
                    images[str(record.ref)] = of
        yield Path(folder), images


def made(of: tuple[int, str, int]) -> StateImage:
    return an_image(of[0], layout=KINDS[of[1]], n_tokens=of[2])


# --- payloads -----------------------------------------------------------------------------


def damage(path: Path, others: list[Path], choose: random.Random) -> str:
    """Damage a file in a way of many. Which one."""
    good = path.read_bytes()
    n_header = header_bytes(good[:8])
    while True:
        bad, kind = bytearray(good), choose.choice(KINDS_OF_DAMAGE)
        match kind:
            case "a bit of the length":
                bad[choose.randrange(8)] ^= 1 << choose.randrange(8)
            case "a bit of the header":
                bad[choose.randrange(8, n_header)] ^= 1 << choose.randrange(8)
            case "a bit of the data" if len(good) > n_header:
                bad[choose.randrange(n_header, len(good))] ^= 1 << choose.randrange(8)
            case "the last byte":
                bad[-1] ^= 1 << choose.randrange(8)
            case "some bytes":
                at = choose.randrange(len(bad))
                bad[at : at + 8] = choose.randbytes(len(bad[at : at + 8]))
            case "a sector of zeros":
                at = choose.randrange(-(-len(bad) // SECTOR)) * SECTOR
                bad[at : at + SECTOR] = bytes(len(bad[at : at + SECTOR]))
            case "a block of its own":
                n = -(-len(bad) // BLOCK)
                to, at = choose.randrange(n) * BLOCK, choose.randrange(n) * BLOCK
                piece = bad[at : at + BLOCK][: len(bad) - to]
                bad[to : to + len(piece)] = piece
            case "an end at a block":
                del bad[choose.randrange(0, len(bad), BLOCK) :]
            case "an end anywhere":
                del bad[choose.randrange(len(bad)) :]
            case "more bytes":
                bad += choose.randbytes(choose.choice((1, SECTOR, BLOCK)))
            case "zeros at its end":
                at = choose.randrange(len(bad))
                bad[at:] = bytes(len(bad) - at)
            case "another file":
                bad = bytearray(choose.choice(others).read_bytes())
            case "no file":
                path.unlink()
                return kind
            case _:
                continue
        if bad != good:
            path.write_bytes(bad)
            return kind


KINDS_OF_DAMAGE = (
    "a bit of the length",
    "a bit of the header",
    "a bit of the data",
    "the last byte",
    "some bytes",
    "a sector of zeros",
    "a block of its own",
    "an end at a block",
    "an end anywhere",
    "more bytes",
    "zeros at its end",
    "another file",
    "no file",
)


def files_by_ref(folder: Path) -> dict[str, Path]:
    """The payload file of each version."""
    with opened(folder) as store:
        rows = store._catalogue.read(
            "SELECT h.name, v.version, p.file FROM versions v JOIN handles h ON h.id = v.handle "
            "JOIN payloads p ON p.id = v.payload"
        )
    return {f"{name}@{version}": folder / "payloads" / file for name, version, file in rows}


def test_no_damage_to_a_payload_is_used_and_nothing_else_is_concerned(
    pristine: tuple[Path, Images],
) -> None:
    folder, images = pristine
    choose, wanted, kinds = random.Random(seed()), amount(400, 12_500), Counter[str]()
    here = {ref: path.name for ref, path in files_by_ref(folder / "store").items()}
    expected = {ref: made(of) for ref, of in images.items()}
    originals = [folder / "store" / "payloads" / name for name in here.values()]
    while kinds.total() < wanted:
        store_folder = folder / "damaged"
        shutil.copytree(folder / "store", store_folder)
        damaged = choose.sample(sorted(here), choose.randint(1, len(here) - 1))
        for ref in damaged:
            path = store_folder / "payloads" / here[ref]
            others = [one for one in originals if one.name != path.name]
            kinds[damage(path, others, choose)] += 1
        left = {
            path.read_bytes()
            for ref in damaged
            if (path := store_folder / "payloads" / here[ref]).exists()
        }
        with opened(store_folder) as store:
            for ref in choose.sample(sorted(here), len(here)):
                if ref in damaged:
                    with pytest.raises(StateDamagedError):
                        store.load("t", ref)
                else:
                    assert same(store.load("t", ref).image, expected[ref]), ref
            assert sorted(one.ref for one in store.check().findings) == sorted(damaged)
            assert store.stat().n_damaged == len(damaged)
        kept = {path.read_bytes() for path in (store_folder / "quarantine").iterdir()}
        assert kept == left, "what was put apart is not what was found"
        shutil.rmtree(store_folder)
    assert set(kinds) == set(KINDS_OF_DAMAGE)
    tell(5, "payloads are damaged", kinds.total(), "damages", kinds=len(kinds))


# --- the catalogue ------------------------------------------------------------------------


def rot(path: Path, choose: random.Random) -> None:
    """Change a few bytes of a database."""
    content = bytearray(path.read_bytes())
    for _ in range(choose.choice((1, 1, 1, 4))):
        match choose.randrange(4):
            case 0:
                content[choose.randrange(100)] ^= 1 << choose.randrange(8)
            case 1:
                at = choose.randrange(len(content))
                content[at : at + 4] = choose.randbytes(len(content[at : at + 4]))
            case _:
                content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)


def look(store: Store, images: Images) -> bool:
    """Ask for everything. Whether it is all there; what is not there is an error with a type."""
    is_whole = True
    for ref, of in images.items():
        try:
            found = store.load("t", ref)
        except WkvmError:
            is_whole = False
        else:
            assert str(found.record.ref) == ref
            assert same(found.image, made(of)), f"{ref}: other bytes"
    with contextlib.suppress(WkvmError):
        for handle in store.handles("t", limit=1000):
            assert str(handle.head.ref) in images
    for name in ("n0", "n1"):
        with pytest.raises(WkvmError):
            store.load("u", name)
    return is_whole


def is_found(store: Store) -> bool:
    """Whether a check says that something is wrong."""
    try:
        return bool(store.check().findings)
    except WkvmError:
        return True


def test_no_damage_to_the_catalogue_makes_a_state_another_one(
    pristine: tuple[Path, Images],
) -> None:
    folder, images = pristine
    choose, n, kinds = random.Random(seed()), amount(60, 1000), Counter[str]()
    payloads = {path.stem for path in (folder / "store" / "payloads").iterdir()}
    for at in range(n):
        here = folder / "damaged"
        shutil.copytree(folder / "store", here)
        rot(here / "catalogue.db", choose)
        try:
            store = Store.open(str(here), clock=Clock())
        except (BadStoreError, StoreFailedError):
            kinds["not opened"] += 1
        else:
            with contextlib.closing(store):
                is_whole = look(store, images)
                assert is_whole or is_found(store), (at, "a state is gone and nothing says why")
                with contextlib.suppress(WkvmError):
                    store.gc()
            kinds["whole" if is_whole else "some refused"] += 1
        kept = [path.name for one in ("payloads", "quarantine") for path in (here / one).iterdir()]
        assert payloads <= {name.partition(".")[0] for name in kept}, (at, "a payload was removed")
        shutil.rmtree(here)
    figures = {key.replace(" ", "_"): count for key, count in kinds.items()}
    tell(5, "the catalogue is damaged", n, "damages", **figures)
