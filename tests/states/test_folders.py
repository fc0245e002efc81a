"""Servers on folders and disks that are against them: over both doors, what is right is served."""

import os
import shutil
from pathlib import Path

import pytest

from tests.states.book import History
from tests.states.doors import Door
from tests.states.rig import MakeRig, small_disk
from tests.states.test_refusals import OPERATIONS, READING, fill, refusal
from wkvm.assembly.states import check_states
from wkvm.core.state_config import StateConfig

PROMPT = tuple(range(9))
AFTER = History().after(PROMPT)


async def is_served(door: Door, name: str, history: History = AFTER) -> bool:
    """Whether a state is there, with the ids that go on from it."""
    return (await door.generate([], 3, state=name)).ids == history.generated([], 3)[0]


def take_all_bytes(folder: Path, name: str) -> None:
    """Take every byte that is left."""
    with (folder / name).open("wb", buffering=0) as file:
        for n in (2**20, 4096, 1):
            try:
                while True:
                    file.write(bytes(n))
            except OSError:
                pass
    assert os.statvfs(folder).f_bavail == 0


async def test_a_server_starts_on_a_disk_without_a_free_byte_serves_and_deletes(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", mib=16) as disk:
        async with make_rig(folder=disk / "store") as rig:
            for at in range(4):
                await rig.door("anna").create(f"s{at}", PROMPT)
        for at in range(3):
            take_all_bytes(disk, f"filler {at}")
            check_states(StateConfig(folder=str(disk / "store")))
            async with make_rig(folder=disk / "store") as rig:
                door = rig.door("anna")
                take_all_bytes(disk, f"filler {at} too")
                assert await is_served(door, "s3")
                assert (await refusal(door.create("new", PROMPT))).code == "STORE_FULL"
                await door.delete(f"s{at}")
                assert {one.name for one in await door.handles()} == {
                    f"s{other}" for other in range(at + 1, 4)
                }
        for filler in disk.glob("filler*"):
            filler.unlink()
        async with make_rig(folder=disk / "store") as rig:
            assert await is_served(rig.door("anna"), "s3")
            await rig.door("anna").create("new", PROMPT)


async def test_one_tenant_on_a_full_disk_deletes_and_another_has_that_room(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", mib=12) as disk:
        async with make_rig(folder=disk / "store", n_words=2**17) as rig:
            anna, bert = rig.door("anna"), rig.door("bert")
            await bert.create("mine", PROMPT)
            made = list[str]()
            assert (await refusal(fill(anna, made))).code == "STORE_FULL"
            assert len(made) > 2
            assert (await refusal(bert.create("more", [1]))).code == "STORE_FULL"
            for name in made[:2]:  # the catalogue's log takes a little of it
                await anna.delete(name)
            assert (await bert.create("more", [1])).ack == "durable"
            assert (await bert.hibernate("mine")).ack == "durable"
            assert await is_served(bert, "mine")


async def test_a_folder_full_of_strangers_is_served_from_and_nothing_of_them_is_followed(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"not of wkvm")
    async with make_rig(folder=folder) as rig:
        for name in ("mine", "linked", "piped"):
            await rig.door("anna").create(name, [*PROMPT, ord(name[0]) % 8])
            (folder / f"{name} is here").symlink_to(rig.newest_file())
    payloads = folder / "payloads"
    here = {}
    for name in ("linked", "piped"):
        here[name] = (folder / f"{name} is here").readlink()
    for link in folder.glob("* is here"):
        link.unlink()
    shutil.move(here["linked"], outside / "state")
    here["linked"].symlink_to(outside / "state")
    here["piped"].unlink()
    os.mkfifo(here["piped"])
    (payloads / ("0" * 32 + ".safetensors")).symlink_to(outside / "secret")
    (payloads / ("1" * 32 + ".tmp")).symlink_to("/dev/zero")
    (payloads / "deep").mkdir()
    (payloads / "deep" / "file").write_bytes(b"x")
    os.mkfifo(payloads / "a pipe")
    (folder / "loop").symlink_to(".")
    with (folder / "huge").open("wb") as huge:
        huge.truncate(2**42)
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    async with make_rig(folder=folder) as rig:
        door = rig.door("anna")
        assert await is_served(door, "mine", History().after([*PROMPT, ord("m") % 8]))
        for name in ("linked", "piped"):
            for operation in READING:
                assert (await refusal(OPERATIONS[operation](door, name))).code == "STATE_DAMAGED"
        await door.create("new", PROMPT)
        assert {path.name for path in folder.iterdir()} >= {"payloads", "quarantine", "lock"}
        assert not {"loop", "huge"} & {path.name for path in folder.iterdir()}
        assert (folder.stat().st_mode & 0o777) == 0o700
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


@pytest.mark.parametrize("older", [1, 2])
async def test_an_old_version_in_the_place_of_a_new_one_is_refused_and_others_stand(
    make_rig: MakeRig, tmp_path: Path, older: int
) -> None:
    folder = tmp_path / "store"
    async with make_rig(folder=folder) as rig:
        door, files, history = rig.door("anna"), dict[int, Path](), History()
        for version in (1, 2, 3):
            expected, history = history.generated([version], 2)
            turn = await door.generate([version], 2, state="s" if version > 1 else "", save_as="s")
            assert (turn.ids, turn.version) == (expected, version)
            files[version] = rig.newest_file()
    shutil.copyfile(files[older], files[3])
    async with make_rig(folder=folder) as rig:
        door = rig.door("anna")
        for operation in READING:
            assert (await refusal(OPERATIONS[operation](door, "s"))).code == "STATE_DAMAGED"
        assert (await refusal(door.generate([], 2, state="s@3"))).code == "STATE_DAMAGED"
        assert (await door.get("s")).version == 3
        # Whoever wants to go on does so from a version that is named, and gets a new number.
        known = await door.rollback("s", version=2)
        assert known.version == 4
        assert (await door.generate([7], 2, state="s")).cached_tokens > 0
        data = await door.export("s@2")
        for expected_version in (1, 2, 3):
            asking = door.importing("s", data, expected_version=expected_version)
            assert (await refusal(asking)).code == "STALE_VERSION"
        assert (await door.get("s")).version == 4
