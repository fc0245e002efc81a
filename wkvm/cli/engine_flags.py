"""The flags of the engine and its model, as tables; see ``flags``."""

import argparse

from wkvm.cli.flags import Flag


def slots(text: str) -> int | None:
    """A number of slots; None for ``auto``."""
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'auto'") from None


def tokens(text: str) -> int | None:
    """A number of tokens; None for ``auto``."""
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'auto'") from None


GUEST_FLAG = Flag(
    names=("--guest-tokens",),
    field="guest_tokens",
    kind=tokens,
    metavar="N",
    text="how many tokens the attention layers of a hybrid model keep, of all live states "
    "together; 'auto' takes the memory that slots leave, on a CPU half of it (default: auto)",
)

ENGINE_FLAGS = (
    Flag(
        names=("--slots", "--max-num-seqs", "--max-running-requests"),
        field="n_slots",
        kind=slots,
        metavar="N",
        text="how many states can be live at once; 'auto' takes all that fit on a GPU, or what "
        "fits in half of a CPU's free memory, at most 1024 (default: %(default)s)",
    ),
    GUEST_FLAG,
    Flag(
        names=("--max-slots-per-tenant",),
        field="max_slots_per_tenant",
        kind=int,
        metavar="N",
        text="how many slots one tenant may hold, so that others find some, and the same share of "
        "--guest-tokens (default: no limit)",
    ),
    Flag(
        names=("--max-num-batched-tokens",),
        field="max_num_batched_tokens",
        kind=int,
        metavar="N",
        text="token budget of a step (default: %(default)s)",
    ),
    Flag(
        names=("--decode-prompt-tokens",),
        field="decode_prompt_tokens",
        kind=int,
        metavar="N",
        text="prompt tokens in a step that makes others wait for their next id, 64 or more in any "
        "case (default: 448 on a GPU, no limit but the budget on a CPU)",
    ),
    Flag(
        names=("--max-model-len",),
        field="max_model_len",
        kind=int,
        metavar="N",
        text="limit on prompt plus max_tokens of a request (default: no limit)",
    ),
    Flag(
        names=("--max-queue",),
        field="max_queue",
        kind=int,
        metavar="N",
        text="how many requests of a tenant may wait for a slot (default: %(default)s)",
    ),
    Flag(
        names=("--max-queue-of-all",),
        field="max_queue_of_all",
        kind=int,
        metavar="N",
        text="how many requests of all tenants together may wait for a slot; who has less than an "
        "equal share of these may wait all the same (default: no limit but each tenant's)",
    ),
    Flag(
        names=("--max-queued-tokens",),
        field="max_queued_tokens",
        kind=int,
        metavar="N",
        text="how many prompt and allowed ids these may have together (default: %(default)s)",
    ),
    Flag(
        names=("--max-queue-s",),
        field="max_queue_s",
        kind=float,
        metavar="S",
        text="a request that would wait longer for a slot, by what was measured of the line, is "
        "refused at once (default: none is while its own time suffices)",
    ),
    Flag(
        names=("--max-n",),
        field="max_n",
        kind=int,
        metavar="N",
        text="how many choices of one prompt a request may ask for, 64 at most "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--max-completed-requests",),
        field="max_completed_requests",
        kind=int,
        metavar="N",
        text="how many finished requests are remembered (default: %(default)s)",
    ),
    Flag(
        names=("--request-timeout-s",),
        field="request_timeout_s",
        kind=float,
        metavar="S",
        text="time from a request's arrival to its end, if it names none (default: %(default)s)",
    ),
    Flag(
        names=("--stall-timeout-s",),
        field="stall_timeout_s",
        kind=float,
        metavar="S",
        text="how long a request without credit may hold its slot (default: %(default)s)",
    ),
    Flag(
        names=("--max-hibernated",),
        field="max_hibernated",
        kind=int,
        metavar="N",
        text="how many requests may be put to host memory, a state each, when others wait for "
        "their slots (default: %(default)s)",
    ),
    Flag(
        names=("--prefix-cache-bytes",),
        field="prefix_cache_bytes",
        kind=int,
        metavar="N",
        text="host memory for states on the way through prompts, from which prompts that begin "
        "alike go on; 0 keeps none, on the device neither (default: %(default)s)",
    ),
    Flag(
        names=("--prefix-cache-device-bytes",),
        field="prefix_cache_device_bytes",
        kind=int,
        metavar="N",
        text="what such states may take of slots and pages that no request needs just now "
        "(default: half of all on a GPU and of models with attention layers, else none)",
    ),
    Flag(
        names=("--prefix-cache-every",),
        field="prefix_cache_every",
        kind=int,
        metavar="N",
        text="keep such a state each N tokens of a prompt, besides where messages end and the "
        "prompt does; 0 for nowhere else (default: %(default)s)",
    ),
    Flag(
        names=("--deterministic",),
        field="deterministic",
        kind=None,
        text="make what comes of a request the same to the bit whoever else runs; slower",
    ),
    Flag(
        names=("--poison-freed-slots",),
        field="poison_freed_slots",
        kind=None,
        text="fill freed slots with NaN; a debugging aid",
    ),
    Flag(
        names=("--seed",),
        field="seed",
        kind=int,
        metavar="N",
        text="base of the random numbers of requests that bring no seed (default: a fresh one)",
    ),
)

STATE_FLAGS = (
    Flag(
        names=("--state-dtype",),
        field="state_dtype",
        kind=str,
        choices=("auto", "float32", "float16", "bfloat16"),
        text="of the matrices of states, which are computed in float32 in any case; auto is "
        "float32 (default: %(default)s)",
    ),
    Flag(
        names=("--deferred-writes",),
        field="deferred_writes",
        kind=None,
        text="write a state once in eight decoded tokens, which wait in a ring beside it until "
        "then: faster with hundreds of rows in a step; a state takes a fifth more memory, one of "
        "float16 or bfloat16 two fifths. On a GPU only",
    ),
)

MODEL_FLAGS = (
    Flag(
        names=("--device",),
        field="device",
        kind=str,
        choices=("auto", "cpu", "cuda"),
        text="where to run; auto takes a GPU if there is one (default: %(default)s)",
    ),
    Flag(
        names=("--dtype",),
        field="dtype",
        kind=str,
        choices=("auto", "float32", "bfloat16", "float16"),
        text="of weights and activations; auto is float32 on a CPU and the checkpoint's own on "
        "a GPU (default: %(default)s)",
    ),
    Flag(
        names=("--quantization",),
        field="quantization",
        kind=str,
        choices=("none", "fp8", "int8"),
        text="of the large matrices, on a GPU: a byte for each weight (default: %(default)s)",
    ),
    *STATE_FLAGS,
    Flag(
        names=("--threads",),
        field="n_threads",
        kind=int,
        metavar="N",
        text="threads of the CPU path (default: one for a small model, else all cores)",
    ),
)

LOCAL_FLAGS = (*MODEL_FLAGS, GUEST_FLAG)
"""What says how a command runs a model in its own process."""
