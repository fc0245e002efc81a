"""The layers of Nemotron-H that hold no state: feed-forward ones without gates, and experts."""

from dataclasses import dataclass

from wkvm.core.errors import CorruptCheckpointError, UnsupportedModelError
from wkvm.kernels.interface import Kernels
from wkvm.kernels.linear import Linear
from wkvm.models.config_file import check_sizes, shown
from wkvm.models.parameters import Parameters, Weights
from wkvm.models.parts.mlp import ACTIVATIONS, Mlp
from wkvm.models.parts.moe import Moe, SigmoidRouter
from wkvm.models.weights import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Feed-forward layers of one shape.

    Attributes:
        width: C. inner: F.
        activation: a name of ``ACTIVATIONS``.
        has_biases: whether the two products have them.
    """

    width: int
    inner: int
    activation: str
    has_biases: bool

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that there are such layers.

        Raises:
            CorruptCheckpointError: there are none.
            UnsupportedModelError: the activation is not run.
        """
        check_sizes(checkpoint, **{"the inner width of a feed-forward layer": self.inner})
        if self.activation not in ACTIVATIONS:
            why = f"config.json has mlp_hidden_act {shown(self.activation)}"
            raise UnsupportedModelError(str(checkpoint.path), why)

    def weights(self, name: str) -> Weights:
        """Names and shapes of the layer ``name``, in the order in which ``build`` takes them."""
        return {
            **product_weights(f"{name}.up_proj", self.inner, self.width, self.has_biases),
            **product_weights(f"{name}.down_proj", self.width, self.inner, self.has_biases),
        }

    def build(self, parameters: Parameters, name: str) -> Mlp:
        """Make the layer ``name``."""
        up, down = f"{name}.up_proj", f"{name}.down_proj"
        return Mlp(
            project=parameters.linear(f"{up}.weight", biases=self._bias(up)),
            activation=ACTIVATIONS[self.activation],
            output=parameters.linear(f"{down}.weight", biases=self._bias(down)),
        )

    def _bias(self, name: str) -> tuple[str, ...]:
        return (f"{name}.bias",) if self.has_biases else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Layers of routed experts with one that all tokens go through.

    Attributes:
        width: C.
        latent: the width at which routed experts work; None for C.
        inner: F, of each.
        n_experts, n_chosen, n_groups, n_chosen_groups, is_renormalised, scale: of the router.
        shared: what all tokens go through.
    """

    width: int
    latent: int | None
    inner: int
    n_experts: int
    n_chosen: int
    n_groups: int
    n_chosen_groups: int
    is_renormalised: bool
    scale: float
    shared: FeedForward

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that there are such layers.

        Raises:
            CorruptCheckpointError: there are none.
            UnsupportedModelError: the activation is not run.
        """
        path = str(checkpoint.path)
        if self.shared.activation != "relu2":
            why = f"config.json has experts with {shown(self.shared.activation)}; run is 'relu2'"
            raise UnsupportedModelError(path, why)
        self.shared.check(checkpoint)
        check_sizes(
            checkpoint,
            moe_intermediate_size=self.inner,
            moe_latent_size=1 if self.latent is None else self.latent,
            n_routed_experts=self.n_experts,
            num_experts_per_tok=self.n_chosen,
            n_group=self.n_groups,
            topk_group=self.n_chosen_groups,
        )
        in_group, rest = divmod(self.n_experts, self.n_groups)
        # The router weighs a group by its two best experts.
        if rest or self.n_chosen_groups > self.n_groups or (in_group < 2 and self.n_groups > 1):
            why = f"config.json has {self.n_experts} experts in {self.n_groups} groups, of which "
            raise CorruptCheckpointError(path, f"{why}{self.n_chosen_groups} are chosen")
        if self.n_chosen > self.n_chosen_groups * in_group:
            why = (
                f"config.json chooses {self.n_chosen} of {self.n_chosen_groups * in_group} experts"
            )
            raise CorruptCheckpointError(path, why)

    def weights(self, name: str) -> Weights:
        """Names and shapes of the layer ``name``, in the order in which ``build`` takes them."""
        C, E, inner = self.width, self.n_experts, self.inner
        latent = C if self.latent is None else self.latent
        weights: Weights = {
            f"{name}.gate.weight": (E, C),
            f"{name}.gate.e_score_correction_bias": (E,),
        }
        has_biases = self.shared.has_biases
        if self.latent is not None:
            weights |= product_weights(f"{name}.fc1_latent_proj", latent, C, has_biases)
        for index in range(E):
            weights[f"{name}.experts.{index}.up_proj.weight"] = (inner, latent)
        for index in range(E):
            weights[f"{name}.experts.{index}.down_proj.weight"] = (latent, inner)
        if self.latent is not None:
            weights |= product_weights(f"{name}.fc2_latent_proj", C, latent, has_biases)
        return weights | self.shared.weights(f"{name}.shared_experts")

    def build(self, parameters: Parameters, kernels: Kernels, name: str) -> Moe:
        """Make the layer ``name``."""

        def stack(leaf: str) -> list[tuple[str, ...]]:
            return [(f"{name}.experts.{index}.{leaf}.weight",) for index in range(self.n_experts)]

        def latent(leaf: str) -> Linear | None:
            if self.latent is None:
                return None
            biases = (f"{name}.{leaf}.bias",) if self.shared.has_biases else ()
            return parameters.linear(f"{name}.{leaf}.weight", biases=biases)

        return Moe(
            kernels=kernels,
            router=SigmoidRouter(
                weight=parameters.exact(f"{name}.gate.weight"),
                bias=parameters.exact(f"{name}.gate.e_score_correction_bias"),
                n_chosen=self.n_chosen,
                n_groups=self.n_groups,
                n_chosen_groups=self.n_chosen_groups,
                is_renormalised=self.is_renormalised,
                scale=self.scale,
            ),
            narrow=latent("fc1_latent_proj"),
            first=parameters.experts(stack("up_proj")),
            second=parameters.experts(stack("down_proj")),
            activation="relu2",
            widen=latent("fc2_latent_proj"),
            shared=self.shared.build(parameters, f"{name}.shared_experts"),
        )


def product_weights(name: str, n_outputs: int, n_inputs: int, has_bias: bool) -> Weights:
    """Of one product: its matrix, and its bias if there is one."""
    weights: Weights = {f"{name}.weight": (n_outputs, n_inputs)}
    if has_bias:
        weights[f"{name}.bias"] = (n_outputs,)
    return weights
