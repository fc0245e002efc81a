"""``wkvm states`` on whole servers."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
import wkvm_client

from tests.client.keeping import running
from wkvm.cli import main
from wkvm.cli.parser import parse
from wkvm.cli.states import run


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server in a thread of its own; where it is."""
    addresses, over = list[str](), threading.Event()

    async def serve() -> None:
        async with running(folder) as address:
            addresses.append(address)
            ready.set()
            await asyncio.to_thread(over.wait)

    ready = threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve())
    )
    thread.start()
    try:
        assert ready.wait(60)
        yield addresses[0]
    finally:
        over.set()
        thread.join()


class Shell:
    """Runs ``wkvm states`` and reads what it prints."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self._capsys = capsys

    def lines(self, *arguments: str, status: int = 0) -> list[str]:
        action, *rest = arguments
        assert main(["states", action, "--connect", self.address, *rest]) == status
        return self._capsys.readouterr().out.splitlines()

    def json(self, *arguments: str, status: int = 0) -> Any:
        lines = self.lines(*arguments, "--json", status=status)
        assert len(lines) == 1
        return json.loads(lines[0])

    def error(self, *arguments: str, status: int = 1) -> str:
        action, *rest = arguments
        assert main(["states", action, "--connect", self.address, *rest]) == status
        captured = self._capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return captured.err


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with serving(tmp_path / "a") as address:
        yield Shell(address, capsys)


def test_a_state_is_made_of_ids_and_told_about(shell: Shell) -> None:
    made = shell.json("create", "s", "--ids", "1,2,3", "--tag", "kind=test", "--tag", "a=b")
    assert (made["name"], made["version"], made["ack"]) == ("s", 1, "durable")
    assert made["tags"] == {"kind": "test", "a": "b"}
    assert shell.json("get", "s@1") == made
    table = shell.lines("list")
    assert table[0].split() == ["STATE", "ACK", "TIER", "TOKENS", "BYTES", "MADE", "BY", "TAGS"]
    assert table[1].split()[0] == "s@1"
    assert table[1].endswith(" a=b kind=test")
    details = dict(line.split(None, 1) for line in shell.lines("get", "s"))
    assert details["tokens"] == "3, of which 1 pending"


def test_how_to_append_is_said_where_a_name_is_taken(shell: Shell) -> None:
    shell.lines("create", "s", "--ids", "1,2")
    assert shell.error("create", "s", "--ids", "3").endswith("to append to it: --from s\n")
    assert shell.json("create", "s", "--ids", "3", "--from", "s")["version"] == 2


def test_either_a_text_or_ids_are_absorbed(shell: Shell) -> None:
    assert "either a text or --ids" in shell.error("create", "s", status=2)
    assert "either a text or --ids" in shell.error("create", "s", "a", "--ids", "1", status=2)


def test_a_text_needs_the_tokenizer_of_the_model(shell: Shell) -> None:
    assert "--ids" in shell.error("create", "s", "text", status=2)


def test_a_list_has_all_pages(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wkvm.cli.states.PAGE", 2)
    shell.lines("create", "s", "--ids", "1")
    shell.lines("fork", "s", "a1", "a2", "a3", "b1", "--tag", "of=s")
    names = [one["name"] for one in shell.json("list")["states"]]
    assert names == ["a1", "a2", "a3", "b1", "s"]
    assert len(shell.json("list", "a")["states"]) == 3
    assert len(shell.json("list", "--tag", "of=s")["states"]) == 4
    assert len(shell.json("list", "--limit", "3")["states"]) == 3
    assert len(shell.lines("list", "--limit", "1")) == 2


def test_versions_are_made_named_and_gone_back_to(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wkvm.cli.states.PAGE", 2)
    shell.lines("create", "s", "--ids", "1,2")
    shell.lines("create", "s", "--ids", "3", "--from", "s")
    shell.lines("snapshot", "s")
    back = shell.json("rollback", "s", "--version", "1", "--expected-version", "3")
    assert (back["version"], back["n_computed"] + back["n_pending"]) == (4, 2)
    versions = shell.json("list", "--versions-of", "s")["states"]
    assert [one["version"] for one in versions] == [4, 3, 2, 1]
    entries = shell.json("log", "s")["entries"]
    assert [one["version"] for one in entries] == [4, 3, 2, 1]
    assert entries[-1]["provenance"]["operation"] == "create"
    assert len(shell.lines("log", "s", "--limit", "3")) == 3
    assert "of s@1" in shell.lines("log", "s@2")[0]
    assert shell.json("rollback", "s", "--position", "1")["version"] == 5


def test_a_handle_is_renamed_tagged_expired_and_deleted(shell: Shell) -> None:
    shell.lines("create", "s", "--ids", "1")
    assert shell.json("rename", "s", "t")["name"] == "t"
    assert shell.json("tag", "t", "a=b", "c=d")["tags"] == {"a": "b", "c": "d"}
    assert shell.json("tag", "t")["tags"] == {}
    assert shell.json("expire", "t", "--in-s", "1000")["expires_at"] is not None
    assert shell.json("expire", "t", "--never")["expires_at"] is None
    assert shell.json("hibernate", "t")["tier"] == "disk"
    assert shell.json("resume", "t")["tier"] == "host"
    assert "version" in shell.error("delete", "t", "--expected-version", "7")
    assert shell.json("delete", "t") == {"deleted": "t"}
    assert "t" in shell.error("get", "t")


def test_a_state_is_mutated_compared_and_made_again(shell: Shell) -> None:
    shell.lines("create", "s", "--ids", "1,2,3")
    shell.lines("create", "u", "--ids", "1,3,3")
    assert shell.json("diff", "s", "s")["equal"]
    difference = shell.json("diff", "s", "u")
    assert (difference["equal"], difference["n_common"]) == (False, 1)
    assert shell.lines("diff", "s", "u")[0] == "not equal"
    assert shell.json("replay", "s")["equal"]
    assert "made the same bytes again" in shell.lines("replay", "s")[0]
    assert "JSON object" in shell.error(
        "mutate", "reset", "s", "--save-as", "t", "--parameters", "[]", status=2
    )


def test_a_state_leaves_as_a_file_and_comes_back(shell: Shell, tmp_path: Path) -> None:
    made = shell.json("create", "s", "--ids", "1,2,3")
    path = tmp_path / "s.safetensors"
    exported = shell.json("export", "s", str(path))
    assert exported["n_bytes"] == path.stat().st_size
    assert "--force" in shell.error("export", "s", str(path), status=2)
    assert str(path) in shell.lines("export", "s", str(path), "--force")[0]
    back = shell.json("import", "t", str(path), "--tag", "a=b", "--expected-version", "0")
    assert (back["content_id"], back["tags"]) == (made["content_id"], {"a": "b"})
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    shell.error("import", "v", str(path))
    assert "v" in shell.error("get", "v")


def test_a_file_that_cannot_be_had_is_one_line(shell: Shell, tmp_path: Path) -> None:
    shell.lines("create", "s", "--ids", "1")
    assert "No such file" in shell.error("import", "t", str(tmp_path / "none"))
    assert "No such file" in shell.error("export", "s", str(tmp_path / "none" / "file"))


def test_a_state_moves_to_another_server(
    shell: Shell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = shell.json("create", "s", "--ids", "1,2,3")
    with serving(tmp_path / "b") as target:
        assert (
            f"s@1 is t@1 at {target} now" in shell.lines("migrate", "s", target, "--name", "t")[0]
        )
        there = Shell(target, capsys)
        assert there.json("get", "t")["content_id"] == made["content_id"]
        assert target in shell.error("get", "s")


def test_a_state_at_work_moves_only_live(
    shell: Shell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving(tmp_path / "b") as target, wkvm_client.connect(shell.address) as client:
        shell.lines("create", "s", "--ids", "1,2,3")
        stream = client.generate(
            [4], state="s", save_as="s", max_tokens=100, ignore_eos=True, credit=4
        )
        ids = stream.read()
        assert "--live" in shell.error("migrate", "s", target)
        moved = shell.json("migrate", "s", target, "--live")
        assert moved["state"]["version"] == 1
        while more := stream.read():
            ids += more
        assert len(ids) == 100
        assert stream.moved_to == target


def test_a_reader_of_the_output_may_leave(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    shell.lines("create", "s", "--ids", "1,2")
    monkeypatch.setattr("builtins.print", gone)
    with pytest.raises(BrokenPipeError):
        run(parse(["states", "get", "s", "--connect", shell.address]))


def test_a_name_is_data(shell: Shell) -> None:
    for name in ("../s", "a/b", "", "x" * 129, "\udcff"):
        shell.error("create", name, "--ids", "1")


@pytest.mark.parametrize("arguments", [[], ["none"], ["rollback", "s"], ["expire", "s"]])
def test_what_cannot_be_parsed_is_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["states", *arguments])
    assert caught.value.code == 2
