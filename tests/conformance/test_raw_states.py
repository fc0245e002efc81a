"""The client that was written from docs/protocol.md alone, on states, against the real server."""

import asyncio
import re
import sys
from pathlib import Path

from wkvm.assembly.engine import build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.assembly.states import OpenStates
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.state_config import StateConfig
from wkvm.engine.loop import EngineLoop
from wkvm.server.serve import Server

SCRIPT = Path(__file__).with_name("raw_states.py")
CHECKS = re.findall(r"^def check_(\w+)\(", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


async def run_script(address: str) -> tuple[int | None, str]:
    """The exit status of the script, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(SCRIPT), address, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_every_check_of_the_raw_client_passes_on_states(tmp_path: Path) -> None:
    assert CHECKS
    engine = build_engine(BUNDLED, EngineConfig(n_slots=4, device="cpu"), served_name="bundled")
    loop = EngineLoop(engine)
    states = OpenStates(engine, StateConfig(folder=str(tmp_path / "states"))).serve(loop)
    server = Server(states, ServerConfig(binary_port=0, binary_uds=str(tmp_path / "s")), states)
    stepping = asyncio.create_task(loop.run())
    try:
        await server.start()
        for address in server.addresses:
            status, output = await run_script(address)
            assert output.splitlines() == [f"ok {name}" for name in CHECKS]
            assert status == 0
        assert server.n_operations == server.n_requests == 0
    finally:
        await server.close()
        await states.close()
        loop.close()
        await stepping
