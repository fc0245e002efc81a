"""Logits to ids on a GPU, by slot, without a word to or from the host.

``begin`` is the first kernel of a decode step and ``sample`` its last ones. What they read and
write of a slot is its record, see ``records``; the host writes it, in ``wkvm.engine.slot_table``.
The rules and the order of the filters are those of ``wkvm.kernels.sampling``, and so is the
arithmetic: a row's choice is a function of that row, to the bit.
"""

from wkvm.kernels.device_sampling.launch import Scratch, begin, mark, sample

__all__ = ["Scratch", "begin", "mark", "sample"]
