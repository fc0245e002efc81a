"""docs/models.md is what the cases of the oracles say, and they are of all models that are run."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from wkvm_bench.random_weights import write_folder

from tests.models.oracles.architectures import ARCHITECTURES
from tools.models_table import PATH, document
from wkvm.models.registry import MODULES, load_model


def test_the_table_of_models_is_that_of_the_cases() -> None:
    assert PATH.read_text(encoding="utf-8") == document(), "run: python -m tools.models_table"


def test_every_model_type_that_is_run_has_an_oracle() -> None:
    held = [name for one in ARCHITECTURES for name in one.model_types]
    assert sorted(held) == sorted(MODULES)


def test_pickled_weights_that_were_converted_as_documented_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    mixers = {"layer": "Mamba2", "headdim": 8, "d_state": 4}
    config = {"d_model": 32, "n_layer": 1, "vocab_size": 40, "ssm_cfg": mixers}
    write_folder(folder, {**config, "model_type": "mamba2"}, dtype=torch.float32, device="cpu")
    weights = dict[str, torch.Tensor]()
    for file in folder.glob("*.safetensors*"):
        if file.suffix == ".safetensors":
            weights |= load_file(file)
        file.unlink()
    # A tied head shares its memory with the embedding there.
    weights["lm_head.weight"] = weights["backbone.embeddings.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config))
    (program,) = re.findall(r"```python\n(.*?)```", PATH.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(folder)
    exec(program)
    assert load_model(folder, device="cpu").info.vocab_size == 40
