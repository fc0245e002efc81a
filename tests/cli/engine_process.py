"""A server as ``wkvm serve`` makes it, for tests that are not about its engine; it starts at once.

The engine computes nothing, and says that it is the bundled model. argv is the path of the binary
protocol's socket, the grace of a drain in seconds, and the key, if it asks for one. While there is
a file of that path and ``.hold``, no request gets its last id.
"""

import dataclasses
import sys
import time
from pathlib import Path

from tests.server.fountain import Fountain
from wkvm.assembly.http import HttpDoor, beside
from wkvm.assembly.models import BUNDLED
from wkvm.assembly.texts import load_texts
from wkvm.core.api_keys import ApiKey
from wkvm.core.config import ServerConfig
from wkvm.core.plan import StepPlan, StepResult
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.text import load_tokenizer, tokenizer_digest
from wkvm.server.serve import Server, run


class SlowFountain(Fountain):
    """Slow enough for its requests to be met."""

    def __init__(self, hold: Path) -> None:
        super().__init__()
        self._hold = hold
        self.info = dataclasses.replace(
            self.info,
            model="rwkv7-tinystories",
            vocab_size=4096,
            tokenizer_digest=tokenizer_digest(BUNDLED),
        )

    def collect(self, plan: StepPlan) -> StepResult:
        time.sleep(0.002)
        return super().collect(plan)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        ending = [
            one
            for one in self._requests.values()
            if not one.held and one.n_output + 1 == one.max_tokens and self._hold.exists()
        ]
        for one in ending:
            one.held = True
        super().commit(plan, result, now)
        for one in ending:
            one.held = False


def main() -> None:
    path, grace_s, *keys = sys.argv[1:]
    config = ServerConfig(
        binary_port=None,
        binary_uds=path,
        api_keys=tuple(map(ApiKey.of, keys)),
        drain_timeout_s=float(grace_s),
    )
    texts = load_texts(BUNDLED, load_tokenizer(BUNDLED), default_max_tokens=None)
    opened = list[HttpDoor]()

    def doors(server: Server) -> list[HttpDoor]:
        opened.append(beside(server, GatewayConfig(port=0), texts))
        return opened

    def ready(server: Server) -> None:
        print("ready", *server.addresses, *opened[0].addresses, flush=True)

    run(SlowFountain(Path(f"{path}.hold")), config, ready=ready, doors=doors)


if __name__ == "__main__":
    main()
