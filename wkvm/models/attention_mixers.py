"""The attention layers of hybrids as most checkpoints store them: names, shapes, parts."""

from dataclasses import dataclass
from typing import Literal

from wkvm.core.errors import CorruptCheckpointError
from wkvm.kernels.interface import Kernels
from wkvm.models.config_file import check_sizes
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.attention import Attention, AttentionSizes, HeadNorm
from wkvm.models.rope_config import Rope
from wkvm.models.weights import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMixers:
    """All attention layers of a checkpoint. They differ by their weights alone.

    Attributes:
        width: C, of the stream.
        has_biases: whether the four products have them.
        scale: of the scores; None for one over the root of the heads' size.
        rope: how positions are told; None where they are not.
        head_norms: whether queries and keys have norms: ``none``, of ``each`` head, or of ``all``
            heads together.
        norm_eps: of those.
        norm_offset: what is added to their weights.
        input_scale: what a mixer's input is multiplied by.
        key_scale: what keys are multiplied by, bias included.
        output_scale: what a mixer's output is multiplied by.
    """

    width: int
    sizes: AttentionSizes
    has_biases: bool = False
    scale: float | None = None
    rope: Rope | None = None
    head_norms: Literal["none", "each", "all"] = "none"
    norm_eps: float = 0.0
    norm_offset: float = 0.0
    input_scale: float = 1.0
    key_scale: float = 1.0
    output_scale: float = 1.0

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that there are such mixers.

        Raises:
            CorruptCheckpointError: there are none.
        """
        sizes = self.sizes
        check_sizes(
            checkpoint,
            num_attention_heads=sizes.n_heads,
            num_key_value_heads=sizes.n_shared,
            head_dim=sizes.head_size,
        )
        if sizes.n_heads % sizes.n_shared:
            why = f"config.json has {sizes.n_heads} heads for {sizes.n_shared} keys and values"
            raise CorruptCheckpointError(str(checkpoint.path), why)

    def weights(self, name: str) -> Weights:
        """Names and shapes of the mixer ``name``, in the order in which ``build`` takes them."""
        sizes = self.sizes
        outputs = {"q_proj": sizes.projected_queries, "k_proj": sizes.keys, "v_proj": sizes.keys}
        weights: Weights = {f"{name}.{leaf}.weight": (n, self.width) for leaf, n in outputs.items()}
        if self.has_biases:
            weights |= {f"{name}.{leaf}.bias": (n,) for leaf, n in outputs.items()}
        if self.head_norms != "none":
            is_each = self.head_norms == "each"
            weights[f"{name}.q_norm.weight"] = (sizes.head_size if is_each else sizes.queries,)
            weights[f"{name}.k_norm.weight"] = (sizes.head_size if is_each else sizes.keys,)
        weights[f"{name}.o_proj.weight"] = (self.width, sizes.queries)
        if self.has_biases:
            weights[f"{name}.o_proj.bias"] = (self.width,)
        return weights

    def build(self, parameters: Parameters, kernels: Kernels, name: str, layer: int) -> Attention:
        """Make the mixer ``name``, whose part of the guest's pages is ``layer``.

        Constants that its inputs, keys and outputs are multiplied by go into the weights.
        """
        sizes = self.sizes
        inputs = [f"{name}.{leaf}" for leaf in ("q_proj", "k_proj", "v_proj")]
        by_part = (1.0, self.key_scale, 1.0)
        return Attention(
            kernels=kernels,
            sizes=sizes,
            layer=layer,
            project=parameters.linear(
                *(f"{one}.weight" for one in inputs),
                biases=tuple(f"{one}.bias" for one in inputs) if self.has_biases else (),
                scales=[self.input_scale * scale for scale in by_part],
                bias_scales=by_part,
            ),
            query_norm=self._norm(parameters, kernels, f"{name}.q_norm"),
            key_norm=self._norm(parameters, kernels, f"{name}.k_norm"),
            output=parameters.linear(
                f"{name}.o_proj.weight",
                biases=(f"{name}.o_proj.bias",) if self.has_biases else (),
                scales=(self.output_scale,),
                bias_scales=(self.output_scale,),
            ),
            scale=sizes.head_size**-0.5 if self.scale is None else self.scale,
            rotary=None if self.rope is None else self.rope.on(parameters.device),
        )

    def _norm(self, parameters: Parameters, kernels: Kernels, name: str) -> HeadNorm | None:
        if self.head_norms == "none":
            return None
        weight = parameters.exact(f"{name}.weight") + self.norm_offset
        return HeadNorm(kernels, weight, self.norm_eps)
