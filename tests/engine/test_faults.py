"""What an exception of a step means: that step alone, its memory, or the engine."""

import pytest
import torch

from wkvm.core.errors import (
    EngineFailedError,
    NonFiniteError,
    StepFailedError,
    StepMemoryError,
    WkvmError,
)
from wkvm.engine.faults import fault_of

NO_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("std::bad_alloc"),
)
LOST = (
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("Triton Error [CUDA]: misaligned address"),
    torch.AcceleratorError("CUDA error: the launch timed out and was terminated"),
    SystemExit("from a thread"),
    KeyboardInterrupt(),
)


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_a_step_without_memory_ends_its_requests_alone(error: Exception) -> None:
    assert isinstance(fault_of(error, "cpu"), StepMemoryError)


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_device_that_is_lost_ends_the_engine(error: BaseException) -> None:
    assert isinstance(fault_of(error, "cpu"), EngineFailedError)


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("size mismatch")])
def test_anything_else_is_a_step_that_failed(error: Exception) -> None:
    assert isinstance(fault_of(error, "cpu"), StepFailedError)


def test_a_device_that_says_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def answer() -> None:
        asked.append("")

    def refuse() -> None:
        raise RuntimeError("CUDA error: something that nobody has heard of")

    monkeypatch.setattr(torch.cuda, "synchronize", answer)
    assert isinstance(fault_of(RuntimeError("size mismatch"), "cuda"), StepFailedError)
    assert asked == [""]
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    assert isinstance(fault_of(RuntimeError("size mismatch"), "cuda"), EngineFailedError)


def test_what_was_raised_on_purpose_stays_what_it_is() -> None:
    error: WkvmError = NonFiniteError(3)
    assert fault_of(error, "cpu") is error
