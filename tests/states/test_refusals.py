"""What must not be is refused, typed, over both doors, and nothing is changed or left behind."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.states.book import History
from tests.states.doors import Door, Refused
from tests.states.rig import MakeRig, rig_running, small_disk
from wkvm.core.errors import PromptTooLongError
from wkvm.core.registry import Carried
from wkvm.state.format import data_bytes, encode_header

OPERATIONS: dict[str, Callable[[Door, str], Awaitable[Any]]] = {
    "generate": lambda door, name: door.generate([1], 2, state=name),
    "generate and keep": lambda door, name: door.generate([1], 2, state=name, save_as=name),
    "generate and keep elsewhere": lambda door, name: door.generate(
        [1], 2, state=name, save_as="elsewhere"
    ),
    "get": lambda door, name: door.get(name),
    "fork": lambda door, name: door.fork(name, ["child"]),
    "snapshot": lambda door, name: door.snapshot(name),
    "hibernate": lambda door, name: door.hibernate(name),
    "resume": lambda door, name: door.resume(name),
    "rollback": lambda door, name: door.rollback(name, version=1),
    "rename": lambda door, name: door.edit(name, rename="other"),
    "tag": lambda door, name: door.edit(name, tags={"a": "b"}),
    "expire": lambda door, name: door.edit(name, expires_in_s=60.0),
    "delete": lambda door, name: door.delete(name),
    "mutate": lambda door, name: door.mutate([name], "scale", "changed", factor=0.5),
    "diff": lambda door, name: door.diff(name, name),
    "log": lambda door, name: door.log(name),
    "replay": lambda door, name: door.replay(name),
    "export": lambda door, name: door.export(name),
}
"""All that names a state which must be there."""

OF_HANDLES = {"rollback", "rename", "tag", "expire", "generate and keep"}
"""Those that take a handle, and no version of one."""

READING = ("generate", "generate and keep", "resume", "export", "diff")
"""Those that need its bytes."""

MAKING: dict[str, Callable[[Door, str], Awaitable[Any]]] = {
    "create": lambda door, name: door.create(name, [1, 2]),
    "generate": lambda door, name: door.generate([1], 2, save_as=name),
    "fork": lambda door, name: door.fork("mine", [name]),
    "rename": lambda door, name: door.edit("mine", rename=name),
}
"""All that makes a name."""

BAD_NAMES = ("../x", "a/b", ".", "..", "-x", "a b", "x" * 129, "nul\0", "\uff0e\uff0e", "%2e%2e")
PROMPT = tuple(range(9))


async def with_one_state(door: Door) -> History:
    await door.create("mine", PROMPT)
    return History().after(PROMPT)


async def fill(door: Door, made: list[str]) -> None:
    """Create states, at most 20, and note their names."""
    while len(made) < 20:
        await door.create(f"s{len(made)}", [len(made)])
        made.append(f"s{len(made)}")


async def refusal(asking: Awaitable[Any]) -> Refused:
    with pytest.raises(Refused) as refused:
        await asking
    return refused.value


async def test_another_tenants_state_is_answered_as_one_that_never_was(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        anna, bert = rig.door("anna"), rig.door("bert")
        history = await with_one_state(anna)
        before = rig.everything()
        for name, operation in OPERATIONS.items():
            foreign = await refusal(operation(bert, "mine"))
            absent = await refusal(operation(bert, "none"))
            assert foreign.code == absent.code == "STATE_NOT_FOUND", name
            assert foreign.message.replace("mine", "none") == absent.message, name
        assert await bert.handles() == []
        await rig.at_rest()
        assert rig.everything() == before
        assert (await anna.generate([], 3, state="mine")).ids == history.generated([], 3)[0]


async def test_two_tenants_have_names_of_their_own(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        anna, bert = rig.door("anna"), rig.door("bert")
        history = await with_one_state(anna)
        await bert.create("mine", [60])
        assert (await bert.get("mine")).n_tokens == 1
        await bert.delete("mine")
        assert (await anna.generate([], 3, state="mine")).ids == history.generated([], 3)[0]


@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - OF_HANDLES))
async def test_a_version_that_is_not_there_is_not_found(make_rig: MakeRig, operation: str) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await with_one_state(door)
        before = rig.everything()
        refused = await refusal(OPERATIONS[operation](door, "mine@99"))
        assert refused.code == "STATE_NOT_FOUND"
        await rig.at_rest()
        assert rig.everything() == before


async def test_a_name_that_is_none_is_refused_wherever_it_may_be_given(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await with_one_state(door)
        before = rig.everything()
        for bad in BAD_NAMES:
            for operation in (*OPERATIONS.values(), *MAKING.values()):
                assert (await refusal(operation(door, bad))).code in (
                    "INVALID_PARAMETER",
                    "STATE_NOT_FOUND",
                    "UNSUPPORTED_OPERATION",
                ), bad
        await rig.at_rest()
        assert rig.everything() == before


async def test_a_stale_version_changes_nothing(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await with_one_state(door)
        await door.generate([1], 2, state="mine", save_as="mine", expected_version=1)
        data = await door.export("mine")
        before = rig.everything()
        for expected in (0, 1, 3):
            for asking in (
                door.generate([1], 2, state="mine", save_as="mine", expected_version=expected),
                door.create("mine", [1], expected_version=expected),
                door.rollback("mine", version=1, expected_version=expected),
                door.edit("mine", tags={"a": "b"}, expected_version=expected),
                door.delete("mine", expected_version=expected),
                door.importing("mine", data, expected_version=expected),
            ):
                assert (await refusal(asking)).code == "STALE_VERSION"
        await rig.at_rest()
        assert rig.everything() == before
        _, after = history.generated([1], 2)
        assert (await door.generate([], 3, state="mine")).ids == after.generated([], 3)[0]


async def test_a_name_that_is_taken_is_not_taken_again(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await with_one_state(door)
        await door.create("other", [5])
        before = rig.everything()
        for asking in (door.fork("mine", ["new", "other"]), door.edit("mine", rename="other")):
            assert (await refusal(asking)).code == "STATE_EXISTS"
        assert rig.everything() == before


async def test_a_full_disk_refuses_states_and_still_deletes_and_serves(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", mib=12) as folder:
        async with make_rig(folder=folder / "store", n_words=2**17) as rig:
            door = rig.door("anna")
            history = await with_one_state(door)
            made = list[str]()
            assert (await refusal(fill(door, made))).code == "STORE_FULL"
            assert made
            before = rig.everything()
            data = await door.export("mine")
            for asking in (
                door.create("new", [60, 61]),
                door.generate([1], 2, state="mine", save_as="mine"),
                door.generate([1], 2, save_as="new"),
                door.importing("new", data[:-4] + b"\0\0\0\0"),
            ):
                assert (await refusal(asking)).code in ("STORE_FULL", "BAD_STATE_FILE")
            await rig.at_rest()
            assert rig.everything() == before
            assert (await door.generate([], 3, state="mine")).ids == history.generated([], 3)[0]
            for name in made:
                await door.delete(name)
            await door.create("new", [1])


@pytest.mark.parametrize("fault", ["absent", "flipped"])
async def test_a_payload_that_is_gone_or_altered_is_refused_and_nothing_else_is(
    make_rig: MakeRig, fault: str
) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        history = await with_one_state(door)
        for operation in READING:
            made = await door.create("spoiled", [1, 2, 3])
            await door.hibernate("spoiled")
            if fault == "absent":
                rig.newest_file().unlink()
            else:
                rig.damage_newest_file(0.7)
            assert (await refusal(OPERATIONS[operation](door, "spoiled"))).code == "STATE_DAMAGED"
            known = await door.get("spoiled")
            assert (known.version, known.n_tokens) == (made.version, 3)
            await door.delete("spoiled")
            assert (await door.generate([], 3, state="mine")).ids == history.generated([], 3)[0]
        await rig.at_rest()


async def test_another_models_state_is_refused(make_rig: MakeRig, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with make_rig(folder=folder, digest="beef" * 16) as rig:
        door = rig.door("anna")
        await with_one_state(door)
        foreign = await door.export("mine")
    async with make_rig(folder=folder) as rig:
        door = rig.door("anna")
        assert [known.name for known in await door.handles()] == ["mine"]
        before = rig.everything()
        for name in ("generate", "generate and keep"):
            assert (await refusal(OPERATIONS[name](door, "mine"))).code == "STATE_MISMATCH", name
        assert (await refusal(door.importing("new", foreign))).code == "STATE_MISMATCH"
        await rig.at_rest()
        assert rig.everything() == before


async def test_a_file_that_is_no_state_is_refused_and_leaves_nothing(make_rig: MakeRig) -> None:
    async with make_rig() as rig:
        door = rig.door("anna")
        await with_one_state(door)
        whole = await door.export("mine")
        n_header = 8 + int.from_bytes(whole[:8], "little")
        # In the header, in what may be any number, and in an id that stays one of the vocabulary.
        places = (40, n_header, n_header + 300, len(whole) - 4)
        flipped = [bytes((*whole[:at], whole[at] ^ 1, *whole[at + 1 :])) for at in places]
        before = rig.everything()
        for data in (
            whole[:-1],
            whole + b"\0",
            whole[: len(whole) // 2],
            *flipped,
            b"GGUF" + whole[4:],
            b"\x80\x04\x95" + whole[3:],
            b"PK\x03\x04" + whole[4:],
            (2**63 - 1).to_bytes(8, "little") + whole[8:],
        ):
            assert (await refusal(door.importing("new", data))).code == "BAD_STATE_FILE"
        await rig.at_rest()
        assert rig.everything() == before


async def test_a_state_that_the_guest_pool_could_not_hold_is_refused_by_its_header(
    tmp_path: Path,
) -> None:
    async with rig_running("binary", tmp_path, has_guest=True, guest_tokens=128) as rig:
        backing = rig.states._backing
        for n_tokens in (128, 129):
            header = encode_header(
                backing.identity, backing.layout, Carried(n_computed=n_tokens), "1" * 32
            )
            n_bytes = len(header) + data_bytes(backing.layout, n_tokens)
            sink = await rig.states.importing("anna", "long", n_bytes=n_bytes)
            if n_tokens == 128:
                await sink.write(header)
            else:
                with pytest.raises(PromptTooLongError, match="128 tokens"):
                    await sink.write(header)
