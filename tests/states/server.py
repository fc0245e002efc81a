"""What a nursery forks: the assembly of ``wkvm serve``, over a model that may be a test's."""

from collections.abc import Callable
from pathlib import Path

import torch

from tests.hash_model import HashModel
from tests.states.nursery import Ask
from tests.states.tokens import grammars_of
from wkvm.assembly.engine import build_engine
from wkvm.assembly.models import BUNDLED
from wkvm.assembly.states import OpenStates
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.state_config import StateConfig
from wkvm.engine.engine import Engine
from wkvm.server.serve import Server, run

torch.set_num_threads(1)


def build(ask: Ask) -> Engine:
    """The engine that is asked for."""
    config = EngineConfig(**{"device": "cpu", **ask.engine})
    if ask.model == "bundled":
        return build_engine(Path(BUNDLED), config, served_name="bundled", takes_grammars=True)
    model = HashModel(n_words=ask.n_words, has_guest=ask.has_guest)
    return Engine(model, config, served_name="hash", grammars=grammars_of(model))


def run_server(ask: Ask, ready: Callable[[list[str]], None]) -> None:
    """Serve until SIGTERM."""
    engine = build(ask)
    states = OpenStates(engine, StateConfig(folder=ask.folder))
    config = ServerConfig(binary_port=None, binary_uds=ask.uds)

    def greet(server: Server) -> None:
        ready(list(server.addresses))

    run(engine, config, ready=greet, states=states.serve)
