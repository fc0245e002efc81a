"""A small random model of every architecture.

They come of the configurations that are held to transformers elsewhere.
"""

import random
from functools import cache

import torch
from wkvm_bench.random_weights import random_decoder

from tests.models.oracles.architectures import ARCHITECTURES
from wkvm.core.config import EngineConfig
from wkvm.core.layout import PAGE_TOKENS
from wkvm.models.decoder import Decoder

CONFIGS = {
    one.model_type: {"model_type": one.model_type, **one.cases[0].config} for one in ARCHITECTURES
}

VOCAB = range(3, 90)


@cache
def decoder_of(model_type: str) -> Decoder:
    """In float32 on a CPU, with one thread."""
    torch.set_num_threads(1)
    return random_decoder(CONFIGS[model_type], device="cpu", dtype=torch.float32)


def prompt_of(n: int, seed: int = 0) -> tuple[int, ...]:
    """Ids that every one of them knows."""
    return tuple(random.Random(seed).choices(VOCAB, k=n))


def config_of(decoder: Decoder, **settings: object) -> EngineConfig:
    """Settings of an engine, with 40 pages for a model that has a guest."""
    if decoder.layout.guest is not None:
        settings.setdefault("guest_tokens", 40 * PAGE_TOKENS)
    return EngineConfig(poison_freed_slots=True, n_threads=1, **settings)  # type: ignore[arg-type]
