"""``transformers serve`` on a checkpoint of RWKV-7, to be measured beside wkvm's server.

    python -m tools.serve_transformers --port 8100 [MODEL]
    wkvm bench serve --target wkvm=openai-completions@http://127.0.0.1:8000 \
        --target transformers=openai-completions@http://127.0.0.1:8100 --no-ignore-eos --repeat 3

The model's code is that of the package ``rwkv7-hf``, which transformers' server does not know by
itself; the server also needs ``accelerate``. It runs on the CPU in float32, with as many threads as
``OMP_NUM_THREADS`` says, and refuses ``ignore_eos``.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from wkvm_bench.peer_hf import KERNELS

BUNDLED = Path(__file__).resolve().parents[1] / "wkvm/bundled/rwkv7-tinystories"


def register() -> str:
    """Let transformers know the model's code.

    Returns:
        The name of its class.

    Raises:
        ImportError: ``rwkv7-hf`` or transformers is not installed.
    """
    for name in KERNELS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    transformers: Any = importlib.import_module("transformers")
    model: Any = importlib.import_module("rwkv7_hf").RWKV7ForCausalLM
    config = model.config_class
    transformers.AutoConfig.register("rwkv7", config, exist_ok=True)
    transformers.AutoModelForCausalLM.register(config, model, exist_ok=True)
    # The server looks the class up by the name that the checkpoint gives.
    setattr(transformers, model.__name__, model)
    return str(model.__name__)


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=BUNDLED, help="(default: bundled)")
    parser.add_argument("--port", type=int, default=8100, help="(default: 8100)")
    args = parser.parse_args()
    register()
    sys.argv = ["transformers", "serve", "--device", "cpu", "--dtype", "float32"]
    sys.argv += ["--port", str(args.port), "--log-level", "warning", str(args.model)]
    importlib.import_module("transformers.cli.transformers").main()


if __name__ == "__main__":
    main()
