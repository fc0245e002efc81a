"""Text for training: documents, a tokenizer made from them, and batches of ids."""

import lzma
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

SPECIAL_TOKENS = ("<|endoftext|>", "<|end|>", "<|pad|>", "<|reserved|>")
END_OF_TEXT, END_OF_TURN, PAD = 0, 1, 2


def read_documents(files: Sequence[Path], max_chars: int | None) -> list[str]:
    """The documents of all files, in order; no more once ``max_chars`` have been read."""
    documents: list[str] = []
    lines: list[str] = []
    n_chars = 0

    def flush() -> None:
        if text := "".join(lines).strip("\n"):
            documents.append(text)
        lines.clear()

    for file in files:
        opener = lzma.open if file.suffix == ".xz" else open
        with opener(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                if line.rstrip("\n") == SPECIAL_TOKENS[END_OF_TEXT]:
                    flush()
                    if max_chars is not None and n_chars >= max_chars:
                        return documents
                else:
                    lines.append(line)
                    n_chars += len(line)
            flush()
    return documents


def train_tokenizer(documents: Sequence[str], vocab_size: int, max_chars: int) -> Tokenizer:
    """A byte-level BPE over the first ``max_chars`` of the documents; digits stay single."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )

    def sample() -> Iterator[str]:
        left = max_chars
        for document in documents:
            if left <= 0:
                return
            left -= len(document)
            yield document.replace(SPECIAL_TOKENS[END_OF_TURN], "")

    tokenizer.train_from_iterator(sample(), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Sequence[str]) -> list[Tensor]:
    """Ids of each document, int32, without marks at its ends."""
    encoded: list[Tensor] = []
    for i in range(0, len(documents), 10_000):
        batch = tokenizer.encode_batch(list(documents[i : i + 10_000]), add_special_tokens=False)
        encoded += [torch.tensor(e.ids, dtype=torch.int32) for e in batch]
    return encoded


class Batches:
    """Windows over the documents in random order, joined by ``<|endoftext|>``.

    A document's state starts before that mark in half of the cases and after it in the others,
    so that the model knows documents with and without an opening mark.
    """

    def __init__(self, documents: list[Tensor], rows: int, length: int, seed: int) -> None:
        self.documents, self.rows, self.length = documents, rows, length
        self.random = random.Random(seed)
        self.ids = torch.empty(0, dtype=torch.int32)
        self.segments = torch.empty(0, dtype=torch.int32)

    def _shuffle(self) -> None:
        order = self.random.sample(self.documents, len(self.documents))
        mark = torch.tensor([END_OF_TEXT], dtype=torch.int32)
        ids = torch.cat([part for document in order for part in (mark, document)])
        lengths = torch.tensor([len(document) + 1 for document in order])
        starts = lengths.cumsum(0) - lengths
        starts += torch.tensor([self.random.randrange(2) for _ in order])
        begins = torch.zeros_like(ids)
        begins[starts.clamp(max=len(ids) - 1)] = 1
        self.ids = torch.cat([self.ids, ids])
        numbers = begins.cumsum(0, dtype=torch.int32) + (self.segments[-1:].sum() + 1)
        self.segments = torch.cat([self.segments, numbers.int()])

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, documents' numbers and targets: ``[rows, length]`` each."""
        n = self.rows * self.length
        while len(self.ids) <= n:
            self._shuffle()
        shape = (self.rows, self.length)
        batch = self.ids[:n].long().view(shape), self.segments[:n].view(shape)
        targets = self.ids[1 : n + 1].long().view(shape)
        self.ids, self.segments = self.ids[n:], self.segments[n:]
        return *batch, targets
