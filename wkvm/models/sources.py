"""A checkpoint whose architecture is known: what can be said of it, and how it is loaded."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from wkvm.core.errors import ConfigError
from wkvm.core.layout import DEFAULT_STATE, StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.base import Model, ModelInfo
from wkvm.models.blueprint import Blueprint, Sizes
from wkvm.models.decoder import Decoder
from wkvm.models.parameters import Parameters, check_weights
from wkvm.models.rwkv7_params import Rwkv7Shape
from wkvm.models.weights import Checkpoint

RWKV7 = "rwkv7"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a model is to be loaded; see ``wkvm.models.registry.load_model``.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: of weights and activations.
        eos_ids: as in ``ModelInfo``.
        state, quantization, deterministic: as in ``load_model``.
    """

    device: str
    dtype: torch.dtype
    eos_ids: tuple[int, ...]
    state: StateOptions = DEFAULT_STATE
    quantization: str = "none"
    deterministic: bool = False


class Source(Protocol):
    """A checkpoint as its architecture reads it."""

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        ...

    @property
    def n_parameters(self) -> int:
        """Elements of all weights."""
        ...

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state of a model of that ``dtype``."""
        ...

    def load(self, loading: Loading) -> Model:
        """Read all weights.

        Raises:
            ConfigError: the architecture does not have what is asked for.
            CorruptCheckpointError: a file changed or ended while it was read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rwkv7Source:
    """A checkpoint of RWKV-7."""

    checkpoint: Checkpoint
    shape: Rwkv7Shape

    @property
    def sizes(self) -> Sizes:
        """See ``Source``."""
        shape = self.shape
        return Sizes(
            architecture=RWKV7,
            vocab_size=shape.vocab_size,
            n_layers=shape.n_layers,
            width=shape.width,
            n_heads=shape.n_heads,
            head_size=shape.head_size,
        )

    @property
    def n_parameters(self) -> int:
        """See ``Source``."""
        return self.shape.n_parameters

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """See ``Source``."""
        from wkvm.models.rwkv7 import layout_of

        return layout_of(self.shape, dtype, state)

    def load(self, loading: Loading) -> Model:
        """See ``Source``."""
        from wkvm.models import rwkv7

        return rwkv7.load(
            self.checkpoint,
            self.shape,
            device=loading.device,
            dtype=loading.dtype,
            eos_ids=loading.eos_ids,
            state=loading.state,
            quantization=loading.quantization,
            deterministic=loading.deterministic,
        )


class DecoderSource:
    """A checkpoint of any other architecture, its weights checked.

    Raises:
        CorruptCheckpointError, UnsupportedModelError: as ``check_weights``.
    """

    def __init__(self, checkpoint: Checkpoint, blueprint: Blueprint) -> None:
        self._checkpoint = checkpoint
        self._blueprint = blueprint
        architecture, weights = blueprint.sizes.architecture, blueprint.weights
        self.n_parameters = check_weights(checkpoint, architecture, weights, blueprint.is_unused)

    @property
    def sizes(self) -> Sizes:
        """See ``Source``."""
        return self._blueprint.sizes

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """See ``Source``."""
        return self._blueprint.layout(dtype, state)

    def load(self, loading: Loading) -> Model:
        """See ``Source``. The files are read a second time for their digest, beside the first."""
        blueprint = self._blueprint
        check_decoder(blueprint.sizes.architecture, loading)
        with ThreadPoolExecutor(1, "wkvm-digest") as pool:
            digest = pool.submit(self._checkpoint.digest)
            parameters = Parameters(
                blueprint.weights,
                self._checkpoint.load_all(list(blueprint.weights), loading.device),
                device=loading.device,
                dtype=loading.dtype,
                quantization=loading.quantization,
            )
            return decoder_of(blueprint, parameters, loading, self.n_parameters, digest.result)


def check_decoder(architecture: str, loading: Loading) -> None:
    """Check that a model other than RWKV-7 can be loaded so.

    Raises:
        ConfigError: it cannot.
    """
    if loading.device != "cpu" and loading.deterministic:
        raise ConfigError("deterministic", f"{architecture} is so on a CPU alone")
    if loading.state.deferred:
        raise ConfigError("deferred-writes", f"{architecture} has none; {RWKV7} does")


def kernels_of(device: str) -> Kernels:
    """The kernels of ``cpu`` or ``cuda``, imported here: Triton takes seconds."""
    if device == "cpu":
        from wkvm.kernels import cpu

        return cpu
    from wkvm.kernels import gpu

    return gpu


def decoder_of(
    blueprint: Blueprint,
    parameters: Parameters,
    loading: Loading,
    n_parameters: int,
    digest: Callable[[], str],
    kernels: Kernels | None = None,
) -> Decoder:
    """The model that a blueprint makes of weights.

    Args:
        parameters: the weights, none taken yet.
        n_parameters: their elements.
        digest: called once the weights have been taken; see ``ModelInfo``.
        kernels: None for those of the device.
    """
    sizes, dtype = blueprint.sizes, str(loading.dtype).removeprefix("torch.")
    with torch.inference_mode():
        network = blueprint.build(parameters, kernels or kernels_of(loading.device))
    info = ModelInfo(
        name=sizes.architecture,
        vocab_size=sizes.vocab_size,
        n_layers=sizes.n_layers,
        width=sizes.width,
        n_heads=sizes.n_heads,
        head_size=sizes.head_size,
        n_parameters=n_parameters,
        weight_bytes=parameters.held_bytes,
        dtype=dtype,
        device=loading.device,
        digest=digest(),
        eos_ids=loading.eos_ids,
    )
    return Decoder(info, blueprint.layout(dtype, loading.state), network)
