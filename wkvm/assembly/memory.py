"""How much memory is free, and how many states fit in it. Imports torch, so import this late."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from wkvm.core.config import EngineConfig
from wkvm.core.layout import ITEM_BYTES
from wkvm.engine.gpu_runner import SCORE_BLOCK
from wkvm.engine.graphs import buckets_for
from wkvm.engine.state_mover import N_BUFFERS
from wkvm.models.base import Model
from wkvm.models.registry import ModelDescription, resolve_device, resolve_dtype

MEMINFO = Path("/proc/meminfo")


GRAPH_BYTES = 24 * 2**20
"""More than one captured step takes of a GPU's memory, beside what all of them share."""

N_PROMPT_GRAPHS = 10
"""More than there are captured steps of prompts."""

N_RULED_SLOTS = 1024
"""How many slots' requests may have penalties, bias or allowed ids at once, for certain."""

RULE_BYTES, SCORE_BYTES = 9, 48
"""For each id of the vocabulary: of a slot with such rules, and of a row whose log probabilities
are told, while they are computed."""

SAMPLER_SLOT_BYTES = 256
"""Of each slot, beside its state."""

SPARE_BYTES = 512 * 2**20
"""For what nobody counts: workspaces of libraries, code, the sampler's scratch (36 MiB for 1,024
rows), and what an allocator cannot hand out."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """How many states fit beside the weights in memory that is free now.

    Attributes:
        device: ``cpu`` or ``cuda``.
        free_bytes: free memory of the device, before weights.
        weight_bytes: what the weights will take of it.
        n_slots: how many records fit in the rest; all of it, nothing kept back.
    """

    device: str
    free_bytes: int
    weight_bytes: int
    n_slots: int


def slots_that_fit(description: ModelDescription, *, device: str, dtype: str) -> Fitting:
    """Count what fits on a device.

    Raises:
        ConfigError: the device is not there.
    """
    resolved = resolve_device(device)
    weights = resolve_dtype(dtype, device=resolved, stored=description.stored_dtype)
    weight_bytes = description.n_parameters * ITEM_BYTES[weights]
    free_bytes = torch.cuda.mem_get_info()[0] if resolved == "cuda" else free_host_bytes()
    rest = max(free_bytes - weight_bytes, 0)
    return Fitting(resolved, free_bytes, weight_bytes, rest // description.layout.record_bytes)


@dataclass(frozen=True, slots=True)
class Room:
    """What a GPU has for states, beside a model that is loaded and its decode steps.

    Attributes:
        free_bytes: free memory of the device.
        reserve_bytes: what of it must stay free: see ``reserve_bytes``.
        n_slots: how many states fit in the rest, at most as many as are asked for.
    """

    free_bytes: int
    reserve_bytes: int
    n_slots: int


def room_beside(model: Model, config: EngineConfig) -> Room:
    """How many of ``config.n_slots`` states fit on a GPU beside a model that is loaded.

    All that comes up in service is counted: see ``reserve_bytes``. The memory of decode steps is
    taken from the device here, for good.
    """
    model.decode_step(buckets_for(config.n_slots)[-1])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_bytes, reserve = torch.cuda.mem_get_info()[0], reserve_bytes(model, config)
    rest = max(free_bytes - reserve, 0)
    n_slots = rest // (model.layout.record_bytes + SAMPLER_SLOT_BYTES)
    return Room(free_bytes, reserve, min(n_slots, config.n_slots))


def reserve_bytes(model: Model, config: EngineConfig) -> int:
    """Memory of a GPU that must be free beside weights, states and decode steps.

    That is the most that a step of prompts takes, with all of its logits; what becomes of those
    that end, and of a block whose log probabilities are told; graphs; rules of requests; and
    buffers of states that come and go.
    """
    vocab_size, n_tokens = model.info.vocab_size, config.max_prompt_tokens
    buckets = buckets_for(config.n_slots)
    n_rows = buckets[-1]
    of_masks = n_rows * vocab_size // 8
    of_logits = min(n_tokens, n_rows) * 4 + SCORE_BLOCK * SCORE_BYTES
    of_rules = min(config.n_slots, N_RULED_SLOTS) * RULE_BYTES
    return (
        model.workspace_bytes(n_tokens, n_tokens)
        + model.prompt_graph_bytes()
        + vocab_size * (of_logits + of_rules)
        + of_masks
        + 2 * N_BUFFERS * model.layout.record_bytes
        + (len(buckets) + N_PROMPT_GRAPHS) * GRAPH_BYTES
        + SPARE_BYTES
    )


def free_host_bytes() -> int:
    """Main memory that can be had without swapping."""
    try:
        lines = MEMINFO.read_text("ascii").splitlines()
        values = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return int(values["MemAvailable"][0]) * 1024
    except (OSError, KeyError, IndexError, ValueError):
        # Not Linux: what is free without counting caches that could be dropped.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
