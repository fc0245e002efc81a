"""Long texts take memory while they are worked on, and not after it."""

import os
import platform
from pathlib import Path

import pytest

from wkvm.assembly.models import BUNDLED
from wkvm.gateway.offload import Offload
from wkvm.gateway.text import load_tokenizer

MIB = 2**20


def resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is freed is not kept there")
async def test_what_a_long_text_took_on_the_way_is_given_back() -> None:
    tokenizer, offload = load_tokenizer(BUNDLED), Offload()
    text = "the sun and a dog ran " * (MIB // 22)

    async def n_tokens() -> int:
        return await offload.run(lambda: len(tokenizer.encode(text)), size=len(text))

    tokenizer.encode("the sun")
    before = resident()
    assert await n_tokens() > 200_000  # some 90 MiB on the way
    assert resident() - before < 32 * MIB
