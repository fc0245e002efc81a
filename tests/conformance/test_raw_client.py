"""A client that was written from docs/protocol.md alone works against the real server."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.harness import Rig, serving
from wkvm.assembly.engine import build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.core.config import EngineConfig, ServerConfig

SCRIPT = Path(__file__).with_name("raw_client.py")
CHECKS = re.findall(r"^def check_(\w+)\(", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """The model that comes with wkvm, behind both doors."""
    engine = build_engine(BUNDLED, EngineConfig(n_slots=4, device="cpu"), served_name="bundled")
    config = ServerConfig(binary_port=0, binary_uds=str(tmp_path / "s"))
    async with serving(config, engine=engine, control_key=None) as rig:
        yield rig


async def run_script(address: str) -> tuple[int | None, str]:
    """The exit status of the script, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(SCRIPT), address, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_every_check_of_the_raw_client_passes_over_both_doors(rig: Rig) -> None:
    assert CHECKS
    tcp, unix = rig.server.addresses
    for address in (tcp, unix):
        status, output = await run_script(address)
        verdicts = [line for line in output.splitlines() if not line.startswith(" ")]
        assert verdicts == [f"ok {name}" for name in CHECKS]
        assert status == 0
    await rig.assert_idle()
