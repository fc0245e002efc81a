"""Mamba-2: ``Mamba2ForCausalLM`` as transformers stores it, and the models of state-spaces."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from wkvm.core.errors import CorruptCheckpointError
from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import Epsilon, check_sizes, read_config, refuse_others
from wkvm.models.mamba2_mixers import Mamba2Mixers
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.mamba2 import Mamba2Sizes
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.weights import Checkpoint

EMBEDDINGS = ("backbone.embeddings.weight", "backbone.embedding.weight")
"""Names of the embedding: that of transformers, and that of state-spaces."""

UNCHANGED = {
    "hidden_act": ("silu", "swish"),
    "rms_norm": (True,),
    # What flash-linear-attention calls two fields of its own configurations of this model_type.
    "norm_eps": (1e-5,),
    "dt_limit": ([0.0, float("inf")], [0.0, {"__float__": "Infinity"}]),
}
"""Fields of transformers' configurations, by the values that are run. ``norm_before_gate`` is not
among them: it stands in published files, and transformers has the gate first whatever it says."""

UNCHANGED_OF_STATE_SPACES = {
    "d_intermediate": (0,),
    "attn_layer_idx": ([],),
    "rms_norm": (True,),
}
UNCHANGED_MIXERS_OF_STATE_SPACES = {
    "layer": ("Mamba2",),
    "D_has_hdim": (False,),
    "d_ssm": (None,),
}


class Config(msgspec.Struct, frozen=True):
    """What of transformers' ``config.json`` changes the computation."""

    num_heads: int = 128
    head_dim: int = 64
    vocab_size: int = 32768
    hidden_size: int = 4096
    state_size: int = 128
    num_hidden_layers: int = 64
    layer_norm_epsilon: Epsilon = 1e-5
    expand: int = 2
    conv_kernel: int = 4
    n_groups: int = 8
    use_bias: bool = False
    use_conv_bias: bool = True
    residual_in_fp32: bool = True
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    tie_word_embeddings: bool = False


class StateSpacesMixer(msgspec.Struct, frozen=True):
    """``ssm_cfg`` of state-spaces' ``config.json``, with the defaults of its package."""

    d_state: int = 128
    d_conv: int = 4
    expand: int = 2
    headdim: int = 64
    ngroups: int = 1
    rmsnorm: bool = True
    norm_before_gate: bool = False
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    bias: bool = False
    conv_bias: bool = True


class StateSpacesConfig(msgspec.Struct, frozen=True):
    """What of the rest changes the computation."""

    d_model: int
    n_layer: int
    vocab_size: int
    residual_in_fp32: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True


@dataclass(frozen=True)
class Mamba2:
    """See ``wkvm.models.blueprint.Blueprint``.

    Attributes:
        embedding: the name of its tensor.
    """

    vocab_size: int
    width: int
    n_layers: int
    norm_eps: float
    mixers: Mamba2Mixers
    residual_in_float32: bool
    is_tied: bool
    embedding: str

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        return Sizes(
            architecture="mamba2",
            vocab_size=self.vocab_size,
            n_layers=self.n_layers,
            width=self.width,
            n_heads=self.mixers.sizes.n_heads,
            head_size=self.mixers.sizes.head_size,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        weights: Weights = {self.embedding: (self.vocab_size, self.width)}
        for index in range(self.n_layers):
            layer = f"backbone.layers.{index}"
            weights[f"{layer}.norm.weight"] = (self.width,)
            weights |= self.mixers.weights(f"{layer}.mixer")
        weights["backbone.norm_f.weight"] = (self.width,)
        if not self.is_tied:
            weights["lm_head.weight"] = (self.vocab_size, self.width)
        return weights

    def is_unused(self, name: str) -> bool:
        """A tied head is stored by some."""
        return self.is_tied and name == "lm_head.weight"

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state."""
        return StateLayout(self.mixers.sizes.tensors(self.n_layers, dtype, state.dtype))

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        table = parameters.matrix(self.embedding)

        def norm(name: str) -> RmsNorm:
            return RmsNorm(kernels, parameters.exact(name), self.norm_eps, parameters.dtype)

        blocks = tuple(
            Residual(
                norm(f"backbone.layers.{index}.norm.weight"),
                self.mixers.build(parameters, kernels, f"backbone.layers.{index}.mixer", index),
            )
            for index in range(self.n_layers)
        )
        last = norm("backbone.norm_f.weight")
        return Network(
            table=table,
            stream_dtype=torch.float32 if self.residual_in_float32 else parameters.dtype,
            blocks=blocks,
            norm=last,
            head=parameters.head(table, None if self.is_tied else "lm_head.weight"),
        )


def read(checkpoint: Checkpoint) -> Mamba2:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    config = checkpoint.config
    blueprint = (
        _of_state_spaces(checkpoint) if "ssm_cfg" in config else _of_transformers(checkpoint)
    )
    check_sizes(
        checkpoint,
        **{
            "the vocabulary": blueprint.vocab_size,
            "the width": blueprint.width,
            "the number of layers": blueprint.n_layers,
        },
    )
    blueprint.mixers.check(checkpoint)
    return blueprint


def _of_transformers(checkpoint: Checkpoint) -> Mamba2:
    config = read_config(checkpoint, Config, checkpoint.config)
    refuse_others(checkpoint, checkpoint.config, UNCHANGED)
    mixers = Mamba2Mixers(
        width=config.hidden_size,
        sizes=Mamba2Sizes(
            n_heads=config.num_heads,
            head_size=config.head_dim,
            n_groups=config.n_groups,
            state_size=config.state_size,
            n_taps=config.conv_kernel,
        ),
        project_bias=config.use_bias,
        output_bias=config.use_bias,
        conv_bias=config.use_conv_bias,
        dt_limits=config.time_step_limit,
        norm_eps=config.layer_norm_epsilon,
    )
    if mixers.sizes.inner != config.expand * config.hidden_size:
        why = (
            f"config.json has {config.num_heads} heads of {config.head_dim}, and {config.expand} "
            f"times the width of {config.hidden_size}"
        )
        raise CorruptCheckpointError(str(checkpoint.path), why)
    return Mamba2(
        vocab_size=config.vocab_size,
        width=config.hidden_size,
        n_layers=config.num_hidden_layers,
        norm_eps=config.layer_norm_epsilon,
        mixers=mixers,
        residual_in_float32=config.residual_in_fp32,
        is_tied=config.tie_word_embeddings,
        embedding=_embedding(checkpoint),
    )


def _of_state_spaces(checkpoint: Checkpoint) -> Mamba2:
    config = read_config(checkpoint, StateSpacesConfig, checkpoint.config)
    mixer_config = checkpoint.config["ssm_cfg"]
    if not isinstance(mixer_config, dict):
        raise CorruptCheckpointError(str(checkpoint.path), "config.json: ssm_cfg is no object")
    mixer = read_config(checkpoint, StateSpacesMixer, mixer_config)
    refuse_others(checkpoint, checkpoint.config, UNCHANGED_OF_STATE_SPACES)
    # Where the layer is not named, it is Mamba-1.
    named = {"layer": "Mamba1"} | mixer_config
    refuse_others(checkpoint, named, UNCHANGED_MIXERS_OF_STATE_SPACES)
    check_sizes(
        checkpoint, headdim=mixer.headdim, pad_vocab_size_multiple=config.pad_vocab_size_multiple
    )
    n_heads, rest = divmod(mixer.expand * config.d_model, mixer.headdim)
    if rest:
        why = (
            f"config.json has heads of {mixer.headdim} in {mixer.expand * config.d_model} channels"
        )
        raise CorruptCheckpointError(str(checkpoint.path), why)
    multiple = config.pad_vocab_size_multiple
    return Mamba2(
        vocab_size=-(-config.vocab_size // multiple) * multiple,
        width=config.d_model,
        n_layers=config.n_layer,
        norm_eps=1e-5,
        mixers=Mamba2Mixers(
            width=config.d_model,
            sizes=Mamba2Sizes(
                n_heads=n_heads,
                head_size=mixer.headdim,
                n_groups=mixer.ngroups,
                state_size=mixer.d_state,
                n_taps=mixer.d_conv,
            ),
            project_bias=mixer.bias,
            output_bias=mixer.bias,
            conv_bias=mixer.conv_bias,
            dt_limits=mixer.dt_limit,
            norm_eps=1e-5,
            has_norm=mixer.rmsnorm,
            gate_first=not mixer.norm_before_gate,
        ),
        residual_in_float32=config.residual_in_fp32,
        is_tied=config.tie_embeddings,
        embedding=_embedding(checkpoint),
    )


def _embedding(checkpoint: Checkpoint) -> str:
    return next((name for name in EMBEDDINGS if name in checkpoint.stored), EMBEDDINGS[0])
