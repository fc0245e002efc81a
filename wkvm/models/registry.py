"""From a path to a model: which family a checkpoint is of, and what is known without loading it."""

import importlib
from dataclasses import dataclass
from pathlib import Path

import torch

from wkvm.core.errors import ConfigError, CorruptCheckpointError, UnsupportedModelError
from wkvm.core.layout import DEFAULT_STATE, StateLayout, StateOptions
from wkvm.models.base import Model
from wkvm.models.blueprint import Blueprint
from wkvm.models.config_file import shown
from wkvm.models.rwkv7_params import read_shape
from wkvm.models.sources import RWKV7, DecoderSource, Loading, Rwkv7Source, Source
from wkvm.models.weights import Checkpoint, open_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

MODULES = {
    "kimi_linear": "wkvm.models.kimi_linear",
    "falcon_h1": "wkvm.models.falcon_h1",
    "gated_deltanet": "wkvm.models.gated_deltanet",
    "granitemoehybrid": "wkvm.models.granite_moe_hybrid",
    "mamba2": "wkvm.models.mamba2",
    "nemotron_h": "wkvm.models.nemotron_h",
    "olmo_hybrid": "wkvm.models.olmo_hybrid",
    "qwen3_5": "wkvm.models.qwen3_5",
    "qwen3_5_moe": "wkvm.models.qwen3_5",
    "qwen3_5_moe_text": "wkvm.models.qwen3_5",
    "qwen3_5_text": "wkvm.models.qwen3_5",
    "qwen3_next": "wkvm.models.qwen3_next",
}
"""By ``model_type``, the module of an architecture other than RWKV-7: its ``read`` makes a
``Blueprint`` of a checkpoint. Imported when it is needed."""

STATE_SPACES = "mamba2"
"""The models of state-spaces name none, but have an ``ssm_cfg``."""

BLINK_EOS_IDS = (0,)
"""The end of a document in the vocabulary that ``.pth`` files come with."""

MAX_EOS_IDS = 256
"""Ids that may end a turn: clients are told all of them when they connect, in a short message."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the headers of a checkpoint tell.

    Attributes:
        architecture: such as ``rwkv7``.
        vocab_size, n_layers, width, n_heads, head_size, n_parameters: as in ``ModelInfo``.
        stored_dtype: the dtype of most weights in the files.
        files: names of the weight files.
        file_bytes: their size together.
        layout: the record of one state, for the dtype that was asked for.
        eos_ids: ids that end a turn.
    """

    architecture: str
    vocab_size: int
    n_layers: int
    width: int
    n_heads: int
    head_size: int
    n_parameters: int
    stored_dtype: str
    files: tuple[str, ...]
    file_bytes: int
    layout: StateLayout
    eos_ids: tuple[int, ...]


def load_model(
    path: Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    state: StateOptions = DEFAULT_STATE,
    quantization: str = "none",
    deterministic: bool = False,
) -> Model:
    """Load the checkpoint at ``path``: a folder with safetensors files, or a ``.pth`` file.

    Args:
        path: of the folder or file.
        device: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda``.
        dtype: of weights and activations: ``auto`` (float32 on a CPU, the checkpoint's on a
            GPU), ``float32``, ``bfloat16`` or ``float16``.
        state: how states are kept.
        quantization: of the large matrices: ``none``, ``fp8`` or ``int8``.
        deterministic: no bit of a row may depend on the other rows.

    Raises:
        CheckpointError: no model there, a damaged one, or one that is not run.
        ConfigError: the device is not there, or cannot keep states or hold weights so.
    """
    checkpoint = open_checkpoint(path)
    resolved = resolve_device(device)
    check_state(state, device=resolved)
    check_quantization(quantization, device=resolved)
    torch_dtype = DTYPES[resolve_dtype(dtype, device=resolved, stored=checkpoint.stored_dtype)]
    source = _source(checkpoint)
    return source.load(
        Loading(
            device=resolved,
            dtype=torch_dtype,
            eos_ids=_eos_ids(checkpoint, source.sizes.vocab_size),
            state=state,
            quantization=quantization,
            deterministic=deterministic,
        )
    )


def describe(
    path: Path, *, device: str = "auto", dtype: str = "auto", state: StateOptions = DEFAULT_STATE
) -> ModelDescription:
    """What ``load_model`` would load, from headers alone: no weight is read.

    Raises:
        CheckpointError: as ``load_model``, for whatever the headers show.
        ConfigError: as ``load_model``.
    """
    checkpoint = open_checkpoint(path)
    stored_dtype = checkpoint.stored_dtype
    on_device = resolve_device(device)
    check_state(state, device=on_device)
    resolved = resolve_dtype(dtype, device=on_device, stored=stored_dtype)
    source = _source(checkpoint)
    sizes = source.sizes
    return ModelDescription(
        architecture=sizes.architecture,
        vocab_size=sizes.vocab_size,
        n_layers=sizes.n_layers,
        width=sizes.width,
        n_heads=sizes.n_heads,
        head_size=sizes.head_size,
        n_parameters=source.n_parameters,
        stored_dtype=stored_dtype,
        files=tuple(file.name for file in checkpoint.files),
        file_bytes=sum(file.stat().st_size for file in checkpoint.files),
        layout=source.layout(resolved, state),
        eos_ids=_eos_ids(checkpoint, sizes.vocab_size),
    )


def blueprint_of(checkpoint: Checkpoint, model_type: str) -> Blueprint:
    """The checkpoint as an architecture other than RWKV-7 reads its ``config.json``.

    Raises:
        CorruptCheckpointError: the file contradicts itself.
        UnsupportedModelError: no such architecture, or something of it that is not run.
    """
    if model_type not in MODULES:
        known = ", ".join((RWKV7, *MODULES))
        why = f"architecture {shown(model_type)}; {known} are run"
        raise UnsupportedModelError(str(checkpoint.path), why)
    blueprint: Blueprint = importlib.import_module(MODULES[model_type]).read(checkpoint)
    return blueprint


def resolve_device(device: str) -> str:
    """``cpu`` or ``cuda``.

    Raises:
        ConfigError: ``cuda`` is asked for, and torch sees no GPU.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError("device", "torch sees no CUDA device")
    if device == "auto":
        return "cuda" if available else "cpu"
    return device


def check_state(state: StateOptions, *, device: str) -> None:
    """Check that states can be kept so.

    Raises:
        ConfigError: writes are deferred on a CPU, where it would save nothing.
    """
    if state.deferred and device == "cpu":
        raise ConfigError("deferred-writes", "only a GPU can defer the writes of states")


def check_quantization(quantization: str, *, device: str) -> None:
    """Check that weights can be held so.

    Raises:
        ConfigError: they are to be quantised on a CPU.
    """
    if quantization != "none" and device == "cpu":
        raise ConfigError("quantization", f"{quantization} needs a GPU; a CPU takes none")


def resolve_dtype(dtype: str, *, device: str, stored: str) -> str:
    """A key of ``DTYPES``; for ``auto`` by the rule of ``load_model``."""
    if dtype != "auto":
        return dtype
    return stored if device == "cuda" and stored in DTYPES else "float32"


def _source(checkpoint: Checkpoint) -> Source:
    """The checkpoint as its architecture reads it. Its module is imported here.

    Raises:
        CheckpointError: no architecture that is run, or its tensors or sizes do not fit it.
    """
    path, config = str(checkpoint.path), checkpoint.config
    if not config and "blocks.0.att.r_k" not in checkpoint.stored:
        some = ", ".join(sorted(checkpoint.stored)[:4])
        raise UnsupportedModelError(path, f"no RWKV-7 model; it has {some}")
    model_type = config.get("model_type") if config else RWKV7
    if model_type is None and "ssm_cfg" in config:
        model_type = STATE_SPACES
    if not isinstance(model_type, str):
        raise CorruptCheckpointError(path, "config.json names no model_type")
    if model_type == RWKV7:
        return Rwkv7Source(checkpoint, read_shape(checkpoint))
    return DecoderSource(checkpoint, blueprint_of(checkpoint, model_type))


def _eos_ids(checkpoint: Checkpoint, vocab_size: int) -> tuple[int, ...]:
    if not checkpoint.config:
        return BLINK_EOS_IDS
    ids = checkpoint.generation_config.get("eos_token_id")
    if ids is None:
        ids = checkpoint.config.get("eos_token_id")
    if ids is None:
        # Of a model with more than text, that part has a config of its own.
        text = checkpoint.config.get("text_config")
        ids = text.get("eos_token_id") if isinstance(text, dict) else None
    if ids is None:
        return ()
    listed = ids if isinstance(ids, list) else [ids]
    if not all(type(token_id) is int and 0 <= token_id < vocab_size for token_id in listed):
        raise CorruptCheckpointError(
            str(checkpoint.path),
            f"eos_token_id is {shown(ids)}, the vocabulary has {vocab_size} ids",
        )
    eos_ids = tuple(dict.fromkeys(listed))
    if len(eos_ids) > MAX_EOS_IDS:
        raise CorruptCheckpointError(str(checkpoint.path), f"eos_token_id has {len(eos_ids)} ids")
    return eos_ids
