"""The servers that a load is put on: what each is called, how it is spoken to, and where it is."""

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from wkvm_bench import load_binary, load_openai
from wkvm_bench.load import Source

BACKENDS = {
    "wkvm-binary": "tcp://127.0.0.1:8001",
    "openai-completions": "http://127.0.0.1:8000",
    "openai-chat": "http://127.0.0.1:8000",
}
"""Ways to speak to a server, and where one is by default."""
LANES_PER_CONNECTION = 1024
"""A wkvm server's default limit."""
N_WORDS = 2**16
"""Words of a prompt are drawn from so many numbers, of which several are the same word."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server.

    Attributes:
        label: what reports call it; empty for its model and backend.
        backend: one of ``BACKENDS``.
        url: where it is.
    """

    label: str
    backend: str
    url: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Of ``LABEL=BACKEND@URL``.

        Raises:
            argparse.ArgumentTypeError: it is none.
        """
        label, is_labelled, rest = text.partition("=")
        backend, is_placed, url = rest.partition("@")
        if not (label and is_labelled and is_placed and url):
            raise argparse.ArgumentTypeError(f"{text!r} is not LABEL=BACKEND@URL")
        if backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise argparse.ArgumentTypeError(f"{backend!r} is no backend: {known}")
        return cls(label, backend, url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How every target is asked.

    Attributes:
        n_streams: the most requests that are open at a time, to choose the number of connections.
        endpoint, model, more: over HTTP: the path, what to ask for, further fields of a request.
        counts_events: over HTTP: an event with text is an id; usage is not asked for.
        vocab_size: ids of prompts are below it; None is the server's, or words over HTTP.
        n_connections: of the binary protocol.
    """

    n_streams: int = 1
    endpoint: str | None = None
    model: str | None = None
    more: Mapping[str, object] = field(default_factory=dict[str, object])
    vocab_size: int | None = None
    api_key: str | None = None
    temperature: float = 0.8
    top_p: float = 0.9
    ignore_eos: bool = True
    counts_events: bool = False
    timeout_s: float = 600.0
    n_connections: int | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """A server that is connected to.

    Attributes:
        vocab_size: prompts are drawn from so many numbers.
    """

    target: Target
    source: Source
    vocab_size: int


@asynccontextmanager
async def connected(target: Target, asking: Asking) -> AsyncIterator[Connected]:
    """Have connections to a target for the length of a block.

    Raises:
        BenchError: there is no such address, nobody answers there, or it names no model.
    """
    if target.backend == "wkvm-binary":
        async with load_binary.connected(
            target.url,
            n_connections=asking.n_connections or -(-asking.n_streams // LANES_PER_CONNECTION),
            api_key=asking.api_key,
            temperature=asking.temperature,
            top_p=asking.top_p,
            timeout_s=asking.timeout_s,
            ignore_eos=asking.ignore_eos,
        ) as binary:
            yield Connected(target, binary, asking.vocab_size or binary.server.vocab_size)
        return
    async with load_openai.connected(
        target.url,
        model=asking.model,
        vocab_size=asking.vocab_size,
        api_key=asking.api_key,
        temperature=asking.temperature,
        top_p=asking.top_p,
        timeout_s=asking.timeout_s,
        more=asking.more,
        path=asking.endpoint,
        is_chat=target.backend == "openai-chat",
        ignore_eos=asking.ignore_eos,
        counts_events=asking.counts_events,
    ) as openai:
        yield Connected(target, openai, asking.vocab_size or N_WORDS)
