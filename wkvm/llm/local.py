"""The engine of an ``LLM`` whose model runs in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wkvm.assembly.backend import Local
from wkvm.assembly.models import model_name, require_engine
from wkvm.core.config import MAX_SECONDS, EngineConfig
from wkvm.core.state_config import StateConfig

MAX_DEFAULT_SLOTS = 64
"""Slots without ``slots``, if half of the free memory has room for so many."""


def local(path: Path, settings: Mapping[str, Any], state_dir: str | Path | None) -> Local:
    """The engine for a model in this process. It has no deadline: nobody else waits for it."""
    is_auto = "n_slots" not in settings
    given: dict[str, Any] = {"n_slots": MAX_DEFAULT_SLOTS, **settings}
    config = EngineConfig(**given, request_timeout_s=MAX_SECONDS)
    states = StateConfig(folder=None if state_dir is None else str(state_dir))
    require_engine()
    from wkvm.assembly.engine import build_engine, check_slots
    from wkvm.assembly.states import OpenStates, check_states

    if not is_auto:
        check_slots(path, config)
    check_states(states)
    engine = build_engine(path, config, served_name=model_name(path), fits_slots=is_auto)
    return Local(engine, OpenStates(engine, states).serve)
