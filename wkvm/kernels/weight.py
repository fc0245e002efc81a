"""Matrices as they are held: in the model's dtype, or quantised with a scale for each output."""

from dataclasses import dataclass

import torch
from torch import Tensor

QUANTISED = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""What quantised values are held as, by the name of the quantization."""

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix ``[out, in]``, or a stack of matrices of one shape.

    Attributes:
        values: ``[N, K]`` or ``[E, N, K]``, contiguous: the model's dtype, or a quantised one.
        scales: ``[N]`` or ``[E, N]`` float32: a row of a matrix is its values times its scale.
            None where nothing is quantised.
    """

    values: Tensor
    scales: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Of values and scales."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def rows(self, start: int, stop: int | None = None) -> "Weight":
        """Some of the outputs: a view."""
        scales = None if self.scales is None else self.scales[start:stop]
        return Weight(self.values[start:stop], scales)


def quantised(weight: Tensor, quantization: str) -> Weight:
    """``[..., N, K]`` held as ``quantization`` says: ``none``, ``fp8`` (e4m3) or ``int8``.

    The largest value of each row becomes the largest there is. A row of zeros stays one. Takes
    twice the memory of ``weight`` in float32 while it runs.
    """
    if quantization == "none":
        return Weight(weight)
    dtype = QUANTISED[quantization]
    largest = _LARGEST[dtype]
    scales = weight.abs().amax(-1).float() / largest
    scales = torch.where(scales > 0, scales, 1.0)
    values = weight.float() / scales[..., None]
    if dtype == torch.int8:
        values.round_()
    # A quotient may be a rounding above the largest, which is NaN in one of the two dtypes.
    return Weight(values.clamp_(-largest, largest).to(dtype), scales)
