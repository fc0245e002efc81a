"""What the kernels of the sampler have in common: rules, masses, the random number of a row."""

# Inside a kernel Python is Triton's language, which type checkers do not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from wkvm.kernels.device_sampling import records as fields

ANY_ALIGNMENT = ("slots_in", "slots", "token_ids", "masks", "has_mask", "out_ids", "out_flags")
"""Arguments that are slices of whatever, for which a kernel is not to be compiled twice."""

NEXT_ID = tl.constexpr(fields.NEXT_ID)
POSITION = tl.constexpr(fields.POSITION)
N_OUTPUT = tl.constexpr(fields.N_OUTPUT)
IS_DONE = tl.constexpr(fields.IS_DONE)
PENDING = tl.constexpr(fields.PENDING)
SCALE = tl.constexpr(fields.SCALE)
TOP_K = tl.constexpr(fields.TOP_K)
TOP_P = tl.constexpr(fields.TOP_P)
MIN_P = tl.constexpr(fields.MIN_P)
SEED = tl.constexpr(fields.SEED)
BRANCH = tl.constexpr(fields.BRANCH)
MIN_TOKENS = tl.constexpr(fields.MIN_TOKENS)
MAX_TOKENS = tl.constexpr(fields.MAX_TOKENS)
N_STOPS = tl.constexpr(fields.N_STOPS)
STOPS = tl.constexpr(fields.STOPS)
BIAS = tl.constexpr(fields.BIAS)
COUNTS = tl.constexpr(fields.COUNTS)
REPETITION = tl.constexpr(fields.REPETITION)
PRESENCE = tl.constexpr(fields.PRESENCE)
FREQUENCY = tl.constexpr(fields.FREQUENCY)
DECAY = tl.constexpr(fields.DECAY)
RULED = tl.constexpr(fields.RULED)
WORDS = tl.constexpr(fields.WORDS)
IN_SEQUENCE = tl.constexpr(fields.IN_SEQUENCE)
IN_OUTPUT = tl.constexpr(fields.IN_OUTPUT)
NOT_FINITE = tl.constexpr(fields.NOT_FINITE)
ENDED = tl.constexpr(fields.ENDED)

LARGEST = tl.constexpr(3.4028234663852886e38)
INFINITY = tl.constexpr(float("inf"))
MASS = tl.constexpr(2**31)
"""The mass of the likeliest id: ``wkvm.kernels.sampling.MASS``."""

TOPS = tl.constexpr(16)
"""Groups of ids in a chunk of which the largest logits are known to who guesses a cut."""
CURSOR = tl.constexpr(64)
"""Numbers between the counters of two rows, so that they are not in one line of the L2 cache."""
LOWEST = tl.constexpr(-(2**31))
"""Below the number of each logit, -inf included."""


@triton.jit  # type: ignore[untyped-decorator]
def follow(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for the kernel before, if this one came before its end, and let the next one come."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def real(record, field: tl.constexpr):  # type: ignore[no-untyped-def]
    """A real of a record, float64."""
    return tl.load(record + field).to(tl.float64, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def floats_at(address, logits, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """A pointer to float32 at an address, relative to one of which Triton knows the alignment."""
    offset = (address - logits.to(tl.int64)) // 4
    if ALIGNED:
        offset = tl.multiple_of(offset, 4)
    return logits + offset


@triton.jit  # type: ignore[untyped-decorator]
def start_of(logits, record, row, row_stride, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the logits of a row are that are chosen from: the model's, or those after rules."""
    ruled = tl.load(record + RULED)
    given = logits.to(tl.int64) + row.to(tl.int64) * row_stride * 4
    return floats_at(tl.where(ruled != 0, ruled, given), logits, ALIGNED)


@triton.jit
def add_two(a, b, c, d):  # type: ignore[no-untyped-def]
    """Two sums, of one reduction: it is waited for, whatever it adds."""
    return a + c, b + d


@triton.jit
def add_three(a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    """Three sums."""
    return a + d, b + e, c + f


@triton.jit
def add_and_bound(a, low, high, b, other_low, other_high):  # type: ignore[no-untyped-def]
    """A sum, a minimum and a maximum."""
    return a + b, tl.minimum(low, other_low), tl.maximum(high, other_high)


@triton.jit
def masses(x, largest, scale):  # type: ignore[no-untyped-def]
    """What ``x`` weighs: uint32, ``MASS`` for the largest logit. Anything for NaN."""
    return (tl.exp2((x - largest) * scale) * (1.0 * MASS)).to(tl.uint32)


@triton.jit
def ordered(x):  # type: ignore[no-untyped-def]
    """Integers in the order of float32; those of the two zeros are equal."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def uniform(record):  # type: ignore[no-untyped-def]
    """The row's random number, float64 in [0, 1) with 53 bits: ``wkvm.kernels.philox.uniform``."""
    position = tl.load(record + POSITION)
    branch = tl.load(record + BRANCH)
    words = 0xFFFFFFFF
    high, low, _, _ = tl.philox(
        tl.load(record + SEED),
        (position & words).to(tl.uint32),
        ((position >> 32) & words).to(tl.uint32),
        (branch & words).to(tl.uint32),
        ((branch >> 32) & words).to(tl.uint32),
    )
    bits = (high.to(tl.int64) << 21) | (low >> 11).to(tl.int64)
    return bits.to(tl.float64) * (2.0**-53)


@triton.jit
def point_of(total, share):  # type: ignore[no-untyped-def]
    """Which unit of a total mass a random number points at."""
    return tl.minimum((total.to(tl.float64) * share).to(tl.int64), total - 1)


@triton.jit
def share_of(mass, share):  # type: ignore[no-untyped-def]
    """The least integer that is at least ``share`` of an integer mass."""
    product = mass.to(tl.float64) * share
    below = product.to(tl.int64)
    return below + (below.to(tl.float64) < product).to(tl.int64)


@triton.jit
def is_filtered(record, V):  # type: ignore[no-untyped-def]
    """Whether a row has a filter. One that is off was written as V, 1 or 0."""
    is_cut = (real(record, TOP_P) < 1) | (real(record, MIN_P) > 0)
    return is_cut | (tl.load(record + TOP_K) < V)


@triton.jit
def mass_of_key(key, largest, scale):  # type: ignore[no-untyped-def]
    """The masses of logits that ``ordered`` numbers ``key``, uint32; 0 for ``LOWEST``."""
    bits = key.to(tl.int32)
    x = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return masses(tl.where(bits == LOWEST, -INFINITY, x), largest, scale)
