"""wkvm: a hypervisor for model state.

An inference engine for recurrent language models in which the object that is
allocated, scheduled, named, stored and moved is a fixed-size state.

``wkvm.LLM`` generates texts in this process; see ``wkvm.llm``. Its names are looked up there
when they are first asked for, so that ``import wkvm`` is light.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wkvm.llm import LLM, CompletionOutput, RequestOutput, SamplingParams

__version__ = "0.1.0.dev0"

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("wkvm.llm"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
