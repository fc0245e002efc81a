"""What the hash model's ids stand for, so that grammars can be asked of it: one character each."""

from collections.abc import Iterable

from wkvm.engine.grammars import GrammarCompiler
from wkvm.models.base import Model

CHARACTERS = '{}[]":,.-0123456789abcdefghijklmnopqrstuvwxyz '
"""Of the ids from 1 on. What is beyond has no text."""


def grammars_of(model: Model) -> GrammarCompiler:
    token_bytes = [b"", *(one.encode() for one in CHARACTERS)]
    return GrammarCompiler(token_bytes, vocab_size=model.info.vocab_size)


def text_of(ids: Iterable[int]) -> str:
    return "".join([CHARACTERS[token_id - 1] for token_id in ids])
