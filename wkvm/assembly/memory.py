"""How much memory is free, and how many states fit in it. Imports torch, so import this late."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from wkvm.core.layout import ITEM_BYTES
from wkvm.models.registry import ModelDescription, resolve_device, resolve_dtype

MEMINFO = Path("/proc/meminfo")


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


def free_host_bytes() -> int:
    """Main memory that can be had without swapping."""
    try:
        lines = MEMINFO.read_text("ascii").splitlines()
        values = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return int(values["MemAvailable"][0]) * 1024
    except (OSError, KeyError, IndexError, ValueError):
        # Not Linux: what is free without counting caches that could be dropped.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
