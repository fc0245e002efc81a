"""Run transformers over random models: ``transformers_oracle.py JOBS OUT``.

``JOBS`` is a JSON list of ``{"class", "config_class", "config", "streams", "folder", "seed"}``.
Each model is written to its folder, and what it makes of the streams to ``expected.safetensors``
beside it.
In a process of its own: transformers would import an installed fla, which needs a GPU.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

for name in ("fla", "mamba_ssm", "causal_conv1d"):
    sys.modules[name] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from tests.models.oracles import fla_models  # noqa: E402


def randomise(model: Any, seed: int) -> None:
    """Give every weight and buffer a value that shows when it is left out or taken for another.

    transformers sets A_log, D, norms and biases to constants, and the rest near zero.
    """
    draw = torch.Generator().manual_seed(seed)
    inputs = {id(model.get_input_embeddings().weight)}
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        leaf = name.rpartition(".")[2]
        if "inv_freq" in leaf or not tensor.dtype.is_floating_point:
            continue
        noise = torch.randn(tensor.shape, generator=draw)
        if leaf == "A_log":
            value = noise.abs().mul(2).add(0.05).log()
        elif leaf == "dt_bias":
            value = noise * 0.7 - 1.0
        elif leaf == "D":
            value = 1.0 + 0.5 * noise
        elif "conv1d" in name and leaf == "weight":
            value = noise * 0.6
        elif leaf == "mup_vector":
            continue
        elif tensor.dim() == 1 and leaf == "weight":  # a norm, whose weight starts at 1, or at 0
            value = tensor + 0.3 * noise
        elif tensor.dim() == 1:  # a bias
            value = 0.3 * noise
        elif id(tensor) in inputs:
            # A tied one is the head as well, and logits are to have the size of activations.
            is_tied = model.get_output_embeddings().weight is tensor
            value = noise * 1.3 * tensor.shape[-1] ** -0.5 if is_tied else noise
        else:
            value = noise * 1.3 * tensor.shape[-1] ** -0.5
        tensor.copy_(value.view_as(tensor))


def state_of(cache: Any) -> dict[str, Tensor]:
    """What the cache of one sequence holds, stacked over the layers of each kind.

    ``recurrent`` ``[L, ...]``, ``conv`` ``[L, C, W]``, ``keys`` and ``values`` ``[L, T, H, D]`` of
    the last T tokens: as many as every layer holds.
    """
    found = dict[str, list[Tensor]]()
    for layer in cache.layers:
        for kind, many in (("recurrent", "recurrent_states"), ("conv", "conv_states")):
            for tensor in (getattr(layer, many, None) or {}).values():
                if tensor is not None:
                    found.setdefault(kind, []).append(tensor[0])
        for kind in ("keys", "values"):
            tensor = getattr(layer, kind, None)
            if tensor is not None and tensor.numel():
                found.setdefault(kind, []).append(tensor[0].transpose(0, 1))
    for kind in found.keys() & {"keys", "values"}:
        n_tokens = min(tensor.shape[0] for tensor in found[kind])
        found[kind] = [tensor[-n_tokens:] for tensor in found[kind]]
    return {kind: torch.stack(tensors).float() for kind, tensors in found.items()}


def run(job: dict[str, Any]) -> None:
    """Write the model and what it makes of the streams."""
    library = fla_models if job["class"] in vars(fla_models) else transformers
    config = getattr(library, job["config_class"])(**job["config"])
    # Others want sizes that are multiples of 16 bytes.
    config._experts_implementation = "eager"
    model = getattr(library, job["class"])(config).float().eval()
    randomise(model, job["seed"])
    folder = Path(job["folder"])
    model.save_pretrained(folder)
    expected = dict[str, Tensor]()
    for stream, ids in job["streams"].items():
        output = model(torch.tensor([ids]), use_cache=True)
        cache = output.get("cache")
        if cache is None:
            cache = output["past_key_values"]
        expected[f"{stream}/logits"] = output.logits[0].float()
        for kind, tensor in state_of(cache).items():
            expected[f"{stream}/{kind}"] = tensor
    save_file({k: v.contiguous().clone() for k, v in expected.items()}, f"{folder}.expected")


def main() -> None:
    """All jobs, one after the other."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with torch.no_grad():
        for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
            run(job)


if __name__ == "__main__":
    main()
