"""What an exception of a step means: that step is lost, it had no memory, or the engine is over.

A device that has failed answers every further call with the same error, so it is asked; and what
it says of itself is read as a text, since there is no more exact type for it.
"""

import re

import torch

from wkvm.core.errors import EngineFailedError, StepFailedError, StepMemoryError, WkvmError

_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|std::bad_alloc")
_LOST = re.compile(
    r"illegal (memory access|address|instruction)|misaligned address|device-side assert|"
    r"launch (failure|timed out)|uncorrectable|hardware stack|program counter|"
    r"no CUDA-capable device|devices? (are|is) busy or unavailable|context is destroyed|"
    r"CUDA error: unknown error|driver shutting down|system not yet initialized"
)


def fault_of(error: BaseException, device: str) -> WkvmError:
    """What ends the requests of a step that raised.

    Args:
        device: the model's. Where nothing else tells, it is asked whether it is there still, which
            waits for what it does.

    Returns:
        ``StepMemoryError`` or ``StepFailedError``: the engine goes on. ``EngineFailedError``: it
        cannot.
    """
    if isinstance(error, WkvmError):
        return error
    if not isinstance(error, Exception):
        return EngineFailedError()  # what ends a thread, or an interpreter
    if is_out_of_memory(error):
        return StepMemoryError()
    if is_lost(error):
        return EngineFailedError()
    try:
        if device != "cpu":
            torch.cuda.synchronize()
    except Exception as found:  # noqa: BLE001  (whatever it is, the device does not answer)
        return StepMemoryError() if is_out_of_memory(found) else EngineFailedError()
    return StepFailedError()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there was no memory; nothing else is wrong then."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def is_lost(error: BaseException) -> bool:
    """Whether an exception says that the device does nothing for this process any more."""
    return isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None
