"""States out as files, and in again."""

from pathlib import Path

import pytest

from tests.engine.states.rig import TENANT, Rig, running
from tests.fakes import fake_continuation
from wkvm.core.errors import (
    BadStateFileError,
    InvalidParameterError,
    QuotaError,
    StaleVersionError,
    StateNotFoundError,
)
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import Ref
from wkvm.core.request import Status
from wkvm.core.states import StateInfo
from wkvm.engine.states import exchange, sizes

pytestmark = pytest.mark.usefixtures("either_kind")

PROMPT = (5, 6, 7)


async def exported(rig: Rig, name: str = "chat") -> bytes:
    source = await rig.service.export(TENANT, Ref(name))
    file = b"".join(source.chunks())
    assert len(file) == source.n_bytes
    return file


async def imported(
    rig: Rig, file: bytes, name: str, expected_version: int | None = None
) -> StateInfo:
    sink = await rig.service.importing(
        TENANT, name, n_bytes=len(file), expected_version=expected_version
    )
    for at in range(0, len(file), 100):
        await sink.write(file[at : at + 100])
    return await sink.finish()


async def test_an_imported_state_goes_on_as_the_exported_one(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        first, _ = await rig.turn(PROMPT, save_as="chat")
        file = await exported(rig)
    async with running(tmp_path / "b") as rig:
        info = await imported(rig, file, "moved")
        more, _ = await rig.turn((), state="moved", max_tokens=3)
        assert info.version.provenance.operation == "import"
    assert more == fake_continuation((*PROMPT, *first), 3)


async def test_a_large_state_comes_in_by_threads_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        content = (await rig.service.get(TENANT, Ref("chat"))).version.content_id
        monkeypatch.setattr(exchange, "LARGE_BYTES", 0)
        info = await imported(rig, await exported(rig), "other")
        assert info.version.content_id == content
        with pytest.raises(BadStateFileError):
            await imported(rig, b"no state" * 200, "none")


async def test_an_export_is_the_same_after_an_import_but_for_its_history(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        content = (await rig.service.get(TENANT, Ref("chat"))).version.content_id
        info = await imported(rig, await exported(rig), "other")
    assert info.version.content_id == content


async def test_a_file_that_is_cut_or_changed_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        file = await exported(rig)
        sink = await rig.service.importing(TENANT, "other", n_bytes=len(file))
        await sink.write(file[:-1])
        with pytest.raises(BadStateFileError):
            await sink.finish()
        changed = bytearray(file)
        changed[-1] ^= 1
        with pytest.raises(BadStateFileError):
            await imported(rig, bytes(changed), "other")
        with pytest.raises(StateNotFoundError):
            await rig.service.get(TENANT, Ref("other"))


async def test_an_import_that_is_given_up_takes_no_more(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        file = await exported(rig)
        sink = await rig.service.importing(TENANT, "other", n_bytes=len(file))
        sink.abort()
        sink.abort()
        with pytest.raises(BadStateFileError):
            await sink.write(file)


async def test_a_length_that_no_state_has_is_refused_at_once(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        for n_bytes in (1, 2**40):
            with pytest.raises(BadStateFileError):
                await rig.service.importing(TENANT, "other", n_bytes=n_bytes)


async def test_an_import_over_a_handle_that_moved_on_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        file = await exported(rig)
        with pytest.raises(StaleVersionError):
            await imported(rig, file, "chat", expected_version=0)


async def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        with pytest.raises(InvalidParameterError, match="format"):
            await rig.service.export(TENANT, Ref("chat"), "gguf")


async def test_a_state_that_may_become_too_large_to_go_out_with_its_request_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "a") as rig:
        monkeypatch.setattr(sizes, "MAX_INLINE_BYTES", rig.loop.layout.image_bytes(64))
        _, end = await rig.turn(PROMPT, returns_state=True, max_tokens=61)
        assert end.error is None
        _, end = await rig.turn(PROMPT, returns_state=True, max_tokens=62)
        # without pages a state does not grow but by its log
        grows = rig.loop.layout.guest is not None
        assert (end.status is Status.FINISHED_ERROR) == grows
        assert isinstance(end.error, InvalidParameterError) == grows


async def test_a_state_that_a_tenant_may_not_have_is_refused_before_its_bytes(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "a", limits=StoreLimits(bytes_per_tenant=10_000)) as rig:
        with pytest.raises(QuotaError):
            await rig.service.importing(TENANT, "other", n_bytes=10_001)
        await rig.service.importing(TENANT, "other", n_bytes=10_000)
