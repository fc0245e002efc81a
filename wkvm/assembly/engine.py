"""From a model's path to an engine that has run once. Imports torch, so import this late."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from wkvm.assembly.host_memory import free_host_bytes
from wkvm.assembly.memory import (
    MAX_SLOT_TOKENS,
    Fitting,
    divide,
    room_beside,
    slots_that_fit,
)
from wkvm.core.config import EngineConfig
from wkvm.core.errors import ConfigError
from wkvm.core.layout import DEFAULT_STATE, PAGE_TOKENS, GuestSpec, StateOptions
from wkvm.core.request import RequestSpec
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.engine.guidance import can_compile
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


def auto_slots(
    path: Path,
    *,
    device: str,
    dtype: str,
    state: StateOptions = DEFAULT_STATE,
    n_pages: int | None = None,
) -> int:
    """How many slots to have on this machine, by what is free before the model is loaded.

    On a GPU ``build_engine`` knows better, with the model in its place.

    Args:
        n_pages: of a guest; None for what suits.

    Raises:
        CheckpointError, ConfigError: as ``describe``.
    """
    description, fitting = _fitting(path, device=device, dtype=dtype, state=state)
    division = divide(
        description.layout,
        fitting.left_bytes // 2,
        n_slots=MAX_AUTO_SLOTS,
        fits_slots=True,
        n_pages=n_pages,
        max_slot_tokens=MAX_SLOT_TOKENS["cpu"],
    )
    return max(division.n_slots, 1)


def check_slots(path: Path, config: EngineConfig) -> None:
    """Check that all slots, and pages that are asked for, fit in free memory beside the weights.

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
    layout = description.layout
    if layout.guest is not None and config.guest_tokens is not None:
        left = fitting.left_bytes - config.n_slots * layout.record_bytes
        if config.n_pages * layout.guest.page_bytes > left:
            fitting_tokens = left // layout.guest.page_bytes * PAGE_TOKENS
            raise ConfigError("guest-tokens", _too_many(config, layout.guest, fitting_tokens))


def _fitting(
    path: Path, *, device: str, dtype: str, state: StateOptions
) -> tuple[ModelDescription, Fitting]:
    description = describe(path, device=device, dtype=dtype, state=state)
    return description, slots_that_fit(description, device=device, dtype=dtype)


def device_memory(engine: Engine) -> Callable[[], Mapping[str, int]]:
    """What tells how much of a device's memory is taken, by torch's count: it asks no device."""

    def tell() -> dict[str, int]:
        if engine.model.info.device != "cuda":
            return {}
        return {
            "device_allocated_bytes": torch.cuda.memory_allocated(),
            "device_reserved_bytes": torch.cuda.memory_reserved(),
            "device_max_allocated_bytes": torch.cuda.max_memory_allocated(),
        }

    return tell


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
        CheckpointError, ConfigError: as ``load_model``; or the slots, or the weights, do not fit.
    """
    try:
        return _build(
            path,
            config,
            served_name=served_name,
            takes_grammars=takes_grammars,
            fits_slots=fits_slots,
        )
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        why = (
            f"the GPU has no room for the model: {free >> 20:,} MiB of its {total >> 20:,} were "
            "free when it ran out of memory. End what else runs there, have fewer --slots, or "
            "quantize the weights with --quantization"
        )
        raise ConfigError("device", why) from error


def _build(
    path: Path, config: EngineConfig, *, served_name: str, takes_grammars: bool, fits_slots: bool
) -> Engine:
    began = time.monotonic()
    if fits_slots and resolve_device(config.device) == "cpu":
        n_slots = auto_slots(
            path,
            device="cpu",
            dtype=config.dtype,
            state=config.state,
            n_pages=None if config.guest_tokens is None else config.n_pages,
        )
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
        config = _on_cpu(model, config)
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
    if model.layout.guest is not None:
        logger.info(
            "attention: pages for %s tokens, %.1f MiB",
            f"{config.n_pages * PAGE_TOKENS:,}",
            config.n_pages * model.layout.guest.page_bytes / 2**20,
        )
    return engine


def _on_cpu(model: Model, config: EngineConfig) -> EngineConfig:
    """The settings with pages of a guest, if the model has one and none were asked for.

    They take half of what the slots leave of the free memory, and at most
    ``MAX_SLOT_TOKENS`` a slot.

    Raises:
        ConfigError: those that were asked for do not fit, or not one does.
    """
    layout = model.layout
    if layout.guest is None:
        return config
    left = max(free_host_bytes() - config.n_slots * layout.record_bytes, 0)
    if config.guest_tokens is not None:
        n_fitting = left // layout.guest.page_bytes
        if config.n_pages > n_fitting:
            why = _too_many(config, layout.guest, n_fitting * PAGE_TOKENS)
            raise ConfigError("guest-tokens", why)
        return config
    division = divide(
        layout,
        config.n_slots * layout.record_bytes + left // 2,
        n_slots=config.n_slots,
        fits_slots=False,
        n_pages=None,
        max_slot_tokens=MAX_SLOT_TOKENS["cpu"],
    )
    if division.guest_tokens is None:
        raise ConfigError("guest-tokens", _no_page(config, layout.guest))
    return replace(config, guest_tokens=division.guest_tokens)


def _no_page(config: EngineConfig, guest: GuestSpec) -> str:
    return (
        f"beside {config.n_slots:,} states there is no room for a page of {guest.page_bytes:,} "
        "bytes; have fewer --slots"
    )


def _too_many(config: EngineConfig, guest: GuestSpec, n_fitting: int) -> str:
    return (
        f"{config.guest_tokens:,} tokens of {guest.token_bytes:,} bytes do not fit in the free "
        f"memory beside the weights and {config.n_slots:,} states; {max(n_fitting, 0):,} do"
    )


def _on_gpu(model: Model, config: EngineConfig, *, fits_slots: bool) -> EngineConfig:
    """The settings with as many slots, and pages of a guest, as a GPU has room for.

    Raises:
        ConfigError: fewer fit than are asked for, or none.
    """
    room = room_beside(model, config, fits_slots=fits_slots)
    n_slots, guest = room.n_slots, model.layout.guest
    logger.info(
        "%.2f GiB are free beside the weights, %.2f GiB of them are kept for steps, and %.2f GiB "
        "are for states",
        room.free_bytes / 2**30,
        room.reserve_bytes / 2**30,
        n_slots * model.layout.record_bytes / 2**30,
    )
    if guest is not None and n_slots and room.n_pages < 1:
        raise ConfigError("guest-tokens", _no_page(config, guest))
    if n_slots < 1 or (n_slots < config.n_slots and not fits_slots):
        has_pages = guest is not None and config.guest_tokens is not None
        raise ConfigError(
            "slots",
            f"{n_slots:,} states of {model.layout.record_bytes:,} bytes fit on the GPU beside the "
            f"weights{f' and {config.guest_tokens:,} --guest-tokens' if has_pages else ''}, "
            f"{config.n_slots:,} are asked for",
        )
    config = replace(config, n_slots=n_slots)
    return config if guest is None else replace(config, guest_tokens=room.n_pages * PAGE_TOKENS)


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
    n_slots = len(WARM_UP_LENGTHS)
    few = EngineConfig(
        n_slots=n_slots, guest_tokens=2 * n_slots * PAGE_TOKENS, n_threads=config.n_threads
    )
    engine = Engine(model, few)
    params = SamplingParams(max_tokens=2, top_p=0.9, seed=0)
    for length in WARM_UP_LENGTHS:
        engine.submit(RequestSpec(prompt=(0,) * length, params=params), time.monotonic())
    while (plan := engine.plan(time.monotonic())) is not None:
        engine.commit(plan, engine.run(plan), time.monotonic())
    engine.take_events()
