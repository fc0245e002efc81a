"""Mamba-2 as transformers stores it: ``Mamba2ForCausalLM``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from wkvm.core.errors import CorruptCheckpointError
from wkvm.core.layout import StateLayout, StateOptions
from wkvm.kernels.interface import Kernels
from wkvm.models.blueprint import Network, Sizes
from wkvm.models.config_file import check_at_least, read_config, refuse_others
from wkvm.models.parameters import Parameters
from wkvm.models.parts.mamba2 import Mamba2Mixer, Mamba2Sizes, decays
from wkvm.models.parts.residual import Residual, RmsNorm
from wkvm.models.weights import Checkpoint


class Config(msgspec.Struct, frozen=True):
    """What of ``config.json`` changes the computation."""

    num_heads: int = 128
    head_dim: int = 64
    vocab_size: int = 32768
    hidden_size: int = 4096
    state_size: int = 128
    num_hidden_layers: int = 64
    layer_norm_epsilon: float = 1e-5
    conv_kernel: int = 4
    n_groups: int = 8
    use_bias: bool = False
    use_conv_bias: bool = True
    residual_in_fp32: bool = True
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    tie_word_embeddings: bool = False


@dataclass(frozen=True)
class Mamba2:
    """See ``wkvm.models.blueprint.Blueprint``."""

    config: Config

    @cached_property
    def mixer(self) -> Mamba2Sizes:
        """The sizes of each layer."""
        config = self.config
        return Mamba2Sizes(
            n_heads=config.num_heads,
            head_size=config.head_dim,
            n_groups=config.n_groups,
            state_size=config.state_size,
            n_taps=config.conv_kernel,
        )

    @property
    def sizes(self) -> Sizes:
        """What is said of the model."""
        config = self.config
        return Sizes(
            architecture="mamba2",
            vocab_size=config.vocab_size,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=config.num_heads,
            head_size=config.head_dim,
        )

    @cached_property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes, in the order of the forward pass."""
        config, sizes = self.config, self.mixer
        C, V = config.hidden_size, config.vocab_size
        weights: dict[str, tuple[int, ...]] = {"backbone.embeddings.weight": (V, C)}
        for index in range(config.num_hidden_layers):
            layer = f"backbone.layers.{index}"
            mixer = f"{layer}.mixer"
            weights[f"{layer}.norm.weight"] = (C,)
            weights[f"{mixer}.in_proj.weight"] = (sizes.projected, C)
            if config.use_bias:
                weights[f"{mixer}.in_proj.bias"] = (sizes.projected,)
            weights[f"{mixer}.conv1d.weight"] = (sizes.convolved, 1, sizes.n_taps)
            if config.use_conv_bias:
                weights[f"{mixer}.conv1d.bias"] = (sizes.convolved,)
            for name in ("dt_bias", "A_log", "D"):
                weights[f"{mixer}.{name}"] = (sizes.n_heads,)
            weights[f"{mixer}.norm.weight"] = (sizes.inner,)
            weights[f"{mixer}.out_proj.weight"] = (C, sizes.inner)
            if config.use_bias:
                weights[f"{mixer}.out_proj.bias"] = (C,)
        weights["backbone.norm_f.weight"] = (C,)
        if not config.tie_word_embeddings:
            weights["lm_head.weight"] = (V, C)
        return weights

    def is_unused(self, name: str) -> bool:
        """A tied head is stored by some."""
        return self.config.tie_word_embeddings and name == "lm_head.weight"

    def layout(self, dtype: str, state: StateOptions) -> StateLayout:
        """The record of one state."""
        return StateLayout(self.mixer.tensors(self.config.num_hidden_layers, dtype, state.dtype))

    def build(self, parameters: Parameters, kernels: Kernels) -> Network:
        """Make the model of its weights."""
        config, eps = self.config, self.config.layer_norm_epsilon
        table = parameters.matrix("backbone.embeddings.weight")

        def norm(name: str) -> RmsNorm:
            return RmsNorm(kernels, parameters.exact(name), eps, parameters.dtype)

        blocks = tuple(
            Residual(
                norm(f"backbone.layers.{index}.norm.weight"),
                self._mixer(parameters, kernels, index),
            )
            for index in range(config.num_hidden_layers)
        )
        last = norm("backbone.norm_f.weight")
        return Network(
            table=table,
            stream_dtype=torch.float32 if config.residual_in_fp32 else parameters.dtype,
            blocks=tuple(blocks),
            norm=last,
            head=parameters.head(table, None if config.tie_word_embeddings else "lm_head.weight"),
        )

    def _mixer(self, parameters: Parameters, kernels: Kernels, index: int) -> Mamba2Mixer:
        config, name = self.config, f"backbone.layers.{index}.mixer"
        has_bias, has_conv_bias = config.use_bias, config.use_conv_bias
        return Mamba2Mixer(
            kernels=kernels,
            sizes=self.mixer,
            layer=index,
            project=parameters.linear(
                f"{name}.in_proj.weight", biases=(f"{name}.in_proj.bias",) if has_bias else ()
            ),
            conv_weight=parameters.matrix(f"{name}.conv1d.weight").squeeze(1),
            conv_bias=parameters.vector(f"{name}.conv1d.bias") if has_conv_bias else None,
            dt_bias=parameters.exact(f"{name}.dt_bias"),
            A=decays(parameters.exact(f"{name}.A_log")),
            D=parameters.exact(f"{name}.D"),
            dt_limits=config.time_step_limit,
            norm_weight=parameters.exact(f"{name}.norm.weight"),
            norm_eps=config.layer_norm_epsilon,
            gate_first=True,
            output=parameters.linear(
                f"{name}.out_proj.weight", biases=(f"{name}.out_proj.bias",) if has_bias else ()
            ),
        )


def read(checkpoint: Checkpoint) -> Mamba2:
    """Read the sizes of a checkpoint.

    Raises:
        CorruptCheckpointError: its ``config.json`` contradicts itself.
        UnsupportedModelError: a field of it has a value that is not run.
    """
    config = read_config(checkpoint, Config, checkpoint.config)
    refuse_others(checkpoint, checkpoint.config, {"hidden_act": ("silu", "swish")})
    check_at_least(
        checkpoint,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        state_size=config.state_size,
        num_hidden_layers=config.num_hidden_layers,
        n_groups=config.n_groups,
        conv_kernel=config.conv_kernel - 1,
    )
    if config.num_heads % config.n_groups:
        why = f"config.json has {config.num_heads} heads in {config.n_groups} groups"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    low, high = config.time_step_limit
    if not 0 <= low <= high:
        why = f"config.json has a time_step_limit from {low} to {high}"
        raise CorruptCheckpointError(str(checkpoint.path), why)
    return Mamba2(config)
