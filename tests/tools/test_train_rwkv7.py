"""The training script: its recurrence, its batches, and the folder that it writes."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tools import train_rwkv7
from tools.rwkv7_corpus import END_OF_TEXT, Batches, read_documents
from tools.rwkv7_model import CHUNK, RWKV7, Shape, wkv_chunked
from wkvm.gateway.text import load_tokenizer
from wkvm.models.base import Batch
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena


def sequential(
    r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, segments: Tensor
) -> Tensor:
    rows, length, heads, size = r.shape
    state = torch.zeros(rows, heads, size, size)
    ys = []
    for t in range(length):
        if t:
            state = state * (segments[:, t] == segments[:, t - 1]).view(rows, 1, 1, 1)
        removed = (state @ a[:, t].unsqueeze(-1)) @ b[:, t].unsqueeze(-2)
        added = v[:, t].unsqueeze(-1) @ k[:, t].unsqueeze(-2)
        state = state * log_w[:, t].exp().unsqueeze(-2) + removed + added
        ys.append((state @ r[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(ys, dim=1)


@pytest.mark.parametrize("begins", [(), (1, 31, 32, 70), (63, 64, 65, 95)])
def test_the_chunked_recurrence_equals_the_sequential_one(begins: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    shape = (2, 3 * CHUNK, 2, 16)
    r, k, v, x = (torch.randn(shape) for _ in range(4))
    log_w = -math.exp(-0.5) * (3 * torch.randn(shape)).sigmoid()
    kap = nn.functional.normalize(x, dim=-1)
    segments = torch.zeros(shape[:2], dtype=torch.int32)
    for begin in begins:
        segments[1, begin:] += 1
    inputs = (r, log_w, k, v, -kap, kap * torch.rand(shape), segments)
    torch.testing.assert_close(wkv_chunked(*inputs), sequential(*inputs), rtol=1e-5, atol=1e-4)


def draw_tokens(documents: list[Tensor], n: int) -> tuple[Tensor, Tensor, Tensor]:
    batches = Batches(documents, rows=1, length=n // 5, seed=0)
    parts = zip(*(batches.next() for _ in range(5)), strict=True)
    ids, segments, targets = (torch.cat(part, dim=1)[0] for part in parts)
    return ids, segments, targets


def test_an_epoch_of_batches_holds_each_document_once_behind_a_mark() -> None:
    documents = [torch.arange(3 + i, 23 + 2 * i, dtype=torch.int32) for i in range(10)]
    n = sum(len(document) + 1 for document in documents)
    ids, _, targets = draw_tokens(documents, n)
    assert torch.equal(ids[1:], targets[:-1])
    marks = (ids == END_OF_TEXT).nonzero().flatten().tolist()
    held = [ids[i + 1 : j].tolist() for i, j in zip(marks, [*marks[1:], n], strict=True)]
    assert sorted(held) == sorted(document.tolist() for document in documents)


def test_a_state_starts_at_the_mark_in_some_documents_and_after_it_in_the_others() -> None:
    documents = [torch.full((4,), 7, dtype=torch.int32)] * 40
    ids, segments, _ = draw_tokens(documents, 200)
    starts = (segments.diff() != 0).nonzero().flatten() + 1
    at_mark, after_mark = ids[starts] == END_OF_TEXT, ids[starts - 1] == END_OF_TEXT
    assert bool((at_mark ^ after_mark).all())
    assert 10 < int(at_mark.sum()) < 30


def test_documents_end_at_the_mark_and_at_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n<|endoftext|>\n\nthree\n")
    (tmp_path / "b.txt").write_text("four\n<|endoftext|>\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert read_documents(files, None) == ["one\ntwo", "three", "four"]
    assert read_documents(files, 1) == ["one\ntwo"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    draw = random.Random(0)
    words = ["the", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and"]
    stories = [" ".join(draw.choices(words, k=60)) + ".\n" for _ in range(40)]
    (folder / "corpus.txt").write_text("<|endoftext|>\n".join(stories))
    sizes = "--width 32 --head-size 16 --layers 2 --ranks 4 4 4 8 --vocab 300 --shard-mib 0"
    steps = "--rows 2 --length 64 --steps 12 --warmup 2 --rate 1e-2 --log-every 4 --device cpu"
    argv = [str(folder / "corpus.txt"), "--out", str(folder / "model")]
    train_rwkv7.main([*argv, *sizes.split(), *steps.split()])
    return folder / "model"


def test_a_few_steps_lower_the_loss(trained: Path) -> None:
    log = json.loads((trained / "train_log.json").read_text())
    losses = [loss for _, _, loss, _ in log["log"]]
    assert losses[-1] < losses[0] - 0.5
    assert math.isfinite(log["val"]["held-out"])


def test_the_folder_loads_and_the_engines_model_gives_the_trainers_logits(trained: Path) -> None:
    model = load_model(trained, device="cpu", dtype="float32")
    assert model.info.eos_ids == (0, 1)
    tokenizer = load_tokenizer(trained)
    ids = tokenizer.encode("the cat sat on the mat and the dog ran under the tree " * 4)[:CHUNK]
    arena = Arena(model.layout, 1, "cpu")
    arena.zero([0])
    batch = Batch(
        token_ids=torch.tensor(ids),
        slots=torch.tensor([0], dtype=torch.int32),
        lengths=(len(ids),),
        slot_list=(0,),
        logit_rows=torch.arange(len(ids)),
    )
    served = model.forward(batch, arena.views)

    shape = Shape(**json.loads((trained / "train_log.json").read_text())["shape"])
    trainer = RWKV7(shape, wkv_chunked)
    for file in trained.glob("*.safetensors"):
        trainer.load_state_dict({k: v.float() for k, v in load_file(file).items()}, strict=False)
    with torch.no_grad():
        expected = trainer(torch.tensor([ids]), torch.zeros(1, len(ids), dtype=torch.int32))[0]
    torch.testing.assert_close(served, expected, rtol=1e-4, atol=1e-4)
    assert len(list(trained.glob("*.safetensors"))) > 1
