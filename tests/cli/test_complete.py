"""Completions through the command line, on a server and without one."""

import io
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import KEY, environment, running_server, wkvm_command
from wkvm.assembly.models import BUNDLED
from wkvm.cli import main
from wkvm.gateway.text import Tokenizer, load_tokenizer

PROMPT = "Once upon a time"
GREEDY = ("--temperature", "0", "--max-tokens", "24")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(BUNDLED)


def complete_json(
    capsys: pytest.CaptureFixture[str], address: str, *arguments: str
) -> dict[str, Any]:
    """The report of one completion."""
    assert main(["complete", "--json", "--connect", address, *arguments]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_a_server_and_an_engine_in_this_process_give_the_same_text(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", PROMPT, *GREEDY, "--connect", address]) == 0
    remote = capsys.readouterr()
    assert main(["complete", PROMPT, *GREEDY, "--local", "--device", "cpu"]) == 0
    local = capsys.readouterr()
    assert remote.out == local.out
    assert len(remote.out.split()) > 10
    assert remote.err == local.err == ""


def test_without_flags_a_server_at_the_default_address_is_used(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wkvm.cli.place.DEFAULT_ADDRESS", address)
    monkeypatch.setattr("wkvm.cli.place.PROBE_TIMEOUT_S", 60.0)
    monkeypatch.setattr("wkvm.cli.place.require_engine", lambda: pytest.fail("not on the server"))
    assert main(["complete", PROMPT, *GREEDY]) == 0
    assert capsys.readouterr().err == ""


def test_a_flag_of_the_engine_is_not_lost_on_a_server(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wkvm.cli.place.DEFAULT_ADDRESS", address)
    assert main(["complete", PROMPT, "--device", "cpu", "--deferred-writes"]) == 2
    assert capsys.readouterr().err.startswith("wkvm complete: deferred-writes: only a GPU")


def test_without_a_server_at_the_default_address_the_engine_is_in_this_process(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wkvm.cli.place.DEFAULT_ADDRESS", f"unix://{tmp_path}/none.sock")
    assert main(["complete", PROMPT, "--max-tokens", "1"]) == 0
    assert "running rwkv7-tinystories in this process" in capsys.readouterr().err


def test_the_report_holds_together(
    address: str, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    report = complete_json(
        capsys, address, PROMPT, *GREEDY, "--logprobs", "2", "--prompt-logprobs", "0"
    )
    assert report["reason"] == "length"
    assert report["n_output"] == len(report["ids"]) == len(report["logprobs"]) == 24
    assert report["text"] == tokenizer.decode(report["ids"])
    assert report["prompt_ids"] == tokenizer.encode(PROMPT)
    assert report["n_prompt"] == len(report["prompt_ids"]) == len(report["prompt_logprobs"]) + 1
    for token_id, position in zip(report["ids"], report["logprobs"], strict=True):
        assert position["id"] == position["top"][0]["id"] == token_id
        assert position["rank"] == 1
        assert len(position["top"]) == 2
        assert position["token"] == tokenizer.decode([token_id])


def test_a_seed_fixes_the_text(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    def text(seed: int) -> str:
        return str(complete_json(capsys, address, PROMPT, "--seed", str(seed))["text"])

    assert text(7) == text(7) != text(8)


def test_a_stop_text_over_token_borders_ends_the_text_before_it(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = complete_json(capsys, address, PROMPT, *GREEDY)["text"]
    stop = whole[len(whole) // 2 - 4 : len(whole) // 2 + 4]
    report = complete_json(capsys, address, PROMPT, *GREEDY, "--stop", stop, "--stop", "@@")
    assert (report["reason"], report["stop"]) == ("stop", stop)
    assert report["text"] == whole[: whole.index(stop)]


def test_no_stop_text_is_looked_for_before_so_many_tokens(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (PROMPT, *GREEDY, "--stop", "e")
    whole = complete_json(capsys, address, PROMPT, *GREEDY)
    n_free = len(whole["ids"]) - 1
    assert complete_json(capsys, address, *arguments)["stop"] == "e"
    report = complete_json(capsys, address, *arguments, "--min-tokens", str(n_free))
    assert len(report["ids"]) >= n_free


def test_a_stop_text_that_only_begins_at_the_end_is_shown(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = complete_json(capsys, address, PROMPT, *GREEDY)["text"]
    report = complete_json(capsys, address, PROMPT, *GREEDY, "--stop", f"{whole[-3:]}@@")
    assert (report["reason"], report["text"]) == ("length", whole)


def test_forced_byte_tokens_come_out_as_whole_characters(
    address: str, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the bytes of two characters may be sampled: what is valid among them is text."""
    of_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    ids = ",".join(str(of_byte[bytes((byte,))]) for byte in "🐭한".encode())
    arguments = (PROMPT, "--allowed-ids", ids, "--seed", "1", "--max-tokens", "40")
    report = complete_json(capsys, address, *arguments)
    assert report["text"] == tokenizer.decode(report["ids"])
    assert main(["complete", *arguments, "--connect", address]) == 0
    assert capsys.readouterr().out == report["text"] + "\n"


def test_a_dash_reads_standard_input(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(f"{PROMPT}\n".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    report = complete_json(capsys, address, "-", "--max-tokens", "1")
    monkeypatch.undo()
    monkeypatch.setenv("WKVM_API_KEY", KEY)
    assert (
        report["prompt_ids"]
        == complete_json(capsys, address, f"{PROMPT}\n", "--max-tokens", "1")["prompt_ids"]
    )


def test_special_tokens_in_the_prompt_are_plain_text_unless_asked_for(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("<|endoftext|>", "--max-tokens", "1")
    assert len(complete_json(capsys, address, *arguments)["prompt_ids"]) > 1
    assert complete_json(capsys, address, *arguments, "--special")["prompt_ids"] == [0]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("x", "--api-key", "wrong"), 1, "key"),
        ((""), 1, "prompt: at least one token id is needed"),
        (("x", "--tokenizer", "bytes"), 2, "tokenizer: it is not that of rwkv7-tinystories"),
        (("x", "--tokenizer", "/no/such"), 2, "/no/such: no such path"),
        (("x", "--temperature", "nan"), 2, "temperature: "),
        (("x", "--top-p", "2"), 2, "top-p: 2.0 is not in (0, 1]"),
        (("x", "--seed", str(2**64)), 2, "seed: "),
        (("x", "--timeout-s", "0"), 2, "timeout-s: "),
        (("x", "--allowed-ids", "5000"), 1, "allowed_ids: "),
        (("x", "--local"), 2, "local: cannot be together with --connect"),
        (("x", "--state-dtype", "float16"), 2, "state-dtype: cannot be together with --connect"),
        (("x", "--deferred-writes"), 2, "deferred-writes: cannot be together with --connect"),
        (("x", "--guest-tokens", "64"), 2, "guest-tokens: cannot be together with --connect"),
        (("x", "--logprobs", "1"), 2, "logprobs: "),
        (("x", "--stop", ""), 2, "stop: "),
    ],
)
def test_failures_are_one_line(
    arguments: tuple[str, ...] | str,
    status: int,
    message: str,
    address: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed = [arguments] if isinstance(arguments, str) else arguments
    assert main(["complete", *listed, "--connect", address]) == status
    captured = capsys.readouterr()
    assert captured.out.strip() == ""
    assert captured.err.startswith("wkvm complete: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_nobody_at_the_address_is_one_line(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", "x", "--connect", f"unix://{tmp_path}/none"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_server_that_asks_for_a_key_is_said_to_do_so(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WKVM_API_KEY")
    assert main(["complete", "x", "--connect", address]) == 1
    assert f"{address} asks for a key: --api-key or $WKVM_API_KEY" in capsys.readouterr().err


def test_a_key_for_another_machine_is_kept_back(capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--connect", "tcp://192.0.2.1:8001", "--api-key", "x")
    assert main(["complete", "x", *there]) == 2
    error = capsys.readouterr().err
    assert "the key would be readable on the way to tcp://192.0.2.1:8001: use a tunnel" in error


def test_an_answer_that_the_server_cuts_short_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WKVM_API_KEY", KEY)
    command = wkvm_command("complete", PROMPT, "--ignore-eos", "--max-tokens", "1000000")
    with (
        running_server(tmp_path, "--drain-timeout-s", "0") as server,
        subprocess.Popen(
            [*command, "--connect", server.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.read(8)
            assert server.end() == 0
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, error) == (1, b"wkvm: the server ended the answer early\n")


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_request_and_ends_with_130(address: str) -> None:
    command = wkvm_command("complete", PROMPT, "--ignore-eos", "--max-tokens", "1000000")
    with subprocess.Popen(
        [*command, "--connect", address],
        stdout=subprocess.PIPE,
        env=environment() | {"WKVM_API_KEY": KEY},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(8)
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()


def test_a_completion_goes_on_from_a_state_and_is_kept(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    greedy = ("--temperature", "0", "--ignore-eos")
    whole = complete_json(capsys, address, PROMPT, *greedy, "--max-tokens", "12")
    assert whole["state"] is None
    kept = ("--save-as", "complete-test")
    first = complete_json(capsys, address, PROMPT, *greedy, *kept, "--max-tokens", "5")
    start = first["state"]["state"]
    rest = complete_json(capsys, address, "", *greedy, "--state", start, "--max-tokens", "7")
    assert first["ids"] + rest["ids"] == whole["ids"]
    assert rest["state"]["state"] is None
    assert rest["state"]["cached_tokens"] == first["state"]["n_computed"]
    assert main(["states", "delete", "complete-test", "--connect", address]) == 0


def test_what_was_kept_is_said_beside_the_text(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["complete", PROMPT, "--max-tokens", "2", "--save-as", "said", "--connect", address]
    assert main(line) == 0
    assert capsys.readouterr().err == "wkvm: kept as said@1, visible\n"
    assert main(["states", "delete", "said", "--connect", address]) == 0


def test_a_state_does_not_end_at_a_stop_string(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["complete", PROMPT, "--stop", "x", "--save-as", "s", "--connect", address]
    assert main(line) == 2
    assert "--stop" in capsys.readouterr().err
