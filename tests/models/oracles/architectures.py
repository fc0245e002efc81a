"""All architectures that are held to transformers, in the order of ``docs/models.md``."""

from tests.models.oracles import (
    falcon_h1,
    gated_deltanet,
    granite_moe_hybrid,
    kimi_linear,
    mamba2,
    nemotron_h,
    olmo,
    qwen,
)
from tests.models.oracles.case import Architecture, Case

ARCHITECTURES: tuple[Architecture, ...] = (
    mamba2.ARCHITECTURE,
    nemotron_h.ARCHITECTURE,
    falcon_h1.ARCHITECTURE,
    granite_moe_hybrid.ARCHITECTURE,
    gated_deltanet.ARCHITECTURE,
    qwen.NEXT,
    qwen.DENSE,
    qwen.MOE,
    olmo.ARCHITECTURE,
    kimi_linear.ARCHITECTURE,
)


def named_cases() -> dict[str, tuple[Architecture, Case]]:
    """Every case by a name of its own."""
    return {
        f"{architecture.name}: {case.name}": (architecture, case)
        for architecture in ARCHITECTURES
        for case in architecture.cases
    }
