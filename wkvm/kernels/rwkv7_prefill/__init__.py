"""Prompts of RWKV-7 on a GPU, in Triton: packed rows of any lengths, in chunks.

Importing this module imports Triton. Around the matrix products of a layer stand

- ``mix``: layer norm, token shift by slot, and the mixes of both;
- ``within``: what each chunk does to any state that enters it, for all chunks side by side;
- ``pass_states``: the states through the chunks, in place by slot, one after the other;
- ``outputs``: what the tokens read from the states; group norm, bonus and gate.

What a row gets depends on no other row, and chunks begin with their row: so a prompt that is cut at
multiples of 64 gets the same bits, but for the matrix products, whose order of summing is the
library's choice by the number of tokens.

No kernel here is ever autotuned: each trial run would apply its update to the states once more.
"""

from wkvm.kernels.rwkv7_prefill.mixing import Move, mix, mix_kernel, move_kernel, move_last
from wkvm.kernels.rwkv7_prefill.passing import (
    outputs,
    outputs_kernel,
    pass_kernel,
    pass_states,
)
from wkvm.kernels.rwkv7_prefill.products import SquaredCut, squared_kernel, squared_product
from wkvm.kernels.rwkv7_prefill.tables import CHUNK, EXACT_CHUNK, Tables, n_chunks_of, tables_of
from wkvm.kernels.rwkv7_prefill.within import Effects, within, within_kernel

__all__ = [
    "CHUNK",
    "EXACT_CHUNK",
    "Effects",
    "Move",
    "SquaredCut",
    "Tables",
    "mix",
    "mix_kernel",
    "move_kernel",
    "move_last",
    "n_chunks_of",
    "outputs",
    "outputs_kernel",
    "pass_kernel",
    "pass_states",
    "squared_kernel",
    "squared_product",
    "tables_of",
    "within",
    "within_kernel",
]
