"""What is kept of responses: over restarts and crashes, within limits, on a disk that is full."""

import asyncio
import contextlib
import errno
import functools
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Running, until_stats
from tests.gateway.responding import (
    ask_for,
    cached,
    respond,
    tales_running,
)
from tests.gateway.stateful import ask
from wkvm.gateway.errors import SettingError
from wkvm.gateway.failures import HttpError
from wkvm.gateway.responses import database
from wkvm.gateway.responses.database import Connection, Database
from wkvm.gateway.responses.owners import Owners

SUN = "What is the sun?"
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_output_tokens": 100_000}


async def test_responses_and_conversations_outlive_the_server(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        _, talk = await ask(running, "POST", "/v1/conversations", {"metadata": {"a": "b"}})
        second = await respond(running, SUN, conversation=talk["id"])
    async with tales_running(tmp_path) as running:
        assert await ask(running, "GET", f"/v1/responses/{first['id']}") == (200, first)
        assert await ask(running, "GET", f"/v1/conversations/{talk['id']}") == (200, talk)
        more = await respond(running, "Why?", previous_response_id=first["id"])
        assert cached(more) == first["usage"]["total_tokens"]
        more = await respond(running, "Why?", conversation=talk["id"])
        assert cached(more) == second["usage"]["total_tokens"]


async def test_a_state_without_its_record_is_not_gone_on_from(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
    for file in (tmp_path / "responses").iterdir():
        file.unlink()
    async with tales_running(tmp_path) as running:
        status, answer = await ask_for(running, "Why?", previous_response_id=first["id"])
        assert (status, answer["error"]["code"]) == (400, "previous_response_not_found")
        status, state = await ask(running, "GET", f"/v1/states/{first['id']}")
        assert status == 200
        assert state["expires_at"] is not None


async def test_the_oldest_make_room(tmp_path: Path) -> None:
    async with tales_running(tmp_path, max_responses=3) as running:
        made = [await respond(running, f"Say {n}.", max_output_tokens=1) for n in range(5)]
        found = [await ask(running, "GET", f"/v1/responses/{one['id']}") for one in made]
        assert [status for status, _ in found] == [404, 404, 200, 200, 200]
        await running.gateway.responses.over()
        _, states = await ask(running, "GET", "/v1/states")
        assert {one["name"] for one in states["data"]} == {one["id"] for one in made[2:]}


async def test_what_made_room_is_still_read_by_what_goes_on_from_it(tmp_path: Path) -> None:
    async with tales_running(tmp_path, max_responses=2) as running:
        last = await respond(running, "I am Tom.", max_output_tokens=2)
        for _ in range(3):
            last = await respond(
                running, "Why?", previous_response_id=last["id"], max_output_tokens=2
            )
        n_cached = cached(last)
        await ask(running, "DELETE", f"/v1/states/{last['id']}")
        again = await respond(running, "So?", previous_response_id=last["id"])
        assert again["usage"]["input_tokens"] > n_cached
        assert await _n_rows(running) == 5


async def _n_rows(running: Running) -> int:
    def count(there: Connection) -> int:
        (n_rows,) = there.db.execute("SELECT COUNT(*) FROM responses").fetchone()
        return int(n_rows)

    return await running.gateway.responses.database.run(count)


async def test_rows_go_with_the_last_that_needs_them(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN, max_output_tokens=1)
        second = await respond(running, SUN, previous_response_id=first["id"], max_output_tokens=1)
        await ask(running, "DELETE", f"/v1/responses/{first['id']}")
        assert await _n_rows(running) == 2
        await ask(running, "DELETE", f"/v1/responses/{second['id']}")
        assert await _n_rows(running) == 0

        def n_items(there: Connection) -> int:
            return len(there.db.execute("SELECT 1 FROM items").fetchall())

        assert await running.gateway.responses.database.run(n_items) == 0


async def test_bytes_have_a_limit_and_the_oldest_make_room_for_them(tmp_path: Path) -> None:
    async with tales_running(tmp_path, max_responses_bytes=8_000) as running:
        long = "Look. " * 300
        first = await respond(running, long, max_output_tokens=1)
        second = await respond(running, long, max_output_tokens=1)
        third = await respond(running, long, max_output_tokens=1)
        statuses = [
            (await ask(running, "GET", f"/v1/responses/{one['id']}"))[0]
            for one in (first, second, third)
        ]
        assert statuses == [404, 200, 200]
        status, answer = await ask_for(running, long * 4)
        assert (status, answer["error"]["code"]) == (507, "quota_exceeded")
        await until_stats(running, n_running=0)


async def test_an_old_response_is_as_if_it_were_deleted(tmp_path: Path) -> None:
    async with tales_running(tmp_path, response_ttl_s=3600.0) as running:
        first = await respond(running, SUN)
        _, state = await ask(running, "GET", f"/v1/states/{first['id']}")
        assert state["expires_at"] == pytest.approx(time.time() + 3600, abs=60)

        def age(there: Connection) -> None:
            there.db.execute(
                "UPDATE responses SET created_at = created_at - 3600, "
                "expires_at = expires_at - 3600"
            )

        await running.gateway.responses.database.run(age)
        assert (await ask(running, "GET", f"/v1/responses/{first['id']}"))[0] == 404
        status, _ = await ask_for(running, "Why?", previous_response_id=first["id"])
        assert status == 400
        await respond(running, SUN)
        assert await _n_rows(running) == 1


async def test_a_full_disk_is_told_and_nothing_half_is_kept(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        database = running.gateway.responses.database

        def fill(there: Connection) -> None:
            (n_pages,) = there.db.execute("PRAGMA page_count").fetchone()
            there.db.execute(f"PRAGMA max_page_count = {n_pages}")

        def free(there: Connection) -> None:
            there.db.execute("PRAGMA max_page_count = 1000000")

        await database.run(fill)
        status, answer = await ask_for(running, "Look. " * 5000)
        assert (status, answer["error"]["code"]) == (507, "store_full")
        assert answer["error"]["type"] == "insufficient_storage_error"
        status, answer = await ask(running, "POST", "/v1/conversations", {"items": [_long()]})
        assert (status, answer["error"]["code"]) == (507, "store_full")
        await until_stats(running, n_running=0)
        _, states = await ask(running, "GET", "/v1/states")
        assert [one["name"] for one in states["data"]] == [first["id"]]
        assert await ask(running, "GET", f"/v1/responses/{first['id']}") == (200, first)
        await database.run(free)
        more = await respond(running, "Why?", previous_response_id=first["id"])
        assert more["status"] == "completed"


def _long() -> dict[str, Any]:
    return {"role": "user", "content": "Look. " * 5000}


async def test_an_end_that_finds_no_room_leaves_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wkvm.gateway.responses import records

    def fail(*_: Any) -> bool:
        raise HttpError(507, "full", "insufficient_storage_error", code="store_full")

    async with tales_running(tmp_path) as running:
        _, talk = await ask(running, "POST", "/v1/conversations")
        monkeypatch.setattr(records, "finish", fail)
        status, answer = await ask_for(running, SUN, conversation=talk["id"])
        assert (status, answer["error"]["code"]) == (507, "store_full")
        _, states = await ask(running, "GET", "/v1/states")
        assert states["data"] == []
        monkeypatch.undo()
        assert (await respond(running, SUN, conversation=talk["id"]))["status"] == "completed"
        statuses = await _statuses(running)
        assert sorted(statuses) == ["completed", "in_progress"]
        for name in statuses.values():
            assert (await ask(running, "GET", f"/v1/responses/{name}"))[0] == 200
        assert sorted(await _statuses(running)) == ["completed", "failed"]


async def _statuses(running: Running) -> dict[str, str]:
    def read(there: Connection) -> dict[str, str]:
        return dict(there.db.execute("SELECT status, id FROM responses").fetchall())

    return await running.gateway.responses.database.run(read)


async def test_where_states_have_no_room_the_oldest_go_for_the_next_response(
    tmp_path: Path,
) -> None:
    async with tales_running(tmp_path, max_states=2) as running:
        made = [await respond(running, SUN, max_output_tokens=2) for _ in range(2)]
        status, answer = await ask_for(running, SUN)
        assert (status, answer["error"]["code"]) == (507, "quota_exceeded")
        await running.gateway.responses.over()
        (failed,) = [one for name, one in (await _statuses(running)).items() if name == "failed"]
        assert (await ask(running, "GET", f"/v1/responses/{failed}"))[1]["output"] == []
        third = await respond(running, SUN, max_output_tokens=2)
        _, states = await ask(running, "GET", "/v1/states")
        assert {one["name"] for one in states["data"]} == {made[1]["id"], third["id"]}
        _, first = await ask(running, "GET", f"/v1/responses/{made[0]['id']}")
        assert first["status"] == "incomplete"
        body = {"previous_response_id": first["id"], "store": False}
        again = await respond(running, "Why?", **body)
        assert again["usage"]["input_tokens"] > first["usage"]["total_tokens"]
        on_state = {"previous_response_id": made[1]["id"], "store": False}
        assert cached(await respond(running, "Why?", **on_state)) > cached(again)


DIES = """
import asyncio, os, signal, sys
from wkvm.gateway.responses import records
from wkvm.gateway.responses.database import Database
from wkvm.gateway.responses.room import Limits
from wkvm.gateway.conversations import talks

async def main():
    database = Database(sys.argv[1])
    limits = Limits(n_responses=9, n_bytes=10**6, ttl_s=1000.0)
    tenant = bytes.fromhex(sys.argv[2])
    talk = await database.run(talks.create, tenant, {}, [], limits)
    told = {"id": "resp_dead", "status": "in_progress", "output": [], "background": True}
    begun = records.Begun(
        id="resp_dead", tenant=tenant, resource=told, items=[], conversation=talk.id, revision=1
    )
    database.making.add("resp_dead")
    await database.run(records.begin, begun, limits)
    print(talk.id, flush=True)
    signal.pause()

asyncio.run(main())
"""


async def test_what_a_process_that_was_killed_had_begun_has_failed(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        await respond(running, SUN)
        tenant = running.gateway.engines.whose("").tenant
        folder = running.gateway.config.responses_dir
        assert folder is not None
        command = [sys.executable, "-c", DIES, folder, tenant.hex()]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            talk = (await process.stdout.readline()).decode().strip()
            _, found = await ask(running, "GET", "/v1/responses/resp_dead")
            assert found["status"] == "in_progress"
            status, _ = await ask_for(running, SUN, conversation=talk)
            assert status == 409
        finally:
            process.kill()
            await process.wait()
        _, found = await ask(running, "GET", "/v1/responses/resp_dead")
        assert found["status"] == "failed"
        assert "ended before it was over" in found["error"]["message"]
        status, answer = await ask_for(running, "Why?", previous_response_id="resp_dead")
        assert (status, answer["error"]["code"]) == (400, "previous_response_unusable")
        made = await respond(running, SUN, conversation=talk)
        assert made["status"] == "completed"
        alive = [Path(name).suffix for name in os.listdir(folder)]
        assert alive.count(".alive") == 1


async def test_two_gateways_share_what_is_kept(tmp_path: Path) -> None:
    folder = str(tmp_path / "shared")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with (
        tales_running(tmp_path / "a", responses_dir=folder) as one,
        tales_running(tmp_path / "b", responses_dir=folder) as other,
    ):
        made = await respond(one, SUN)
        assert await ask(other, "GET", f"/v1/responses/{made['id']}") == (200, made)
        more = await respond(other, "Why?", previous_response_id=made["id"])
        assert cached(more) == 0  # the state is at the other engine
        asked = await respond(one, SUN, background=True, **ENDLESS)
        path = f"/v1/responses/{asked['id']}"
        assert (await ask(other, "GET", path))[1]["status"] in ("queued", "in_progress")
        status, cancelled = await ask(other, "POST", f"{path}/cancel")
        assert (status, cancelled["status"]) == (200, "cancelled")
        assert (await ask(one, "GET", path))[1]["status"] == "cancelled"


def test_an_owner_lives_as_long_as_it_is_open(tmp_path: Path) -> None:
    one, other = Owners(tmp_path), Owners(tmp_path)
    assert one.is_alive(other.name)
    assert other.is_alive(one.name)
    other.close()
    assert not one.is_alive(other.name)
    assert not one.is_alive("../../etc/passwd")
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_what_the_dead_have_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "0abc.alive").touch()
    one = Owners(tmp_path)
    one.sweep()
    assert [file.stem for file in tmp_path.iterdir()] == [one.name]
    one.close()


async def test_a_folder_that_cannot_be_used_is_a_setting_at_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    database = Database(str(tmp_path / "file"))
    with pytest.raises(SettingError):
        await database.open()
    await database.aclose()


async def test_a_database_that_is_none_is_a_setting_at_fault(tmp_path: Path) -> None:
    (tmp_path / "responses.db").write_bytes(b"no database at all, but long enough" * 99)
    database = Database(str(tmp_path))
    with pytest.raises(SettingError, match="not a database"):
        await database.open()
    await database.aclose()
    assert os.listdir(tmp_path) == ["responses.db"]


async def test_a_database_of_another_version_is_not_opened(tmp_path: Path) -> None:
    database = Database(str(tmp_path))
    await database.open()
    await database.run(lambda there: there.db.execute("PRAGMA user_version = 99"))
    await database.aclose()
    again = Database(str(tmp_path))
    with pytest.raises(SettingError, match="it has format 99, this wkvm knows 1"):
        await again.open()
    await again.aclose()


async def test_what_is_kept_is_this_users_alone(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "kept"))
    await database.open()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    await database.aclose()
    with contextlib.suppress(FileNotFoundError):
        os.stat(tmp_path / "kept" / "responses.db-wal")


async def test_what_is_new_leaves_room_for_what_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        _, talk = await ask(running, "POST", "/v1/conversations", {"items": []})
        space = shutil.disk_usage(tmp_path)
        left = space._replace(free=database.MIN_RESERVED)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: left)
        items = {"items": [{"role": "user", "content": SUN}]}
        for path, body in (
            ("/v1/responses", {"model": first["model"], "input": SUN}),
            ("/v1/conversations", items),
            (f"/v1/conversations/{talk['id']}/items", items),
        ):
            status, answer = await ask(running, "POST", path, body)
            assert (status, answer["error"]["code"]) == (507, "store_full")
        for path in (f"/v1/responses/{first['id']}", f"/v1/conversations/{talk['id']}"):
            assert (await ask(running, "DELETE", path))[0] == 200


def _mapped(folder: Path) -> list[str]:
    """What this process has mapped of a folder's files: a full disk may end it there."""
    return [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
    ]


async def test_no_file_of_what_is_kept_is_mapped(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
        assert (await ask(running, "GET", f"/v1/responses/{first['id']}"))[0] == 200
        assert not _mapped(tmp_path)
        await running.gateway.responses.database.run(_check_not_mapped)


def _check_not_mapped(there: Connection) -> None:
    assert there.db.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    assert there.db.execute("PRAGMA mmap_size").fetchone() == (0,)


async def test_what_was_kept_in_wal_mode_and_never_closed_is_kept_and_not_mapped(
    tmp_path: Path,
) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)
    # As a version before this one leaves it that is killed: the last commits in the log alone.
    folder, left = tmp_path / "responses", tmp_path / "left"
    with contextlib.closing(sqlite3.connect(folder / database.FILE, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE responses SET is_cancelled = 1")
        shutil.copytree(folder, left)
    assert (left / f"{database.FILE}-wal").stat().st_size
    kept = [Database(str(left)) for _ in range(2)]
    for one in kept:
        await one.run(_check_not_mapped)
        rows = await one.run(lambda there: there.db.execute("SELECT * FROM responses").fetchall())
        assert rows[0][0] == first["id"]
        assert await one.run(
            lambda there: there.db.execute("SELECT is_cancelled FROM responses").fetchall()
        ) == [(1,)]
    assert not _mapped(left)
    for one in kept:
        await one.aclose()


def _garbage(folder: Path) -> None:
    (folder / database.FILE).write_bytes(b"\x5a" * 20_000)


def _foreign(folder: Path, version: int = 0) -> None:
    with contextlib.closing(sqlite3.connect(folder / database.FILE)) as db:
        db.execute("CREATE TABLE items (other)")
        db.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("damage", [_garbage, _foreign, functools.partial(_foreign, version=1)])
async def test_what_is_no_database_of_responses_is_told_at_the_start(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path)
    before = (tmp_path / database.FILE).read_bytes()
    kept = Database(str(tmp_path))
    with pytest.raises(SettingError, match="database"):
        await kept.open()
    with pytest.raises(HttpError) as refused:
        await kept.run(lambda _: None)
    assert (refused.value.status, refused.value.code) == (503, "store_failed")
    assert os.listdir(tmp_path) == [database.FILE]
    assert (tmp_path / database.FILE).read_bytes() == before
    await kept.aclose()


async def test_a_disk_that_is_full_at_the_start_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = Database(str(tmp_path))
    monkeypatch.setattr(database, "Owners", fail)
    await kept.open()
    with pytest.raises(HttpError) as refused:
        await kept.run(lambda _: None)
    assert (refused.value.status, refused.value.code) == (507, "store_full")
    monkeypatch.undo()
    await kept.run(lambda _: None)
    await kept.aclose()


async def test_a_row_that_is_damaged_is_told_and_others_are_not(tmp_path: Path) -> None:
    async with tales_running(tmp_path) as running:
        first, second = await respond(running, SUN), await respond(running, SUN)
        await running.gateway.responses.database.run(
            lambda there: there.db.execute(
                "UPDATE responses SET resource = ? WHERE id = ?", (b"{\xff", first["id"])
            )
        )
        status, answer = await ask(running, "GET", f"/v1/responses/{first['id']}")
        assert (status, answer["error"]["code"]) == (503, "store_failed")
        assert (await ask(running, "GET", f"/v1/responses/{second['id']}"))[0] == 200


async def test_what_nobody_makes_any_more_makes_room(tmp_path: Path) -> None:
    async with tales_running(tmp_path, max_responses=2) as running:
        for _ in range(2):
            await respond(running, SUN, max_output_tokens=1)
        await running.gateway.responses.database.run(
            lambda there: there.db.execute(
                "UPDATE responses SET status = 'in_progress', owner = 'dead'"
            )
        )
        more = await respond(running, SUN, max_output_tokens=1)
        assert (await ask(running, "GET", f"/v1/responses/{more['id']}"))[0] == 200


async def test_what_its_maker_ended_just_before_it_went_is_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tales_running(tmp_path) as running:
        first = await respond(running, SUN)

        def end_and_go(there: Connection, response_id: str, owner: str) -> bool:
            there.db.execute("UPDATE responses SET status = 'completed', resource = ?", kept)
            return False

        kept = await running.gateway.responses.database.run(
            lambda there: there.db.execute("SELECT resource FROM responses").fetchone()
        )
        begun = kept[0].replace(b'"completed"', b'"in_progress"')
        await running.gateway.responses.database.run(
            lambda there: there.db.execute(
                "UPDATE responses SET status = 'in_progress', resource = ?", (begun,)
            )
        )
        monkeypatch.setattr(Connection, "is_made", end_and_go)
        for _ in range(2):
            assert await ask(running, "GET", f"/v1/responses/{first['id']}") == (200, first)


def test_what_may_be_long_is_part_of_no_key(tmp_path: Path) -> None:
    # In a table WITHOUT ROWID each search that comes by a row of megabytes would read all of it.
    there = Connection(tmp_path, set())
    made = dict(there.db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    there.close()
    assert "WITHOUT ROWID" not in made["items"]
    assert "WITHOUT ROWID" not in made["responses"]


async def test_a_file_whose_tables_are_laid_out_as_before_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = re.sub(r"(CREATE TABLE [^;]*\));", r"\1 WITHOUT ROWID;", database._TABLES)
    assert before.count("WITHOUT ROWID") == 3
    with monkeypatch.context() as patch:
        patch.setattr(database, "_TABLES", before)
        async with tales_running(tmp_path) as running:
            first = await respond(running, SUN)
    async with tales_running(tmp_path) as running:
        assert await ask(running, "GET", f"/v1/responses/{first['id']}") == (200, first)
        assert (await respond(running, "Why?", previous_response_id=first["id"]))["id"]
