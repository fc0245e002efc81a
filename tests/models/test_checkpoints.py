"""Damaged, foreign and absent checkpoints each end in one typed error that says where and why."""

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.tiny_rwkv7 import (
    Tiny,
    Weights,
    folder_weights,
    random_weights,
    run_alone,
    write_folder,
    write_pth,
)
from wkvm.core.errors import (
    ConfigError,
    CorruptCheckpointError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from wkvm.models import registry
from wkvm.models.registry import describe, load_model
from wkvm.models.rwkv7_params import read_shape
from wkvm.models.weights import open_checkpoint

TINY = Tiny()
IDS = [3, 1, 4, 1, 5]


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", TINY, random_weights(TINY))


def write_shards(folder: Path) -> Path:
    """The same folder with its weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    weight_map = dict[str, str]()
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_load_as_one_file_does(folder: Path) -> None:
    expected, _ = run_alone(load_model(folder, device="cpu"), IDS)
    logits, _ = run_alone(load_model(write_shards(folder), device="cpu"), IDS)
    assert torch.equal(logits, expected)


def test_one_packed_mix_tensor_loads_as_six_do(folder: Path) -> None:
    expected, _ = run_alone(load_model(folder, device="cpu"), IDS)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for index in range(TINY.n_layers):
        attn = f"model.layers.{index}.attn"
        mixes = [weights.pop(f"{attn}.x_{letter}").flatten() for letter in "rwkvag"]
        weights[f"{attn}.x_x"] = torch.stack(mixes)
    save_file(weights, file)
    logits, _ = run_alone(load_model(folder, device="cpu"), IDS)
    assert torch.equal(logits, expected)


def test_tied_embeddings_are_the_output_matrix(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    untied = write_folder(
        tmp_path / "untied", TINY, weights | {"head.weight": weights["emb.weight"].clone()}
    )
    del weights["head.weight"]
    tied = write_folder(tmp_path / "tied", TINY, weights, tie_word_embeddings=True)
    expected, _ = run_alone(load_model(untied, device="cpu"), IDS)
    logits, _ = run_alone(load_model(tied, device="cpu"), IDS)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_size", [16, 32, 64, 128])
def test_both_namings_load_alike_but_for_the_group_norm(
    tmp_path: Path, head_size: int, dtype: torch.dtype
) -> None:
    tiny = Tiny(width=128, head_size=head_size)
    weights = {name: tensor.to(dtype) for name, tensor in random_weights(tiny).items()}
    folder = write_folder(tmp_path / "model", tiny, weights)
    pth = write_pth(tmp_path / "model.pth", weights)
    from_folder, from_pth = load_model(folder, device="cpu"), load_model(pth, device="cpu")
    assert from_folder.info.n_parameters == from_pth.info.n_parameters
    assert from_folder.layout == from_pth.layout
    logits, expected = run_alone(from_folder, IDS)[0], run_alone(from_pth, IDS)[0]
    assert torch.equal(logits, expected) == (head_size == 64)
    assert read_shape(open_checkpoint(pth)).group_norm_eps == 64e-5
    assert read_shape(open_checkpoint(folder)).group_norm_eps == head_size * 1e-5


def test_unused_value_maps_of_the_first_layer_are_no_obstacle(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    expected, _ = run_alone(load_model(write_pth(tmp_path / "a.pth", weights), device="cpu"), IDS)
    for name in ("v0", "v1", "v2"):
        weights[f"blocks.0.att.{name}"] = weights[f"blocks.1.att.{name}"].clone()
    logits, _ = run_alone(load_model(write_pth(tmp_path / "b.pth", weights), device="cpu"), IDS)
    assert torch.equal(logits, expected)


# Damage. Each takes a whole folder, harms it, and names what the message must say.


def cut_the_data(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "its header describes"


def cut_the_header(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    return "header does not fit"


def empty_the_file(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"")
    return "header does not fit"


def claim_a_huge_header(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    return "header does not fit"


def scramble_the_header(folder: Path) -> str:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:12] = b"\xff\xfe{{"
    file.write_bytes(data)
    return "not JSON"


def rewrite_header(folder: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (n_header,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + n_header])
    change(header)
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data[8 + n_header :])


def lie_about_a_shape(folder: Path) -> str:
    rewrite_header(folder, lambda h: h["model.norm.weight"].update(shape=[65]))
    return "model.norm.weight: 256 bytes for shape"


def lie_about_offsets(folder: Path) -> str:
    def change(header: dict[str, dict[str, object]]) -> None:
        header["model.norm.weight"]["data_offsets"] = header["model.norm.bias"]["data_offsets"]

    rewrite_header(folder, change)
    return "starts at byte"


def use_negative_offsets(folder: Path) -> str:
    rewrite_header(folder, lambda h: h["model.norm.weight"].update(data_offsets=[-256, 0]))
    return "not a description"


def leave_out_a_dtype(folder: Path) -> str:
    rewrite_header(folder, lambda h: h["model.norm.weight"].pop("dtype"))  # type: ignore[arg-type]
    return "not a description"


def lose_a_shard(folder: Path) -> str:
    (write_shards(folder) / "model-00002-of-00002.safetensors").unlink()
    return "model-00002-of-00002.safetensors"


def shorten_a_shard(folder: Path) -> str:
    file = write_shards(folder) / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    return "model-00002-of-00002.safetensors"


def edit_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    index = write_shards(folder) / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def index_a_tensor_that_is_nowhere(folder: Path) -> str:
    edit_index(folder, lambda m: m.update(ghost="model-00001-of-00002.safetensors"))
    return "ghost"


def lead_out_of_the_folder(folder: Path) -> str:
    edit_index(folder, lambda m: m.update(ghost="../elsewhere.safetensors"))
    return "elsewhere"


def empty_the_index(folder: Path) -> str:
    edit_index(folder, dict.clear)
    return "no weight_map"


def edit_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def lose_a_tensor(folder: Path) -> str:
    edit_weights(folder, lambda w: w.pop("model.layers.1.attn.r_proj.weight"))
    return "model.layers.1.attn.r_proj.weight is missing"


def lose_the_output_matrix(folder: Path) -> str:
    edit_weights(folder, lambda w: w.pop("lm_head.weight"))
    return "lm_head.weight is missing"


def lose_a_whole_layer(folder: Path) -> str:
    edit_weights(
        folder, lambda w: [w.pop(name) for name in list(w) if name.startswith("model.layers.1.")]
    )
    return "num_hidden_layers"


def change_a_shape(folder: Path) -> str:
    edit_weights(folder, lambda w: w.update({"model.layers.1.ffn.x_k": torch.zeros(63)}))
    return "model.layers.1.ffn.x_k has shape [63]"


def transpose_a_matrix(folder: Path) -> str:
    name = "model.layers.1.ffn.key.weight"
    edit_weights(folder, lambda w: w.update({name: w[name].t().contiguous()}))
    return f"{name} has shape [64, 128]"


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def contradict_the_config(folder: Path) -> str:
    edit_json(folder / "config.json", hidden_size=65)
    return "hidden_size"


def lose_the_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return "config.json: missing"


def scramble_the_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return "config.json: not JSON"


def name_no_model_type(folder: Path) -> str:
    edit_json(folder / "config.json", model_type=None)
    return "model_type"


def put_a_pipe_in_place_of_the_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    return "config.json: missing"


def end_on_an_impossible_id(folder: Path) -> str:
    edit_json(folder / "config.json", eos_token_id=97)
    return "eos_token_id"


CORRUPTIONS = [
    cut_the_data,
    cut_the_header,
    empty_the_file,
    claim_a_huge_header,
    scramble_the_header,
    lie_about_a_shape,
    lie_about_offsets,
    use_negative_offsets,
    leave_out_a_dtype,
    lose_a_shard,
    shorten_a_shard,
    index_a_tensor_that_is_nowhere,
    lead_out_of_the_folder,
    empty_the_index,
    lose_a_tensor,
    lose_the_output_matrix,
    lose_a_whole_layer,
    change_a_shape,
    transpose_a_matrix,
    contradict_the_config,
    lose_the_config,
    scramble_the_config,
    name_no_model_type,
    put_a_pipe_in_place_of_the_config,
    end_on_an_impossible_id,
]


@pytest.mark.parametrize("damage", CORRUPTIONS)
def test_damage_is_a_corrupt_checkpoint_to_load_and_to_describe(
    folder: Path, damage: Callable[[Path], str]
) -> None:
    why = damage(folder)
    for call in (load_model, describe):
        with pytest.raises(CorruptCheckpointError) as caught:
            call(folder, device="cpu")
        assert why in str(caught.value)
        assert str(folder) in str(caught.value)


def test_a_file_that_shrinks_after_its_header_was_read_is_corrupt(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    last = max(checkpoint.stored.values(), key=lambda tensor: tensor.stop)  # type: ignore[union-attr]
    cut_the_data(folder)
    with pytest.raises(CorruptCheckpointError, match="shorter"):
        last.load()  # type: ignore[union-attr]


@pytest.mark.parametrize("keep", [0, 10, 1000, -1, -200])
def test_a_pth_file_cut_short_is_corrupt(tmp_path: Path, keep: int) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(TINY))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptCheckpointError, match=r"model\.pth"):
        load_model(path, device="cpu")


def test_a_pth_file_without_a_tensor_is_corrupt(tmp_path: Path) -> None:
    weights = random_weights(TINY)
    del weights["blocks.1.ffn.value.weight"]
    with pytest.raises(CorruptCheckpointError, match=r"blocks\.1\.ffn\.value\.weight is missing"):
        load_model(write_pth(tmp_path / "model.pth", weights), device="cpu")


def rewrite_records(path: Path, *, pickled: bytes | None = None, compression: int = 0) -> Path:
    """Write the records of a ``.pth`` file again, another way."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, record in records.items():
            is_pickle = name.endswith("data.pkl") and pickled is not None
            archive.writestr(name, pickled if is_pickle and pickled else record)
    return path


@pytest.mark.parametrize("pickled", [b"\x80\x02.", b"\x80\x02K\x01Q.", b"\x80\x02" + b"(" * 9999])
def test_a_pickle_of_nonsense_is_corrupt(tmp_path: Path, pickled: bytes) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(TINY))
    with pytest.raises(CorruptCheckpointError, match=r"model\.pth"):
        load_model(rewrite_records(path, pickled=pickled), device="cpu")


def test_a_compressed_pth_file_is_corrupt_since_it_would_be_mapped(tmp_path: Path) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(TINY))
    with pytest.raises(CorruptCheckpointError, match="is compressed"):
        load_model(rewrite_records(path, compression=zipfile.ZIP_DEFLATED), device="cpu")


def test_a_tensor_that_repeats_its_elements_is_corrupt(tmp_path: Path) -> None:
    weights = random_weights(TINY) | {"emb.weight": torch.zeros(1).expand(2**40, 64)}
    with pytest.raises(CorruptCheckpointError, match=r"emb\.weight has more elements"):
        load_model(write_pth(tmp_path / "model.pth", weights), device="cpu")


@pytest.mark.parametrize(
    "tensor", [torch.zeros(97, 64, device="meta"), torch.zeros(97, 64).to_sparse()]
)
def test_a_tensor_without_plain_numbers_is_unsupported(tmp_path: Path, tensor: Tensor) -> None:
    weights = random_weights(TINY) | {"emb.weight": tensor}
    with pytest.raises(UnsupportedModelError, match=r"emb\.weight is not stored as plain numbers"):
        load_model(write_pth(tmp_path / "model.pth", weights), device="cpu")


class _Trap:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save({"emb.weight": _Trap(tmp_path / "sprung")}, path)
    with pytest.raises(UnsupportedModelError, match="objects other than tensors"):
        load_model(path, device="cpu")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("blocks.1.ffn.s_emb.weight", "rwkv7a"),
        ("blocks.1.qkv.qq.weight", "rwkv7b"),
        ("blocks.1.att.unheard_of", "unheard_of"),
    ],
)
def test_a_variant_is_unsupported_and_its_tensor_named(
    tmp_path: Path, name: str, says: str
) -> None:
    path = write_pth(tmp_path / "model.pth", random_weights(TINY) | {name: torch.zeros(2, 2)})
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        load_model(path, device="cpu")
    assert name in str(caught.value)


def test_an_older_rwkv_is_unsupported(tmp_path: Path) -> None:
    weights = {"emb.weight": torch.zeros(4, 64), "blocks.0.att.time_faaaa": torch.zeros(1, 64)}
    with pytest.raises(UnsupportedModelError, match="time_faaaa"):
        load_model(write_pth(tmp_path / "model.pth", weights), device="cpu")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "llama"}, "llama"),
        ({"attn": {"layers": [1]}}, "attn"),
        ({"norm_first": False}, "norm_first"),
        ({"hidden_act": "relu"}, "hidden_act"),
    ],
)
def test_a_config_of_another_model_is_unsupported(
    folder: Path, changes: dict[str, object], says: str
) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(UnsupportedModelError, match=says):
        load_model(folder, device="cpu")


def test_integer_weights_are_unsupported(folder: Path) -> None:
    name = "model.layers.1.ffn.x_k"
    edit_weights(folder, lambda w: w.update({name: torch.zeros(64, dtype=torch.int8)}))
    for call in (load_model, describe):
        with pytest.raises(UnsupportedModelError, match=rf"{name}.*I8"):
            call(folder, device="cpu")


def test_a_layer_with_an_endless_number_is_unsupported(folder: Path) -> None:
    name = f"model.layers.{'9' * 5000}.x"
    edit_weights(folder, lambda w: w.update({name: torch.zeros(1)}))
    with pytest.raises(UnsupportedModelError, match="tensors that rwkv7 does not have"):
        load_model(folder, device="cpu")


def test_a_pipe_in_place_of_the_weights_is_not_waited_for(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_unsupported_and_not_read(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UnsupportedModelError, match=f"{name}.*convert it to safetensors"):
        load_model(folder, device="cpu")


def test_nothing_at_the_path_is_not_found(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "nowhere.pth", empty):
        for call in (load_model, describe):
            with pytest.raises(ModelNotFoundError, match=path.name):
                call(path, device="cpu")


def test_another_kind_of_file_is_unsupported(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf"):
        load_model(path, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_a_setting_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="device"):
        load_model(folder, device="cuda")


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [0, 1]}, 5, (0, 1)),
        ({"eos_token_id": 3}, 5, (3,)),
        ({}, 5, (5,)),
        (None, [7, 8], (7, 8)),
        (None, [7, 8, 7] * 1000, (7, 8)),
        (None, None, ()),
    ],
)
def test_generation_settings_say_which_ids_end_a_turn_else_the_config_does(
    folder: Path, generation: dict[str, object] | None, config: object, expected: tuple[int, ...]
) -> None:
    edit_json(folder / "config.json", eos_token_id=config)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert load_model(folder, device="cpu").info.eos_ids == expected
    assert describe(folder, device="cpu").eos_ids == expected


def test_more_end_ids_than_clients_can_be_told_are_corrupt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_EOS_IDS", 3)
    edit_json(folder / "config.json", eos_token_id=[1, 2, 3])
    load_model(folder, device="cpu")
    edit_json(folder / "config.json", eos_token_id=[1, 2, 3, 4])
    with pytest.raises(CorruptCheckpointError, match="eos_token_id has 4 ids"):
        load_model(folder, device="cpu")


def test_a_description_says_what_loading_gives_without_reading_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(folder, device="cpu")
    monkeypatch.setattr("wkvm.models.safetensors_file.StoredTensor.load", None)
    described = describe(folder, device="cpu")
    info = model.info
    for name in ("vocab_size", "n_layers", "width", "n_heads", "head_size", "n_parameters"):
        assert vars_of(described)[name] == vars_of(info)[name]
    assert described.architecture == info.name == "rwkv7"
    assert described.layout == model.layout
    assert described.stored_dtype == "float32"
    assert described.files == ("model.safetensors",)
    assert described.file_bytes == (folder / "model.safetensors").stat().st_size
    assert info.n_parameters == sum(
        t.numel() for t in folder_weights(random_weights(TINY)).values()
    )
    assert info.weight_bytes == 4 * info.n_parameters


def vars_of(record: object) -> dict[str, object]:
    slots: tuple[str, ...] = type(record).__slots__  # type: ignore[attr-defined]
    return {name: object.__getattribute__(record, name) for name in slots}
