"""Small states for tests."""

import torch

from wkvm.core.layout import GUEST_TOKENS, GuestSpec, StateLayout, TensorSpec, guest_tokens
from wkvm.core.registry import Carried, Identity, SamplerMemory
from wkvm.state.guest import tail_of
from wkvm.state.image import StateImage, pack_ids, views_of

LAYOUT = StateLayout(
    (
        TensorSpec("toy.matrix", (2, 3, 5), "float32"),
        TensorSpec("toy.shift", (7,), "bfloat16"),
        TensorSpec("toy.count", (1,), "int64"),
    )
)
PAGED = StateLayout(
    (*LAYOUT.tensors, guest_tokens()),
    GuestSpec(n_layers=2, n_parts=2, n_heads=1, head_dim=2, dtype="bfloat16"),
)
KINDS = {"record": LAYOUT, "pages": PAGED}
"""A state without attention layers, and one with them."""

LARGE = StateLayout(
    (
        TensorSpec("toy.matrix", (3, 700_001), "float16"),
        TensorSpec("toy.shift", (1001,), "float32"),
    )
)


def identity_of(layout: StateLayout, model: str = "ab" * 32) -> Identity:
    return Identity(model_digest=model, fingerprint=layout.fingerprint, tokenizer_digest="cd" * 32)


IDENTITY = identity_of(LAYOUT)


class Default:
    """The layout of images of which none is said: ``either_kind`` of conftest sets it."""

    layout = LAYOUT


def an_image(
    seed: int = 0, *, n_tokens: int = 3, layout: StateLayout | None = None, branch: int = 0
) -> StateImage:
    """An image whose bytes and ids follow from ``seed``."""
    layout = Default.layout if layout is None else layout
    random = torch.Generator().manual_seed(seed)
    record = torch.zeros(layout.image_bytes(n_tokens), dtype=torch.uint8)
    for name, view in views_of(layout, record).items():
        view.copy_(torch.randint(0, 1000, view.shape, generator=random))
        if name == GUEST_TOKENS:
            view.fill_(n_tokens)
    if (tail := tail_of(layout, record, n_tokens)) is not None:
        tail.zero_()
    return StateImage(
        identity=identity_of(layout),
        layout=layout,
        carried=Carried(
            n_computed=n_tokens, pending=(seed,), sampler=SamplerMemory(seed=seed, branch=branch)
        ),
        token_ids=pack_ids([seed + at for at in range(n_tokens)]),
        record=record,
    )


def same(one: StateImage, other: StateImage) -> bool:
    """Whether two images are equal in every bit, padding included."""
    return (
        one.identity == other.identity
        and one.layout == other.layout
        and one.carried == other.carried
        and one.token_ids == other.token_ids
        and torch.equal(one.record, other.record)
    )
