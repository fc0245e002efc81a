"""The bundled model, loaded once, and the event loop that the server uses."""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import uvloop

from wkvm.models.base import Model
from wkvm.models.registry import load_model

BUNDLED = Path(__file__).parents[2] / "wkvm" / "bundled" / "rwkv7-tinystories"


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def bundled() -> Model:
    """In float32 on a CPU, with one thread: the other tests' numbers must not matter."""
    torch.set_num_threads(1)
    return load_model(BUNDLED, device="cpu", dtype="float32")
