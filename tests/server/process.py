"""A server process for tests of signals: argv is the socket's path and the settings.
While there is a file of that path and ``.hang``, a step does not end, and neither does the loop.

Its engine is a fountain: it starts without torch, so these tests take no longer than signals do.
"""

import json
import sys
import time
from pathlib import Path

from tests.server.fountain import Fountain
from wkvm.core.config import ServerConfig
from wkvm.core.plan import StepPlan, StepResult
from wkvm.server.serve import Server, run


class SlowFountain(Fountain):
    """Slow enough for its requests to be met; it hangs, on the loop's thread, where it is told."""

    def __init__(self, hang: Path) -> None:
        super().__init__()
        self._hang = hang

    def collect(self, plan: StepPlan) -> StepResult:
        time.sleep(3600 if self._hang.exists() else 0.002)
        return super().collect(plan)


def ready(server: Server) -> None:
    print("ready", *server.addresses, flush=True)


def main() -> None:
    path, settings = sys.argv[1:]
    config = ServerConfig(binary_port=None, binary_uds=path, **json.loads(settings))
    run(SlowFountain(Path(f"{path}.hang")), config, ready=ready)
    print("ended", "torch" in sys.modules, flush=True)


if __name__ == "__main__":
    main()
