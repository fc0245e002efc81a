"""From a model's path to an engine that has run once. Imports torch, so import this late."""

import logging
import time
from dataclasses import replace
from pathlib import Path

from wkvm.assembly.memory import Fitting, room_beside, slots_that_fit
from wkvm.core.config import EngineConfig
from wkvm.core.errors import ConfigError
from wkvm.core.layout import DEFAULT_STATE, StateOptions
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler, can_compile
from wkvm.gateway.text import (
    Tokenizer,
    TokenizerError,
    UnknownTokenError,
    load_tokenizer,
    tokenizer_digest,
)
from wkvm.models.base import Model
from wkvm.models.registry import ModelDescription, describe, load_model, resolve_device

logger = logging.getLogger("wkvm.assembly")

MAX_AUTO_SLOTS = 1024
"""What ``--slots auto`` takes at most on a CPU: its memory is not the engine's alone."""

WARM_UP_LENGTHS = (1, 3, 64, 65)
"""Prompts of the warm-up: one token, a few, a whole chunk and more than one."""


def auto_slots(path: Path, *, device: str, dtype: str, state: StateOptions = DEFAULT_STATE) -> int:
    """How many slots to have on this machine, by what is free before the model is loaded.

    On a GPU ``build_engine`` knows better, with the model in its place.

    Raises:
        CheckpointError, ConfigError: as ``describe``.
    """
    _, fitting = _fitting(path, device=device, dtype=dtype, state=state)
    return min(max(fitting.n_slots // 2, 1), MAX_AUTO_SLOTS)


def check_slots(path: Path, config: EngineConfig) -> None:
    """Check that all slots fit in memory that is free now, beside the weights.

    A CPU would hand the memory out page by page, and run out of it while it serves.

    Raises:
        CheckpointError: as ``describe``.
        ConfigError: they do not fit, or as ``describe``.
    """
    description, fitting = _fitting(
        path, device=config.device, dtype=config.dtype, state=config.state
    )
    if config.n_slots > fitting.n_slots:
        raise ConfigError(
            "slots",
            f"{config.n_slots:,} states of {description.layout.record_bytes:,} bytes do not fit in "
            f"the free memory of this {fitting.device} beside the weights; {fitting.n_slots:,} do",
        )


def _fitting(
    path: Path, *, device: str, dtype: str, state: StateOptions
) -> tuple[ModelDescription, Fitting]:
    description = describe(path, device=device, dtype=dtype, state=state)
    return description, slots_that_fit(description, device=device, dtype=dtype)


def build_engine(
    path: Path,
    config: EngineConfig,
    *,
    served_name: str,
    takes_grammars: bool = False,
    fits_slots: bool = False,
) -> Engine:
    """Load a model, run it once and make its engine.

    Args:
        fits_slots: have as many slots as fit in memory, at most ``config.n_slots``: on a GPU
            all that fit, on a CPU see ``auto_slots``.
        takes_grammars: whether requests may have grammars, as far as llguidance is installed
            and there is a tokenizer. That takes up to a second for a large vocabulary.

    Raises:
        CheckpointError, ConfigError: as ``load_model``; or the slots do not fit.
    """
    began = time.monotonic()
    if fits_slots and resolve_device(config.device) == "cpu":
        n_slots = auto_slots(path, device="cpu", dtype=config.dtype, state=config.state)
        config = replace(config, n_slots=min(n_slots, config.n_slots))
    model = load_model(
        path,
        device=config.device,
        dtype=config.dtype,
        state=config.state,
        quantization=config.quantization,
        deterministic=config.deterministic,
    )
    if model.info.device == "cpu":
        warm_up(model, config)
    else:
        config = _on_gpu(model, config, fits_slots=fits_slots)
    engine = Engine(
        model,
        config,
        served_name=served_name,
        tokenizer_digest=tokenizer_digest(path),
        grammars=_grammars(path, model) if takes_grammars else None,
    )
    logger.info(
        "%s: %s, %s on %s, %d slots, %.1f MiB of states, loaded in %.1f s",
        served_name,
        model.info.name,
        model.info.dtype,
        model.info.device,
        config.n_slots,
        config.n_slots * model.layout.record_bytes / 2**20,
        time.monotonic() - began,
    )
    return engine


def _on_gpu(model: Model, config: EngineConfig, *, fits_slots: bool) -> EngineConfig:
    """The settings with as many slots as a GPU has room for.

    Raises:
        ConfigError: fewer fit than are asked for, or none.
    """
    room = room_beside(model, config)
    n_slots = room.n_slots
    logger.info(
        "%.2f GiB are free beside the weights, %.2f GiB of them are kept for steps, and %.2f GiB "
        "are for states",
        room.free_bytes / 2**30,
        room.reserve_bytes / 2**30,
        n_slots * model.layout.record_bytes / 2**30,
    )
    if n_slots < 1 or (n_slots < config.n_slots and not fits_slots):
        raise ConfigError(
            "slots",
            f"{n_slots:,} states of {model.layout.record_bytes:,} bytes fit on the GPU beside the "
            f"weights, {config.n_slots:,} are asked for",
        )
    return replace(config, n_slots=n_slots)


def _grammars(path: Path, model: Model) -> GrammarCompiler | None:
    """What makes requests' grammars work, ready for use; None, and a word in the log, if nothing.

    A model can be served without its tokenizer, so one that cannot be read is no error here.
    """
    if not can_compile():
        logger.info("no grammars: llguidance is not installed")
        return None
    try:
        tokenizer = load_tokenizer(path)
    except TokenizerError as error:
        logger.info("no grammars: %s", error)
        return None
    grammars = GrammarCompiler(
        texts_of_ids(tokenizer, model.info.eos_ids), vocab_size=model.info.vocab_size
    )
    grammars.prepare()
    return grammars


def texts_of_ids(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> list[bytes]:
    """By id, the bytes that it adds to a text: none where it is unknown, special or ends it."""
    not_text = tokenizer.special_ids.union(eos_ids)
    texts = list[bytes]()
    for token_id in range(tokenizer.vocab_size):
        try:
            texts.append(b"" if token_id in not_text else tokenizer.token_bytes(token_id))
        except UnknownTokenError:
            texts.append(b"")
    return texts


def warm_up(model: Model, config: EngineConfig) -> None:
    """Run prompts of several lengths, so that the first request finds everything set up.

    On an engine of its own: neither counters nor random numbers of the one that serves
    are touched.
    """
    engine = Engine(model, EngineConfig(n_slots=len(WARM_UP_LENGTHS), n_threads=config.n_threads))
    params = SamplingParams(max_tokens=2, top_p=0.9, seed=0)
    for length in WARM_UP_LENGTHS:
        engine.submit(RequestSpec(prompt=(0,) * length, params=params), time.monotonic())
    while (plan := engine.plan(time.monotonic())) is not None:
        engine.commit(plan, engine.run(plan), time.monotonic())
    engine.take_events()
