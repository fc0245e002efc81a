"""How much memory is free, and how many states and pages of guests fit in it.

Imports torch, so import this late.
"""

from dataclasses import dataclass

import torch

from wkvm.assembly.host_memory import free_host_bytes
from wkvm.core.config import EngineConfig
from wkvm.core.layout import ITEM_BYTES, PAGE_TOKENS, StateLayout, pages_for
from wkvm.engine.gpu_runner import SCORE_BLOCK
from wkvm.engine.graphs import buckets_for
from wkvm.engine.state_mover import N_BUFFERS
from wkvm.models.base import Model
from wkvm.models.registry import ModelDescription, resolve_device, resolve_dtype

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
rows, and up to 140 of a wide vocabulary), and what an allocator cannot hand out."""


AUTO_SLOT_TOKENS = 8192
"""With ``--slots auto`` and ``--guest-tokens auto``: there are no more slots than there is room for
with so many tokens each in their pages."""

MAX_SLOT_TOKENS = {"cpu": 32_768, "cuda": 262_144}
"""What ``--guest-tokens auto`` takes at most for each slot, by device."""

TABLE_BYTES = 4
"""In the table of the pages, for each page and slot."""


@dataclass(frozen=True, slots=True)
class Division:
    """What memory is used for.

    Attributes:
        n_slots: how many states; perhaps none.
        n_pages: how many pages of a guest beside them; 0 without a guest, or if there is no room.
    """

    n_slots: int
    n_pages: int

    @property
    def guest_tokens(self) -> int | None:
        """The setting of that name."""
        return self.n_pages * PAGE_TOKENS or None


def divide(
    layout: StateLayout,
    n_bytes: int,
    *,
    n_slots: int,
    fits_slots: bool,
    n_pages: int | None,
    max_slot_tokens: int,
    slot_bytes: int = 0,
) -> Division:
    """Divide memory between slots and pages.

    Without a guest slots take all. Pages that are asked for come first, and slots take what they
    leave. Otherwise slots come first, and pages take what they leave: of slots as many as are
    asked for, or with ``fits_slots`` no more than have room for ``AUTO_SLOT_TOKENS`` each.

    Args:
        n_slots: the most there may be.
        n_pages: of the guest; None for what fits.
        max_slot_tokens: pages that were not asked for hold at most so many tokens a slot.
        slot_bytes: what a slot takes beside its record.
    """
    each, guest = layout.record_bytes + slot_bytes, layout.guest
    if guest is None:
        return Division(min(n_bytes // each, n_slots), 0)
    if n_pages is not None:
        left = n_bytes - n_pages * guest.page_bytes
        return Division(max(min(left // (each + n_pages * TABLE_BYTES), n_slots), 0), n_pages)
    n_fitting = n_bytes // each
    if fits_slots:
        n_fitting = n_bytes // (each + pages_for(AUTO_SLOT_TOKENS) * guest.page_bytes)
        n_fitting = max(n_fitting, min(n_bytes // each, 1))
    n_slots = min(n_fitting, n_slots)
    left = max(n_bytes - n_slots * each, 0)
    most = n_slots * pages_for(max_slot_tokens)
    return Division(n_slots, min(left // (guest.page_bytes + n_slots * TABLE_BYTES), most))


@dataclass(frozen=True, slots=True)
class Fitting:
    """How many states fit beside the weights in memory that is free now.

    Attributes:
        device: ``cpu`` or ``cuda``.
        free_bytes: free memory of the device, before weights.
        weight_bytes: what the weights will take of it.
        n_slots: how many records fit in the rest; all of it, nothing kept back, no pages.
    """

    device: str
    free_bytes: int
    weight_bytes: int
    n_slots: int

    @property
    def left_bytes(self) -> int:
        """What the weights leave."""
        return max(self.free_bytes - self.weight_bytes, 0)


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


def tokens_that_fit(layout: StateLayout, fitting: Fitting) -> int | None:
    """How many tokens of a guest fit beside as many slots as there are by default; None without."""
    if layout.guest is None:
        return None
    left = fitting.left_bytes - EngineConfig().n_slots * layout.record_bytes
    return max(left, 0) // layout.guest.page_bytes * PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Room:
    """What a GPU has for states, beside a model that is loaded and its decode steps.

    Attributes:
        free_bytes: free memory of the device.
        reserve_bytes: what of it must stay free: see ``reserve_bytes``.
        n_slots: how many states fit in the rest, at most as many as are asked for.
        n_pages: how many pages of a guest: as many as are asked for, or what states leave.
    """

    free_bytes: int
    reserve_bytes: int
    n_slots: int
    n_pages: int = 0


def room_beside(model: Model, config: EngineConfig, *, fits_slots: bool = False) -> Room:
    """How many of ``config.n_slots`` states, and pages, fit on a GPU beside a model that is loaded.

    All that comes up in service is counted: see ``reserve_bytes``. The memory of decode steps is
    taken from the device here, for good.
    """
    model.decode_step(buckets_for(config.n_slots)[-1])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free_bytes, reserve = torch.cuda.mem_get_info()[0], reserve_bytes(model, config)
    division = divide(
        model.layout,
        max(free_bytes - reserve, 0),
        n_slots=config.n_slots,
        fits_slots=fits_slots,
        n_pages=None if config.guest_tokens is None else config.n_pages,
        max_slot_tokens=MAX_SLOT_TOKENS["cuda"],
        slot_bytes=SAMPLER_SLOT_BYTES,
    )
    return Room(free_bytes, reserve, division.n_slots, division.n_pages)


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
        + 2 * N_BUFFERS * model.layout.image_bytes(1)
        + (len(buckets) + N_PROMPT_GRAPHS) * GRAPH_BYTES
        + SPARE_BYTES
    )
