"""The file of a tokenizer: which one belongs to a model, its digest, and what it is loaded as."""

import hashlib
from pathlib import Path

import msgspec

from wkvm.gateway.errors import CorruptTokenizerError, TokenizerNotFoundError
from wkvm.gateway.text.tokenizer import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    WorldTokenizer,
)
from wkvm.gateway.text.world import read_world_vocabulary

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WORLD_PATTERN = "rwkv_vocab_*.txt"
_NOT_READ = ("tiktoken.model", "tokenizer.model", "vocab.json")
"""Other forms of tokenizers, which the libraries that write them can turn into the first."""
BYTE_TOKENIZER_CLASS = "ByteTokenizer"
"""A ``tokenizer_config.json`` with this ``tokenizer_class`` declares that an id is a byte."""


def find_tokenizer(path: Path) -> Path | None:
    """The tokenizer file that belongs to ``path``.

    Args:
        path: a tokenizer file, a model folder, or a model file with the tokenizer beside it.

    Returns:
        The file, or None if there is none, or no such path.
    """
    if path.name == TOKENIZER_JSON or path.match(WORLD_PATTERN):
        return path if path.is_file() else None
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        return None
    candidates = [folder / TOKENIZER_JSON, *sorted(folder.glob(WORLD_PATTERN))]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    config = folder / TOKENIZER_CONFIG
    return config if _declares_bytes(config) else None


def tokenizer_digest(path: Path) -> str:
    """Hex SHA-256 of the tokenizer file that belongs to ``path``; empty if there is none.

    Much cheaper than loading it.
    """
    file = find_tokenizer(path)
    return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer that belongs to ``path``.

    A ``tokenizer.json`` goes before an RWKV World vocabulary (``rwkv_vocab_*.txt``, to be
    put beside a model's weights), and that before a declaration that ids are bytes.

    Args:
        path: a tokenizer file, a model folder, or a model file with the tokenizer beside it.

    Raises:
        TokenizerNotFoundError: there is none.
        CorruptTokenizerError: its file cannot be read.
        UnsupportedTokenizerError: it is of a kind whose ids cannot be turned into bytes.
    """
    file = find_tokenizer(path)
    if file is None:
        raise TokenizerNotFoundError(str(path), _why_none(path))
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if file.name == TOKENIZER_CONFIG:
        return ByteTokenizer(digest)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CorruptTokenizerError(str(file), f"not UTF-8: {error}") from error
    if file.name == TOKENIZER_JSON:
        return HuggingFaceTokenizer(text, str(file), digest)
    return WorldTokenizer(read_world_vocabulary(text, str(file)), digest)


def _why_none(path: Path) -> str:
    """Why no tokenizer belongs to ``path``."""
    if not path.exists():
        return "no such path"
    folder = path if path.is_dir() else path.parent
    other = next((name for name in _NOT_READ if (folder / name).is_file()), None)
    why = "no tokenizer file there"
    if other is not None:
        why += f", and {other} is not read: put a {TOKENIZER_JSON} made of it there"
    return why


class _TokenizerConfig(msgspec.Struct):
    tokenizer_class: str | None = None


def _declares_bytes(config: Path) -> bool:
    try:
        content = msgspec.json.decode(config.read_bytes(), type=_TokenizerConfig)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return False
    return content.tokenizer_class == BYTE_TOKENIZER_CLASS
