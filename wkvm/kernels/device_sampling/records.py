"""What the device knows of a slot's request: one record of 32 words a slot.

``records`` is ``[N, WORDS]`` int64 everywhere. Reals are float64 bits in a word; those that the
arithmetic takes as float32 were rounded to it on the host, as the CPU's sampler does. Addresses
are of tensors on the device, 0 for none.
"""

WORDS = 32

# The life of a slot, which the kernels carry on.
NEXT_ID = 0
"""The id that was sampled last."""
POSITION = 1
"""How many tokens the state will have absorbed when the next id is sampled."""
N_OUTPUT = 2
"""How many ids were sampled."""
IS_DONE = 3
"""1 from when a stop id or the length ended the request, or its logits were not finite."""
PENDING = 4
"""The id that was fed in this step and is not in the counts yet; -1 for none."""

# The request's parameters.
SCALE = 5
"""log2(e) / temperature; 0 for greedy."""
TOP_K = 6
"""V or more for off."""
TOP_P = 7
MIN_P = 8
SEED = 9
BRANCH = 10
MIN_TOKENS = 11
MAX_TOKENS = 12
N_STOPS = 13
STOPS = 14
"""Address of ``N_STOPS`` int64: in the record itself where they are few."""
BIAS = 15
"""Address of ``[V]`` float32, added to the logits; -inf rules an id out."""
COUNTS = 16
"""Address of ``[V]`` float32, occurrences in the output, and behind it of ``[V]`` uint8, marks."""
REPETITION = 17
PRESENCE = 18
FREQUENCY = 19
DECAY = 20
RULED = 21
"""Address of ``[V]`` float32, where the row's logits are put after its rules; needed by requests
with a bias, allowed ids, penalties, ``min_tokens`` or a grammar."""

FIRST_STOP = 22
"""Where the stop ids are if they are at most ``MAX_INLINE_STOPS``."""
MAX_INLINE_STOPS = WORDS - FIRST_STOP

# Bits of a mark.
IN_SEQUENCE = 1
IN_OUTPUT = 2

# Bits of a row's flags.
NOT_FINITE = 1
ENDED = 2
"""With the id of this row the request ended, by a stop id or its length."""
