"""RWKV-7 checkpoints under either naming, brought to one set of parameters.

Two namings are read: BlinkDL's (``.pth`` files) and that of flash-linear-attention (folders with
safetensors). Parameters carry BlinkDL's names here, and have his shapes without axes of length 1.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.models.weights import Checkpoint

BLINK_GROUP_NORM_EPS = 64e-5
LAYER_NORM_EPS = 1e-5
HEAD_SIZES = range(16, 129, 16)

_VARIANTS = {
    "s_emb": "rwkv7a (DeepEmbed)",
    "qkv.": "rwkv7b (attention over the whole context)",
}
_MIXES = "rwkvag"


@dataclass(frozen=True, slots=True)
class Rwkv7Shape:
    """The sizes of one RWKV-7 model.

    Attributes:
        vocab_size, n_layers, width, n_heads, head_size: as in ``ModelInfo``.
        ffn_width: of the hidden layer of the channel mix.
        ranks: of the low-rank maps, by their letter in ``wavg``; ``v`` is 0 in a single layer.
        layer_norm_eps, group_norm_eps: added to variances.
        tied: whether the output matrix is the embedding.
        n_parameters: elements of all weights that are used.
    """

    vocab_size: int
    n_layers: int
    width: int
    n_heads: int
    head_size: int
    ffn_width: int
    ranks: Mapping[str, int]
    layer_norm_eps: float
    group_norm_eps: float
    tied: bool
    n_parameters: int


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a parameter comes from: the stored name, and its shape when stored.

    A vector may be stored with further axes of length 1.
    """

    name: str
    shape: tuple[int, ...]
    transpose: bool = False


def read_shape(checkpoint: Checkpoint) -> Rwkv7Shape:
    """Check names and shapes of all tensors against each other, and against ``config.json``.

    Raises:
        CorruptCheckpointError: a tensor is missing or has another shape than the rest implies.
        UnsupportedModelError: a variant of RWKV-7 that is not run.
    """
    shapes = checkpoint.shapes
    _refuse_variants(checkpoint)
    shape = _read_sizes(checkpoint, shapes)
    n_parameters = 0
    known = set[str]()
    for _, source in _sources(shape, is_blink=is_blink(checkpoint), shapes=shapes):
        found = shapes.get(source.name)
        if found is None:
            raise CorruptCheckpointError(str(checkpoint.path), f"tensor {source.name} is missing")
        if not _fits(found, source.shape):
            raise CorruptCheckpointError(
                str(checkpoint.path),
                f"{source.name} has shape {list(found)}, expected {list(source.shape)}",
            )
        known.add(source.name)
        n_parameters += torch.Size(found).numel()
    # Layer 0 has no use for the value residual, but some files carry it.
    unused = re.compile(r"blocks\.0\.att\.v[012]|model\.layers\.0\.attn\.v_lora\..*")
    if unknown := sorted(name for name in shapes.keys() - known if not unused.fullmatch(name)):
        raise UnsupportedModelError(
            str(checkpoint.path), f"tensors that rwkv7 does not have: {', '.join(unknown[:4])}"
        )
    return replace(shape, n_parameters=n_parameters)


def load_parameters(
    checkpoint: Checkpoint, shape: Rwkv7Shape, device: str = "cpu"
) -> Iterator[tuple[str, Tensor]]:
    """The parameters one by one, in the dtype they are stored in, on ``device``.

    Those of a layer come together, layers in their order. What is not kept by who asks for them
    is freed: of a checkpoint on its way to a GPU little is held at a time.

    Matrices are ``[out, in]``, but the low-rank maps ``[in, out]``; ``emb.weight`` is ``[V, C]``;
    vectors are ``[C]``; ``att.x`` is ``[6, C]`` in the order r, w, k, v, a, g. ``head.weight`` is
    absent if tied.
    """
    mixes = dict[str, list[Tensor]]()
    sources = list(_sources(shape, is_blink=is_blink(checkpoint), shapes=checkpoint.shapes))
    loaded = checkpoint.load_all([source.name for _, source in sources], device)
    for (name, source), stored in zip(sources, loaded, strict=True):
        tensor = stored.reshape(source.shape)
        if source.transpose:
            tensor = tensor.t()
        if re.search(r"att\.x_\w$", name):
            rows = mixes.setdefault(name[:-2], [])
            rows.append(tensor)
            if len(rows) == len(_MIXES):
                yield name[:-2], torch.stack(mixes.pop(name[:-2]))
        else:
            yield name, tensor


def weight_bytes(shape: Rwkv7Shape, item_bytes: int, quantization: str = "none") -> int:
    """Of all weights as they are held, with a model's dtype of ``item_bytes``.

    Quantised are the matrices ``[C, C]`` and those of the channel mix, and with them the first
    stages of the low-rank maps: a byte for each value, and four for each output.
    """
    plain = shape.n_parameters * item_bytes
    if quantization == "none":
        return plain
    C, F = shape.width, shape.ffn_width
    n_rows = n_values = 0
    for index in range(shape.n_layers):
        ranks = sum(rank for letter, rank in shape.ranks.items() if index or letter != "v")
        n_rows += 5 * C + F + ranks
        n_values += (4 * C + ranks) * C + 2 * C * F
    return plain - n_values * (item_bytes - 1) + n_rows * 4


def is_blink(checkpoint: Checkpoint) -> bool:
    """Whether the tensors have BlinkDL's names."""
    return "emb.weight" in checkpoint.stored


def _refuse_variants(checkpoint: Checkpoint) -> None:
    for mark, variant in _VARIANTS.items():
        if marked := sorted(name for name in checkpoint.stored if mark in name):
            raise UnsupportedModelError(
                str(checkpoint.path), f"a variant that is not run, {variant}: it has {marked[0]}"
            )
    config = checkpoint.config
    fixed: dict[str, tuple[Any, ...]] = {
        "attn": (None,),
        "norm_first": (True,),
        "norm_bias": (True,),
        "hidden_act": ("sqrelu",),
    }
    for key, allowed in fixed.items():
        if key in config and config[key] not in allowed:
            raise UnsupportedModelError(str(checkpoint.path), f"{key} is {config[key]!r}")


def _read_sizes(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> Rwkv7Shape:
    path, config = str(checkpoint.path), checkpoint.config
    blink = is_blink(checkpoint)
    layer, attention = ("blocks", "att") if blink else ("model.layers", "attn")

    def dims(name: str, n: int) -> tuple[int, ...]:
        found = shapes.get(name)
        if found is None:
            raise CorruptCheckpointError(path, f"tensor {name} is missing")
        if len(found) != n or min(found) < 1:
            raise CorruptCheckpointError(path, f"{name} has shape {list(found)}, expected {n} axes")
        return found

    def rank(letter: str, index: int) -> int:
        if blink:
            return dims(f"{layer}.{index}.att.{letter}1", 2)[1]
        return dims(f"{layer}.{index}.attn.{letter}_lora.lora.0.weight", 2)[0]

    vocab_size, width = dims("emb.weight" if blink else "model.embeddings.weight", 2)
    pattern = re.compile(re.escape(layer) + r"\.(\d{1,9})\.")
    n_layers = 1 + max((int(m[1]) for name in shapes if (m := pattern.match(name))), default=-1)
    if n_layers < 1 or n_layers > len(shapes):
        raise CorruptCheckpointError(path, f"tensors of {n_layers} layers")
    n_heads, head_size = dims(f"{layer}.0.{attention}.r_k", 2)
    if head_size not in HEAD_SIZES:
        raise UnsupportedModelError(path, f"heads of size {head_size}; 16, 32, ... 128 are run")
    ffn_width = dims(f"{layer}.0.ffn.key.weight", 2)[0]
    ranks = {letter: rank(letter, 0) for letter in "wag"}
    ranks["v"] = rank("v", 1) if n_layers > 1 else 0
    tied = (
        not blink and "lm_head.weight" not in shapes and config.get("tie_word_embeddings") is True
    )
    said = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": n_layers,
        "head_dim": head_size,
        "num_heads": n_heads,
        "intermediate_size": ffn_width,
    }
    for key, value in said.items():
        if config.get(key) is not None and config[key] != value:
            raise CorruptCheckpointError(
                path, f"config.json says {key} is {config[key]!r}, the tensors say {value}"
            )
    layer_norm_eps = config.get("norm_eps", LAYER_NORM_EPS)
    if not isinstance(layer_norm_eps, float) or not 0 < layer_norm_eps < 1:
        raise CorruptCheckpointError(path, f"config.json says norm_eps is {layer_norm_eps!r}")
    # BlinkDL's files were trained with 64e-5 whatever the size of a head.
    group_norm_eps = BLINK_GROUP_NORM_EPS if blink else head_size * layer_norm_eps
    return Rwkv7Shape(
        vocab_size=vocab_size,
        n_layers=n_layers,
        width=width,
        n_heads=n_heads,
        head_size=head_size,
        ffn_width=ffn_width,
        ranks=ranks,
        layer_norm_eps=layer_norm_eps,
        group_norm_eps=group_norm_eps,
        tied=tied,
        n_parameters=0,
    )


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    if len(expected) == 1:
        found = tuple(n for n in found if n != 1)
    return found == expected


def _sources(
    shape: Rwkv7Shape, *, is_blink: bool, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, _Source]]:
    """Each parameter with its source, in the order of the forward pass."""
    C, V, F = shape.width, shape.vocab_size, shape.ffn_width

    def named(blink: str, fla: str, *dims: int, transpose: bool = False) -> tuple[str, _Source]:
        return blink, _Source(blink if is_blink else fla, dims, transpose)

    def norm(blink: str, fla: str) -> Iterator[tuple[str, _Source]]:
        yield named(f"{blink}.weight", f"{fla}.weight", C)
        yield named(f"{blink}.bias", f"{fla}.bias", C)

    yield named("emb.weight", "model.embeddings.weight", V, C)
    yield from norm("blocks.0.ln0", "model.layers.0.pre_norm")
    for index in range(shape.n_layers):
        b, m = f"blocks.{index}", f"model.layers.{index}"
        yield from norm(f"{b}.ln1", f"{m}.attn_norm")
        packed = f"{m}.attn.x_x"
        if not is_blink and packed in shapes:
            yield f"{b}.att.x", _Source(packed, (6, C))
        else:
            for letter in _MIXES:
                yield named(f"{b}.att.x_{letter}", f"{m}.attn.x_{letter}", C)
        for blink, fla in (("receptance", "r"), ("key", "k"), ("value", "v"), ("output", "o")):
            yield named(f"{b}.att.{blink}.weight", f"{m}.attn.{fla}_proj.weight", C, C)
        for letter in "wag" if index == 0 else "wavg":
            rank = shape.ranks[letter]
            first, second = (C, rank), (rank, C)
            lora = f"{m}.attn.{letter}_lora.lora"
            # Only the folders store these maps as a Linear does, [out, in].
            for number, dims, name in ((1, first, "0.weight"), (2, second, "2.weight")):
                stored = dims if is_blink else dims[::-1]
                yield named(
                    f"{b}.att.{letter}{number}",
                    f"{lora}.{name}",
                    *stored,
                    transpose=not is_blink,
                )
            if letter != "g":
                yield named(f"{b}.att.{letter}0", f"{lora}.2.bias", C)
        yield named(f"{b}.att.k_k", f"{m}.attn.k_k", C)
        yield named(f"{b}.att.k_a", f"{m}.attn.k_a", C)
        yield named(f"{b}.att.r_k", f"{m}.attn.r_k", shape.n_heads, shape.head_size)
        yield from norm(f"{b}.att.ln_x", f"{m}.attn.g_norm")
        yield from norm(f"{b}.ln2", f"{m}.ffn_norm")
        yield named(f"{b}.ffn.x_k", f"{m}.ffn.x_k", C)
        yield named(f"{b}.ffn.key.weight", f"{m}.ffn.key.weight", F, C)
        yield named(f"{b}.ffn.value.weight", f"{m}.ffn.value.weight", C, F)
    yield from norm("ln_out", "model.norm")
    if not shape.tied:
        yield named("head.weight", "lm_head.weight", V, C)
