"""The launches of the sampler: fixed ones for a number of rows, so that they can be captured."""

# A kernel's compile-time parameters are given as plain values, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false

import torch
import triton
from torch import Tensor

from wkvm.kernels.device_sampling.bracket import bracket_kernel
from wkvm.kernels.device_sampling.choose import begin_kernel, mark_kernel, select_kernel
from wkvm.kernels.device_sampling.common import CURSOR, TOPS
from wkvm.kernels.device_sampling.records import WORDS
from wkvm.kernels.device_sampling.scan import scan_kernel, weigh_kernel
from wkvm.kernels.device_sampling.search import FOUND, resolve_kernel

CHUNK = 2048
"""Ids whose mass is known apart from that of others, and that a program looks at at a time."""

GROUP = 8
"""Chunks of one program where rows are many."""

PDL_ROWS = 48
"""Up to here kernels are launched before the ones before them have ended."""

MANY_ROWS = 48
"""From here on: what programs cost beside their chunks is then more than what few of them leave
of the device."""

OF_WARP = 512
"""Ids that a warp looks at at a time: in four lines, 16 to a thread."""

LINES = 4

LIST = 4096
"""Ids around the cut of a filter that can be listed for a row."""

SAMPLES = 8192
"""Logits from which the cut of a row is guessed, at most, and at most one in 8."""

NARROW = 65_536
"""Ids of a vocabulary for which these are enough: of a flat row with top-p, what may lie around the
cut that so many samples show fits in the list. Up to twice as many ids take twice of both, more
four times. Beyond 262,144 ids rows with flat logits take milliseconds."""

# What the kernels may hold in registers is a matter of how many programs a multiprocessor holds.
SCAN = {"num_warps": 8, "maxnreg": 64}
BRACKET_WARPS = 4
WEIGH = {"num_warps": 4, "maxnreg": 96}
RESOLVE_WARPS = 4
SELECT = {"num_warps": 8}


class Scratch:
    """What the kernels of a step tell one another: 32 to 128 KiB a row, and 104 bytes a chunk."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device | str) -> None:
        self.max_rows = max_rows
        self.vocab_size = vocab_size
        self.chunk = CHUNK
        self.n_chunks = triton.cdiv(vocab_size, CHUNK)
        # Programs keep all of a row's list, or of its samples, in registers.
        self.times = 1 if vocab_size <= NARROW else 2 if vocab_size <= 2 * NARROW else 4
        self.list = LIST * self.times
        n_samples = SAMPLES * self.times
        self.stride = max(8, triton.next_power_of_2(self.n_chunks) * CHUNK // n_samples)

        def empty(n: int, dtype: torch.dtype) -> Tensor:
            return torch.empty((max_rows, n), dtype=dtype, device=device)

        # The three of parts have room for parts of one chunk.
        self.maxima = empty(self.n_chunks, torch.float32)
        self.winners = empty(self.n_chunks, torch.int32)
        self.broken = empty(self.n_chunks, torch.int32)
        self.totals = empty(self.n_chunks, torch.int64)
        self.above = empty(self.n_chunks, torch.int64)
        self.heavy = empty(self.n_chunks, torch.int64)
        self.n_above = empty(self.n_chunks, torch.int32)
        self.tops = empty(self.n_chunks * TOPS.value, torch.float32)
        self.brackets = empty(2, torch.float32)
        self.n_listed = empty(CURSOR.value, torch.int32)
        self.found = empty(FOUND.value, torch.int64)
        # The samples are read before the list is written.
        self.listed = empty(2 * self.list, torch.int32)
        self.samples = self.listed.view(torch.float32)


def begin(slots_in: Tensor, records: Tensor, token_ids: Tensor, slots: Tensor) -> None:
    """Say what each row of a decode step is fed: the id that was sampled for its slot.

    Args:
        slots_in: ``[B]`` int32; negative for pad rows.
        records: ``[N, WORDS]`` int64; the id is noted as fed.
        token_ids: ``[B]`` int64; written, 0 for rows that do not run.
        slots: ``[B]`` int32; written: ``slots_in``, but -1 for rows whose request has ended.
    """
    n_rows = len(slots_in)
    _check(records, (None, WORDS), torch.int64)
    _check(slots_in, (n_rows,), torch.int32)
    _check(token_ids, (n_rows,), torch.int64)
    _check(slots, (n_rows,), torch.int32)
    grid = (triton.cdiv(n_rows, 256),)
    begin_kernel[grid](slots_in, records, token_ids, slots, n_rows, BLOCK=256)


def mark(addresses: Tensor, ids: Tensor, vocab_size: int) -> None:
    """Note ids of prompts as seen: ``[n]`` int64 both, a slot's counts and an id."""
    grid = (triton.cdiv(len(ids), 256),)
    mark_kernel[grid](addresses, ids, len(ids), vocab_size, BLOCK=256)


def sample(
    logits: Tensor,
    slots: Tensor,
    records: Tensor,
    masks: Tensor,
    has_mask: Tensor,
    scratch: Scratch,
    out_ids: Tensor,
    out_flags: Tensor,
) -> None:
    """Choose one id for each row, and carry its slot on.

    Args:
        logits: ``[B, V]`` float32, rows contiguous; left as they were.
        slots: ``[B]`` int32, distinct where not negative; a negative slot is a row that does not
            run, whose id is 0.
        records: ``[N, WORDS]`` int64.
        masks: ``[B, ceil(V / 32)]`` int32: id i may be chosen if bit ``i % 32`` of word
            ``i // 32`` is set, in rows where ``has_mask``, ``[B]`` bool, says so.
        scratch: for at least ``B`` rows of ``V``.
        out_ids: ``[B]`` int64; written. In [0, V) whatever the logits.
        out_flags: ``[B]`` uint8; written: ``records.NOT_FINITE`` and ``records.ENDED``.

    Raises:
        ValueError: a shape, dtype or stride differs from the above.

    Cost: five launches, no allocation. Logits are read once from memory, and once or twice more,
    from the L2 cache where they fit; rows with filters more often.
    """
    n_rows, vocab_size = logits.shape
    if n_rows > scratch.max_rows or vocab_size != scratch.vocab_size:
        raise ValueError(f"no scratch for {n_rows} rows of {vocab_size}")
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError("logits must be float32 with contiguous rows")
    _check(slots, (n_rows,), torch.int32)
    _check(records, (None, WORDS), torch.int64)
    _check(masks, (n_rows, -(-vocab_size // 32)), torch.int32)
    _check(has_mask, (n_rows,), torch.bool)
    _check(out_ids, (n_rows,), torch.int64)
    _check(out_flags, (n_rows,), torch.uint8)
    s = scratch
    rows = (logits, slots, records)
    sizes = (vocab_size, logits.stride(0))
    aligned = logits.data_ptr() % 16 == 0 and logits.stride(0) % 4 == 0
    group = GROUP if n_rows >= MANY_ROWS else 1
    n_parts = triton.cdiv(s.n_chunks, group)
    parts, chunks = triton.next_power_of_2(n_parts), triton.next_power_of_2(s.n_chunks)
    # One more rounding or one less in a penalty, and the CPU would choose otherwise.
    pdl = n_rows < PDL_ROWS and logits.is_cuda
    options = {"enable_fp_fusion": False, "PDL": pdl}
    if pdl:
        options["launch_pdl"] = True
    reads = {"CHUNK": s.chunk, "ALIGNED": aligned, **options}
    scanned = (s.maxima, s.winners, s.broken)
    scan_kernel[n_parts, n_rows](
        *rows,
        *(masks, has_mask, *scanned, s.samples, s.tops, s.n_listed),
        *(*sizes, masks.stride(0)),
        CHUNKS=chunks,
        GROUP=group,
        LIST=s.list,
        STRIDE=s.stride,
        BLOCK=min(s.chunk * group, OF_WARP * SCAN["num_warps"]),
        LINES=LINES,
        **reads,
        **SCAN,
    )
    bracket_kernel[n_rows,](
        *(slots, records, s.samples, s.tops, s.brackets),
        *(vocab_size, s.n_chunks),
        CHUNK=s.chunk,
        CHUNKS=chunks,
        LIST=s.list,
        STRIDE=s.stride,
        **options,
        num_warps=BRACKET_WARPS * s.times,
    )
    weighed = (s.totals, s.above, s.heavy, s.n_above, s.listed, s.n_listed)
    weigh_kernel[n_parts, n_rows](
        *rows,
        *(s.maxima, s.brackets, *weighed),
        *(*sizes, s.n_chunks),
        GROUP=group,
        PARTS=parts,
        LIST=s.list,
        BLOCK=min(s.chunk, OF_WARP * WEIGH["num_warps"]),
        LINES=LINES,
        **reads,
        **WEIGH,
    )
    blocks = {"CHUNKS": chunks, "PARTS": parts}
    resolve_kernel[n_rows,](
        *rows,
        *(s.maxima, *weighed, s.found),
        *(*sizes, n_parts, s.n_chunks),
        LIST=s.list,
        BLOCK=2 * s.chunk,
        **blocks,
        **reads,
        num_warps=RESOLVE_WARPS * s.times,
    )
    select_kernel[n_rows,](
        *rows,
        *(*scanned, s.totals, s.found, out_ids, out_flags),
        *(*sizes, n_parts, s.n_chunks),
        **blocks,
        **reads,
        **SELECT,
    )


def _check(tensor: Tensor, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    fits = len(shape) == tensor.ndim and all(
        want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype or not tensor.is_contiguous():
        raise ValueError(f"{tuple(tensor.shape)} {tensor.dtype} is not {shape} {dtype}")
