"""The unit and the container file say what is so: flags, folders, ports, users."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wkvm.assembly.models import BUNDLED
from wkvm.cli.parser import parse

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "deploy" / "wkvm.service").read_text(encoding="utf-8")
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def setting(name: str) -> str:
    """A setting of the unit that is there once."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def instruction(name: str) -> str:
    """What the container file's last instruction of a kind says, its lines as one."""
    joined = CONTAINER.replace("\\\n", " ")
    return str(re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)[-1])


def test_the_unit_starts_a_server_with_flags_that_exist() -> None:
    program, command, *flags = shlex.split(setting("ExecStart").removesuffix(" $FLAGS"))
    assert (program, command) == ("/opt/wkvm/bin/wkvm", "serve")
    args = parse([command, *flags])
    assert (args.log_format, args.api_keys_file) == ("json", "/etc/wkvm/keys")
    assert args.state_folder.startswith(f"/var/lib/{setting('StateDirectory')}/")


def test_the_unit_gives_the_server_more_time_to_end_than_it_takes() -> None:
    args = parse(["serve"])
    assert int(setting("TimeoutStopSec")) >= args.drain_timeout_s + 30


def test_the_unit_starts_anew_what_failed_and_not_what_cannot_be_had() -> None:
    assert setting("Restart") == "on-failure"
    assert setting("RestartPreventExitStatus") == "2"
    assert (setting("Type"), setting("NotifyAccess")) == ("notify", "main")


def test_the_flags_that_the_unit_suggests_show_no_binary_protocol_to_others() -> None:
    (flags,) = re.findall(r"^# +FLAGS=(.*)$", UNIT, re.MULTILINE)
    args = parse(["serve", *flags.split()])
    assert (args.host, args.binary_port) == ("0.0.0.0", None)
    assert args.binary_uds.startswith(f"/run/{setting('RuntimeDirectory')}/")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "wkvm.service"
    unit.write_text(UNIT.replace("/opt/wkvm/bin/wkvm", sys.executable), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_serves_with_flags_that_exist_and_takes_more() -> None:
    program, command, *flags = json.loads(instruction("ENTRYPOINT"))
    assert (program, command) == ("wkvm", "serve")
    args = parse([command, *flags, "/model", "--log-format", "text"])
    assert (args.host, args.model, args.log_format) == ("0.0.0.0", "/model", "text")
    assert args.port == int(instruction("EXPOSE"))
    assert args.state_folder.startswith(f"{instruction('VOLUME')}/")


def test_the_container_has_more_time_to_end_than_it_takes() -> None:
    (seconds,) = re.findall(r"--stop-timeout (\d+) ", CONTAINER)
    assert int(seconds) >= parse(["serve"]).drain_timeout_s + 30


def test_the_image_runs_as_a_user_without_rights_who_owns_its_volume() -> None:
    uid = instruction("USER")
    assert f"useradd --system --uid {uid} " in CONTAINER
    assert f"install -d -m 0700 -o wkvm -g wkvm {instruction('VOLUME')}" in CONTAINER


def test_the_image_is_built_of_what_is_here_with_what_the_makefile_installs() -> None:
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE):
        for path in copied.split():
            assert (ROOT / path).exists(), path
    (torch,) = re.findall(r"^TORCH \?=.*,(torch==[\d.]+)\)$", MAKEFILE, re.MULTILINE)
    assert f"ARG TORCH={torch}\n" in CONTAINER
    assert f'"${{TORCH}}" = {torch} ]' in CONTAINER
    packages = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (wheel,) = re.findall(r"^packages = \[(.*)\]$", packages, re.MULTILINE)
    for package in json.loads(f"[{wheel}]"):
        assert re.search(rf"^COPY {package.split('/')[0]}", CONTAINER, re.MULTILINE), package
    assert BUNDLED.is_relative_to(ROOT / "wkvm")


def test_the_check_of_health_asks_the_port_that_is_served() -> None:
    command = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    compile(command[2], "healthcheck", "exec")
    assert f"http://127.0.0.1:{instruction('EXPOSE')}/health" in command[2]
