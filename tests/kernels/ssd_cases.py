"""Random arguments that every version of the kernels of Mamba-2 is tried on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tests.kernels.cases import N_SLOTS
from wkvm.kernels import reference
from wkvm.kernels.rows import Rows

Shape: TypeAlias = tuple[int, int, int, int, int]
"""Heads H, their size P, groups G, size of the state N, taps W."""

Mix: TypeAlias = Callable[..., Tensor]
"""``ssd_mix`` of some kind of device."""

LIMITS = (0.01, 0.3)
"""Of steps: some of a case's would be below, some above."""


@dataclass(frozen=True)
class SsdCase:
    """Arguments of ``ssd_mix`` without the rows.

    Inputs are pieces of a wider tensor, states of wider records. Records of slots that no row names
    are NaN.
    """

    projected: Tensor
    dt: Tensor
    conv_weight: Tensor
    conv_bias: Tensor | None
    dt_bias: Tensor
    A: Tensor
    D: Tensor
    conv_records: Tensor
    records: Tensor
    shape: Shape

    @property
    def conv_state(self) -> Tensor:
        """Windows, within their records."""
        _, _, _, _, W = self.shape
        C = self.projected.shape[1]
        size = (W - 1) * C
        return self.conv_records[:, size : 2 * size].view(N_SLOTS, W - 1, C)

    @property
    def state(self) -> Tensor:
        """The recurrence's, within their records."""
        H, P, _, N, _ = self.shape
        return self.records[:, H * P * N :].view(N_SLOTS, H, P, N)

    def with_(self, **tensors: Tensor) -> "SsdCase":
        """The same with other tensors."""
        return SsdCase(**{**self.__dict__, **tensors})

    def copied(self) -> "SsdCase":
        """The same with records of its own."""
        return self.with_(conv_records=self.conv_records.clone(), records=self.records.clone())

    def exact(self) -> "SsdCase":
        """In float64."""
        values = {
            name: value.double()
            for name, value in self.__dict__.items()
            if isinstance(value, Tensor)
        }
        return self.with_(**values)

    def mixed(self, mix: Mix, rows: Rows) -> Tensor:
        """``mix`` of the case. The records are advanced."""
        return mix(
            self.projected,
            self.dt,
            self.conv_weight,
            self.conv_bias,
            self.conv_state,
            self.dt_bias,
            LIMITS,
            self.A,
            self.D,
            self.state,
            rows,
        )

    def of_tokens(self, tokens: slice) -> "SsdCase":
        """The same of some tokens alone, on the same records."""
        return self.with_(projected=self.projected[tokens], dt=self.dt[tokens])


def ssd_case(
    rows: Rows,
    shape: Shape,
    *,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    has_bias: bool = True,
    strength: float = 8.0,
) -> SsdCase:
    """Random arguments on the device of ``rows``; decays of a token are above exp(-strength)."""
    draw = torch.Generator().manual_seed(4)
    device, (H, P, G, N, W) = rows.slots.device, shape
    C = H * P + 2 * G * N

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw)

    wide = normal(rows.n_tokens, 8 + C + H).to(dtype).to(device)
    unnamed = [slot for slot in range(N_SLOTS) if slot not in rows.host_slots]
    conv_records = normal(N_SLOTS, 3 * (W - 1) * C).to(dtype)
    records = normal(N_SLOTS, 2 * H * P * N).to(state_dtype)
    conv_records[unnamed] = float("nan")
    records[unnamed] = float("nan")
    return SsdCase(
        projected=wide[:, 8 : 8 + C],
        dt=wide[:, 8 + C :],
        conv_weight=normal(C, W).to(dtype).to(device),
        conv_bias=normal(C).to(dtype).to(device) if has_bias else None,
        dt_bias=(normal(H) - 3).to(device),
        A=(-strength / LIMITS[1] * torch.rand(H, generator=draw)).to(device),
        D=normal(H).to(device),
        conv_records=conv_records.to(device),
        records=records.to(device),
        shape=shape,
    )


def exactly(case: SsdCase, rows: Rows) -> tuple[Tensor, SsdCase]:
    """What is right, in float64: outputs, and the case with records that are advanced."""
    exact = case.exact()
    return exact.mixed(reference.ssd_mix, rows), exact


def same_records(case: SsdCase, exact: SsdCase, tolerance: float) -> None:
    """The states of both, by relative norms; what lies beside them, and slots without a row.

    Those are as they were, to the bit: NaN in slots that no row names.
    """
    beside = case.exact().copied()
    beside.state.copy_(exact.state)
    beside.conv_state.copy_(exact.conv_state)
    for mine, right in ((beside.records, exact.records), (beside.conv_records, exact.conv_records)):
        assert torch.equal(mine.nan_to_num(7.0), right.nan_to_num(7.0))
    for mine, right in ((case.state, exact.state), (case.conv_state, exact.conv_state)):
        assert torch.equal(mine.isnan(), right.isnan())
        error = (mine - right).nan_to_num(0.0).norm()
        assert error <= tolerance * right.nan_to_num(0.0).norm()
