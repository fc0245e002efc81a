"""Every flag sets something, has a help text and is in docs/cli.md, and nothing else is."""

import argparse
import re
from dataclasses import fields
from pathlib import Path

import pytest

from wkvm.cli.chat import COMMANDS
from wkvm.cli.engine_flags import ENGINE_FLAGS, MODEL_FLAGS
from wkvm.cli.flags import ADDRESS_FLAGS, LIMIT_FLAGS, PROCESS_FLAGS, values_of
from wkvm.cli.http_flags import HTTP_ADDRESS_FLAGS, HTTP_LIMIT_FLAGS, KEY_LIMIT_FLAGS
from wkvm.cli.parser import build_parser
from wkvm.cli.pressure_flags import PRESSURE_FLAGS
from wkvm.cli.serve import server_settings
from wkvm.cli.serving import http_settings
from wkvm.cli.states import ACTIONS
from wkvm.cli.store_flags import STORE_FLAGS
from wkvm.core.api_keys import parse_api_keys
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.pressure_config import PressureConfig
from wkvm.core.state_config import StateConfig
from wkvm.gateway.config import GatewayConfig, Limits

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(parser: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, or of each action of one."""
    for action in (build_parser() if parser is None else parser)._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no commands")


STATES_ACTIONS = commands(commands()["states"])


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """Every name of every flag but help."""
    return set(parser._option_string_actions) - {"-h", "--help"}


def sections() -> dict[str, str]:
    """The text of docs/cli.md under each heading ``## wkvm COMMAND``, without what is lower."""
    parts = re.split(r"^## wkvm (\w+)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = (part.partition("\n### wkvm ")[0] for part in parts[2::2])
    return dict(zip(parts[1::2], texts, strict=True))


def states_sections() -> dict[str, str]:
    """Likewise the text under each heading ``### wkvm states ACTION``."""
    parts = re.split(
        r"^##+ wkvm (?:states )?(\w+)$", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: found[name] for name in ("ACTION", *STATES_ACTIONS)}


def rows(text: str) -> set[str]:
    """The flags that have a row in a table."""
    first_cells = re.findall(r"^\| (`--[^|]*) \|", text.replace("\\|", "/"), flags=re.MULTILINE)
    return {flag for cell in first_cells for flag in re.findall(r"`(--[\w-]+)`", cell)}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(commands()) == set(sections())


@pytest.mark.parametrize("command", commands())
def test_every_flag_has_a_row_in_the_docs_and_every_row_a_flag(command: str) -> None:
    assert flags(commands()[command]) == rows(sections()[command])


@pytest.mark.parametrize("command", commands())
def test_every_argument_has_a_help_text(command: str) -> None:
    parser = commands()[command]
    assert [action.dest for action in parser._actions if not action.help] == []
    assert parser.format_help()


@pytest.mark.parametrize("command", commands())
def test_choices_are_in_the_docs(command: str) -> None:
    text = sections()[command].replace("\\|", "|")
    for action in commands()[command]._actions:
        if action.choices is not None and action.option_strings:
            assert f"`{action.option_strings[0]}` `{'|'.join(action.choices)}`" in text


@pytest.mark.parametrize("name", STATES_ACTIONS)
def test_every_action_on_states_is_in_the_docs_with_its_flags(name: str) -> None:
    texts, parser = states_sections(), STATES_ACTIONS[name]
    assert flags(parser) == rows(texts[name]) | rows(texts["ACTION"])
    assert [action.dest for action in parser._actions if not action.help] == []
    for action in parser._actions:
        if action.choices is not None:
            choices = f"`{action.option_strings[0]}` `{'|'.join(action.choices)}`"
            assert choices in texts[name].replace("\\|", "|")


def test_every_action_on_states_is_carried_out() -> None:
    assert set(STATES_ACTIONS) == set(ACTIONS)


def test_every_slash_command_has_a_row_in_the_docs_and_every_row_a_command() -> None:
    documented = re.findall(r"^\| `(/\w+)([^`]*)` \|", sections()["chat"], flags=re.MULTILINE)
    assert dict(documented) == {
        name: f" {command.argument}" if command.argument else ""
        for name, command in COMMANDS.items()
    }


def test_every_setting_has_a_flag() -> None:
    in_engine = {flag.field for flag in ENGINE_FLAGS + MODEL_FLAGS}
    of_server = ADDRESS_FLAGS + LIMIT_FLAGS + PROCESS_FLAGS
    in_server = {flag.field for flag in of_server} | {"api_keys"}
    in_gateway = {flag.field for flag in HTTP_ADDRESS_FLAGS + HTTP_LIMIT_FLAGS} | {"host"}
    in_gateway |= {"limits", "key_limits"}  # of KEY_LIMIT_FLAGS, and of the keys
    assert {flag.field for flag in KEY_LIMIT_FLAGS} == {field.name for field in fields(Limits)}
    assert in_gateway == {field.name for field in fields(GatewayConfig)}
    assert in_engine == {field.name for field in fields(EngineConfig)}
    in_pressure = {flag.field for flag in PRESSURE_FLAGS}
    assert in_pressure == {field.name for field in fields(PressureConfig)}
    in_states = {flag.field for flag in STORE_FLAGS}
    assert in_states == {field.name for field in fields(StateConfig)}
    assert in_server == {field.name for field in fields(ServerConfig)}


def test_without_flags_the_settings_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WKVM_API_KEY", raising=False)
    args = build_parser().parse_args(["serve"])
    assert EngineConfig(**values_of(args, ENGINE_FLAGS + MODEL_FLAGS)) == EngineConfig()
    assert server_settings(args) == ServerConfig()
    assert StateConfig(**values_of(args, STORE_FLAGS)) == StateConfig()
    assert PressureConfig(**values_of(args, PRESSURE_FLAGS)) == PressureConfig()
    assert http_settings(args) == GatewayConfig()
    assert http_settings(build_parser().parse_args(["gateway"])) == GatewayConfig()


@pytest.mark.parametrize("flag", ["--slots", "--max-num-seqs", "--max-running-requests"])
def test_slots_has_the_names_of_other_engines(flag: str) -> None:
    assert build_parser().parse_args(["serve", flag, "7"]).n_slots == 7


def test_flags_reach_their_settings() -> None:
    line = (
        "serve --max-queue 0 --poison-freed-slots --dtype bfloat16 --threads 2 "
        "--deterministic --decode-prompt-tokens 64 --binary-port none --binary-uds /tmp/x "
        "--max-lanes 9"
    )
    args = build_parser().parse_args(line.split())
    assert EngineConfig(**values_of(args, ENGINE_FLAGS + MODEL_FLAGS)) == EngineConfig(
        max_queue=0,
        decode_prompt_tokens=64,
        deterministic=True,
        poison_freed_slots=True,
        dtype="bfloat16",
        n_threads=2,
    )
    assert server_settings(args) == ServerConfig(binary_port=None, binary_uds="/tmp/x", max_lanes=9)


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_flags_of_http_reach_their_settings(command: str) -> None:
    line = (
        f"{command} --host ::1 --port none --uds /tmp/h --http-max-connections 3 "
        "--http-write-timeout-s 2 --header-timeout-s 1 --allowed-origins https://a.example,* "
        "--model-aliases gpt-5,org/model"
    )
    assert http_settings(build_parser().parse_args(line.split())) == GatewayConfig(
        host="::1",
        port=None,
        uds="/tmp/h",
        max_connections=3,
        write_timeout_s=2.0,
        header_timeout_s=1.0,
        allowed_origins=("https://a.example", "*"),
        model_aliases=("gpt-5", "org/model"),
    )


def test_limits_of_keys_reach_the_settings_of_http() -> None:
    line = "serve --limit-requests 60 --limit-tokens 9 --request-log json"
    keys = parse_api_keys("anna:one\n[concurrent=4]\nbert:two")
    settings = http_settings(build_parser().parse_args(line.split()), keys)
    second = keys[1].digest.hex()
    assert settings == GatewayConfig(
        limits=Limits(requests=60, tokens=9),
        key_limits={second: Limits(concurrent=4)},
        request_log="json",
    )


def test_without_port_and_socket_there_is_no_http() -> None:
    assert http_settings(build_parser().parse_args(["serve", "--port", "none"])) is None


def test_flags_cannot_be_abbreviated() -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(["serve", "--max-que", "1"])
    assert caught.value.code == 2
