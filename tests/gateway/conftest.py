"""Tokenizers that the tests of the text layer share; the event loop is the one that serves."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from wkvm.gateway.text import Tokenizer, load_tokenizer

BUNDLED = Path(__file__).parents[2] / "wkvm" / "bundled" / "rwkv7-tinystories"


def pytest_asyncio_loop_factories(
    config: Any, item: Any
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    del config, item
    return {"uvloop": uvloop.new_event_loop}


WORLD_TOKENS = [
    *[bytes((byte,)) for byte in range(256)],
    b"\n\n",
    b" th",
    b" the",
    b"User",
    b"ab",
    b"abcd",
    "한".encode(),
    "한".encode()[:2],
    "\u2028x".encode(),
    b"it's",
    b"\\n",
]


def world_file(folder: Path, lines: list[str] | None = None) -> Path:
    """Write a small vocabulary file in the format of the RWKV World models."""
    if lines is None:
        lines = []
        for token_id, token in enumerate(WORLD_TOKENS, start=1):
            try:
                literal = repr(token.decode())
            except UnicodeDecodeError:
                literal = repr(token)
            lines.append(f"{token_id} {literal} {len(token)}")
    path = folder / "rwkv_vocab_v20230424.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


@pytest.fixture(scope="session")
def bundled() -> Tokenizer:
    return load_tokenizer(BUNDLED)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(world_file(tmp_path_factory.mktemp("world")))
