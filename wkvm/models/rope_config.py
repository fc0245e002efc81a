"""What ``config.json`` says of rotary positions, as transformers writes it and as it did before."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.config_file import shown
from wkvm.models.parts.rotary import Rotary
from wkvm.models.weights import Checkpoint

KINDS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}
"""Kinds of frequencies that are run, and the fields that each of them reads."""

THETA = 10_000.0
"""The base, where nothing is said of it."""

NEEDED = frozenset(
    {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
)
"""Those of them that have no default."""

LEFT_OUT = frozenset({"beta_fast", "beta_slow", "mscale", "mscale_all_dim"})
"""Those that are as good as left out where they are 0."""

LARGEST = 1e12
"""Any number here is at most this, and at least its inverse: float32 is enough for what is made
of them."""

COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})

OF_IMAGES = frozenset({"mrope_section", "mrope_interleaved"})
"""They say which axis of an image a frequency is of. Of text, all axes have the same positions."""


@dataclass(frozen=True)
class Rope:
    """Frequencies that are known and not on a device yet.

    Attributes:
        n_turned: elements of a head that are turned: 2 R.
        theta: the base.
        kind: a key of ``KINDS``.
        settings: its fields.
    """

    n_turned: int
    theta: float
    kind: str
    settings: Mapping[str, Any]

    def on(self, device: str) -> Rotary:
        """The frequencies on a device."""
        plain = 1.0 / self.theta ** (torch.arange(0, self.n_turned, 2).float() / self.n_turned)
        if self.kind == "linear":
            frequencies, scaling = plain / self.settings["factor"], 1.0
        elif self.kind == "llama3":
            frequencies, scaling = _llama3(plain, self.settings), 1.0
        elif self.kind == "yarn":
            frequencies, scaling = self._yarn(plain)
        else:
            frequencies, scaling = plain, 1.0
        return Rotary(frequencies.to(device), scaling)

    def _yarn(self, plain: Tensor) -> tuple[Tensor, float]:
        """Peng et al., arXiv:2309.00071: slow ones are stretched, fast ones are not."""
        settings, factor = self.settings, self.settings["factor"]
        n_before = settings["original_max_position_embeddings"]

        def place(n_turns: float) -> float:
            """Which frequency turns that often within the length that the model began with."""
            turned = log(n_before / (n_turns * 2 * pi))
            return self.n_turned * turned / (2 * log(self.theta))

        low = place(settings.get("beta_fast") or 32)
        high = place(settings.get("beta_slow") or 1)
        if settings.get("truncate", True):
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, self.n_turned - 1)
        span = high - low or 0.001
        stretched = ((torch.arange(self.n_turned // 2).float() - low) / span).clamp(0, 1)
        frequencies = plain / factor * stretched + plain * (1 - stretched)
        scaling = settings.get("attention_factor")
        if scaling is None:
            by, against = settings.get("mscale"), settings.get("mscale_all_dim")
            scaling = _mscale(factor, by or 1) if by and against else _mscale(factor, 1)
            if by and against:
                scaling /= _mscale(factor, against)
        return frequencies, float(scaling)


def read_rope(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    head_size: int,
    *,
    turned_part: float = 1.0,
    max_positions: int | None = None,
) -> Rope:
    """Read ``rope_parameters``, or ``rope_scaling``, ``rope_theta`` and ``partial_rotary_factor``.

    Args:
        config: the checkpoint's, or the part of it that has them.
        head_size: elements of a head.
        turned_part, max_positions: the architecture's defaults of ``partial_rotary_factor`` and
            ``max_position_embeddings``.

    Raises:
        UnsupportedModelError: frequencies of a kind, or with a field, that is not run.
        CorruptCheckpointError: a field is missing or is no such number.
    """
    path = str(checkpoint.path)
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise CorruptCheckpointError(path, f"config.json has rope_parameters {shown(given)}")
    kind = given.get("rope_type", given.get("type", "default"))
    # So it was called where images have positions too.
    kind = "default" if kind == "mrope" else kind
    if not isinstance(kind, str) or kind not in KINDS:
        why = f"config.json has rope_type {shown(kind)}; run is {', '.join(KINDS)}"
        raise UnsupportedModelError(path, why)
    settings = {name: given[name] for name in KINDS[kind] if name in given}
    if unknown := sorted(given.keys() - KINDS[kind] - COMMON - OF_IMAGES):
        raise UnsupportedModelError(path, f"rope_parameters of kind {kind} have {unknown[0]}")
    longest = config.get("max_position_embeddings", max_positions)
    if kind in ("llama3", "yarn"):
        settings.setdefault("original_max_position_embeddings", longest)
    if kind == "yarn" and settings.get("factor") is None:
        before = settings["original_max_position_embeddings"]
        if _is_positive(longest) and _is_positive(before):
            settings["factor"] = longest / before
    _check(path, kind, settings)
    base = given.get("rope_theta", config.get("rope_theta", THETA))
    part = given.get("partial_rotary_factor", config.get("partial_rotary_factor", turned_part))
    if not _is_positive(base) or not _is_positive(part) or part > 1:
        why = f"config.json has rope_theta {shown(base)}, partial_rotary_factor {shown(part)}"
        raise CorruptCheckpointError(path, why)
    if kind == "yarn" and base <= 1:
        raise CorruptCheckpointError(path, f"config.json has rope_theta {base} of kind yarn")
    n_turned = int(head_size * part)
    if n_turned < 2 or n_turned % 2:
        why = f"{part} of a head of {head_size} are {n_turned} elements to turn, no pairs"
        raise CorruptCheckpointError(path, why)
    return Rope(n_turned, float(base), kind, settings)


def _check(path: str, kind: str, settings: Mapping[str, Any]) -> None:
    """Check that the fields of a kind are numbers that frequencies can be made of."""
    for name in sorted(KINDS[kind] & (NEEDED | LEFT_OUT | {"attention_factor", "truncate"})):
        value = settings.get(name)
        if name in NEEDED:
            is_good = _is_positive(value)
        elif name == "truncate":
            is_good = isinstance(settings.get(name, True), bool)
        else:
            is_good = value is None or _is_positive(value) or (name in LEFT_OUT and value == 0)
        if not is_good:
            why = f"rope_parameters of kind {kind} have {name} {shown(value)}"
            raise CorruptCheckpointError(path, why)


def _llama3(plain: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """As Llama 3.1: slow frequencies are stretched, and those between more or less so."""
    factor = float(settings["factor"])
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    turns = plain * float(settings["original_max_position_embeddings"]) / (2 * pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / factor + kept * plain


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * log(factor) + 1.0


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 1 / LARGEST <= value <= LARGEST
