"""What the command line imports, and how it fails."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import wkvm
from tests.cli.conftest import environment, wkvm_command
from wkvm.assembly.models import BUNDLED
from wkvm.cli import main


def python(code: str) -> str:
    """Run code in a fresh process; its output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    return done.stdout


def test_help_imports_nothing_that_is_slow() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from wkvm.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])\n"
        "slow = {'torch', 'numpy', 'asyncio', 'msgspec', 'tokenizers', 'jinja2', 'uvloop'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
    )
    assert python(code) == "[]\n"


def test_an_engine_on_a_cpu_imports_neither_triton_nor_fla() -> None:
    code = (
        "import sys\n"
        "from wkvm.cli import main\n"
        "main(['complete', 'Once', '--local', '--device', 'cpu', '--max-tokens', '2'])\n"
        "print([name for name in ('torch', 'triton', 'fla') if name in sys.modules])\n"
    )
    assert python(code).splitlines()[-1] == "['torch']"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"wkvm {wkvm.__version__}\n" * 2


def test_without_a_command_the_status_is_that_of_wrong_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


@pytest.mark.parametrize("command", ["serve", "complete", "inspect"])
def test_without_torch_the_extra_is_named(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([command, *(["x", "--local"] if command == "complete" else [])]) == 2
    assert one_line(capsys) == (
        f"wkvm {command}: torch is not installed; install it with: pip install 'wkvm[engine]'"
    )


def test_without_a_server_and_torch_both_ways_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"unix://{tmp_path}/none"
    monkeypatch.setattr("wkvm.cli.place.DEFAULT_ADDRESS", address)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["complete", "x"]) == 2
    assert one_line(capsys) == (
        f"wkvm complete: connect: there is no server at {address}, and torch is not installed; "
        "install it with: pip install 'wkvm[engine]'; or name a server with --connect"
    )


def test_a_state_needs_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"unix://{tmp_path}/none"
    monkeypatch.setattr("wkvm.cli.place.DEFAULT_ADDRESS", address)
    assert main(["complete", "", "--state", "s"]) == 2
    assert one_line(capsys) == (
        f"wkvm complete: state: states are with a server; there is none at {address}; "
        "start wkvm serve, or name one with --connect"
    )
    assert main(["complete", "x", "--save-as", "s", "--local"]) == 2
    assert one_line(capsys).startswith("wkvm complete: save-as: states are with a server")


@pytest.mark.parametrize("host", ["no.such.host", "0.0.0.0"])
def test_a_host_that_needs_a_key_is_said_to_be_no_loopback_address(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    assert main(["serve", "--host", host]) == 2
    assert one_line(capsys) == (
        f"wkvm serve: host: {host!r} is not a loopback address: bind one, or give a key,"
        " by --api-keys-file, --api-key or $WKVM_API_KEY"
    )


@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_an_unknown_model_path_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "/no/such/model"]) == 2
    assert one_line(capsys) == f"wkvm {command}: /no/such/model: no such file or folder"
    assert main([command, "maker/model-1.5B"]) == 2
    assert one_line(capsys).endswith("hf download maker/model-1.5B --local-dir FOLDER")


@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_a_truncated_safetensors_file_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in BUNDLED.iterdir():
        (tmp_path / file.name).symlink_to(file)
    damaged = tmp_path / "model-00002-of-00002.safetensors"
    content = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(content[:-1000])
    assert main([command, str(tmp_path)]) == 1
    line = one_line(capsys)
    assert line.startswith(f"wkvm {command}: {damaged}: ")


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["--slots", "0"], "slots"),
        (["--slots", "1000000000"], "slots"),
        (["--seed", "-1"], "seed"),
        (["--request-timeout-s", "nan"], "request-timeout-s"),
        (["--host", "0.0.0.0"], "host"),
        (["--binary-port", "65536"], "binary-port"),
        (["--binary-port", "none", "--port", "none"], "binary-port"),
        (["--api-key", ""], "api-key"),
        (["--api-keys-file", "/no/such/file"], "api-keys-file"),
        (["--api-keys-file", "/dev/zero"], "api-keys-file"),
        (["--default-max-tokens", "0"], "default-max-tokens"),
        (["--default-max-tokens", str(2**31)], "default-max-tokens"),
        (["--max-frame-bytes", "1"], "max-frame-bytes"),
        (["--served-model-name", "x" * 257], "served-model-name"),
    ],
)
def test_a_wrong_setting_is_named(
    arguments: list[str],
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    assert main(["serve", *arguments]) == 2
    assert one_line(capsys).startswith(f"wkvm serve: {setting}: ")


def test_a_value_that_is_no_number_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--slots", "many"])
    assert caught.value.code == 2
    assert "--slots" in one_line(capsys)


@pytest.mark.parametrize(
    "flag",
    [
        *("--state-dir", "--crash-dir", "--responses-dir", "--api-keys-file"),
        *("--uds", "--binary-uds", "--ssl-certfile", "--ssl-keyfile"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", flag, ""])
    assert caught.value.code == 2
    assert f"{flag}: a path is needed" in one_line(capsys)


def test_an_unknown_flag_is_named_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["inspect", "--jsn"])
    assert caught.value.code == 2
    assert one_line(capsys) == (
        "wkvm inspect: unrecognized arguments: --jsn (see wkvm inspect --help)"
    )


def test_bench_hands_its_arguments_on_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[str, list[str]]]()
    monkeypatch.setattr("os.execv", lambda path, arguments: calls.append((path, arguments)))
    main(["bench", "decode", "--help"])
    assert calls == [(sys.executable, [sys.executable, "-m", "wkvm_bench", "decode", "--help"])]


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        wkvm_command("version"),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        # With a buffer, as usual, the failure comes only when it is emptied.
        env=environment() | {"PYTHONUNBUFFERED": ""},
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_is_no_failure(closed: str) -> None:
    command = f"{shlex.join(wkvm_command('version'))} {closed}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_inspect_says_what_the_bundled_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    state = report["state"]
    assert (report["architecture"], report["n_layers"], report["width"]) == ("rwkv7", 6, 320)
    assert (report["n_parameters"], report["eos_ids"]) == (9_960_000, [0, 1])
    assert report["tokenizer"]["vocab_size"] == report["vocab_size"] == 4096
    assert state["tensors"][0] == {
        "name": "rwkv7.wkv",
        "shape": [6, 5, 64, 64],
        "dtype": "float32",
        "offset": 0,
        "bytes": 491_520,
    }
    assert state["payload_bytes"] == sum(tensor["bytes"] for tensor in state["tensors"])
    fit = report["fits"][0]
    left = fit["free_bytes"] - fit["weight_bytes"] - fit["n_slots"] * state["record_bytes"]
    assert 0 <= left < state["record_bytes"]


def test_inspect_tells_the_layout_of_states_as_serve_would_keep_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", "--json", "--state-dtype", "float16"]) == 0
    tensor = json.loads(capsys.readouterr().out)["state"]["tensors"][0]
    assert (tensor["dtype"], tensor["bytes"]) == ("float16", 491_520 // 2)
    assert main(["inspect", "--device", "cpu", "--deferred-writes"]) == 2
    assert one_line(capsys).startswith("wkvm inspect: deferred-writes: only a GPU")


def test_inspect_tells_people_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect"]) == 0
    text = capsys.readouterr().out
    for fact in ("9,960,000", "rwkv7.ffn_shift", "506,880 bytes", "slots on cpu", "float32 on cpu"):
        assert fact in text


def test_where_no_server_is_a_command_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["states", "list", "--connect", f"unix://{tmp_path}/none"]) == 1
    assert "No such file or directory; `wkvm serve` starts a server" in one_line(capsys)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What is on standard error, which is one line, while standard output is empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")
