"""``wkvm`` with a fault to come: the bundled model, which does what a file says once it is there.

argv is the file's path, then the command line. The file holds one word: ``lost``, a device that
does nothing any more; ``hang``, a step that does not end; ``memory``, one step without memory;
``exit``, what ends a thread.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import wkvm.assembly.engine
from wkvm.cli import main
from wkvm.models.registry import load_model

TEXT = "CANARY-IN-AN-EXCEPTION"
STEP_S = 0.05
"""Added to each step, so that no answer is over before a fault comes."""
LOST = "CUDA error: an illegal memory access was encountered"


def fail(fault: Path) -> None:
    """Do what the file says, if it is there."""
    try:
        word = fault.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    match word:
        case "lost":
            try:
                raise KeyError(TEXT)
            except KeyError as error:
                raise RuntimeError(LOST) from error
        case "memory":
            fault.unlink()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        case "exit":
            raise SystemExit(TEXT)
        case "hang":
            time.sleep(3600)
        case _:
            raise AssertionError(word)


def load(load_model: Callable[..., Any], fault: Path) -> Callable[..., Any]:
    """What loads a model that fails."""

    def load_failing(*arguments: Any, **options: Any) -> Any:
        model = load_model(*arguments, **options)
        forward = model.forward

        def failing_forward(*arguments: Any, **options: Any) -> Any:
            time.sleep(STEP_S)
            fail(fault)
            return forward(*arguments, **options)

        model.forward = failing_forward
        return model

    return load_failing


if __name__ == "__main__":
    setattr(wkvm.assembly.engine, "load_model", load(load_model, Path(sys.argv[1])))  # noqa: B010
    sys.exit(main(sys.argv[2:]))
