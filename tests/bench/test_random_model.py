"""A random model is the same one in both kinds of files."""

from pathlib import Path

import torch
from wkvm_bench.decode import first_ids
from wkvm_bench.random_model import SIZES, write_random, write_random_folder

from wkvm.models.registry import load_model


def test_a_folder_holds_the_model_of_the_file(tmp_path: Path) -> None:
    write_random(tmp_path / "x.pth", SIZES["tiny"], dtype=torch.float16, device="cpu")
    write_random_folder(tmp_path / "x", SIZES["tiny"])
    file, folder = (
        load_model(tmp_path / name, device="cpu", dtype="float32") for name in ("x.pth", "x")
    )
    assert folder.layout == file.layout
    assert first_ids(folder) == first_ids(file)
