"""A chat of 40 turns that is sent whole with each, with what is kept of prompts and without.

Two servers of the bundled model are asked over HTTP, one with ``--prefix-cache-bytes 0``. Each turn
sends all messages so far; the other server is sent those of the second and the last turn. The
engine's own counters say how many tokens of prompts it computed; the time to the first token is the
client's. Beside it: 16 choices of one prompt, and three questions about one document that come
together.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec
from aiohttp import ClientSession, UnixConnector
from wkvm_client import aio

from wkvm.assembly.models import BUNDLED
from wkvm_bench.harness import Bar, BenchError, Comparison, Finding
from wkvm_bench.servers import serving

GRID = 64
"""Prompts are cut at multiples of this, and reused up to the last of these before their end."""

N_ANSWER = 24
STORY = (
    "Tell me what happened after that, when {} went out into the garden with {} and found "
    "something small, round and shiny under the old tree beside the wall."
)
RULES = 5 * "You tell it to a child, in short words, and you never say what is sad or frightening. "
"""More than 128 tokens, below which nothing is kept, with what goes before them."""
NAMES = ("Lily", "Tom", "Ben", "Mia", "Sam", "Anna", "Max", "Lucy", "Jack", "Sue", "Tim")


def question(turn: int) -> str:
    """What is asked in a turn: never the same twice in 40 turns."""
    one, other = NAMES[turn % len(NAMES)], NAMES[(turn // len(NAMES) + 3 * turn + 1) % len(NAMES)]
    return f"{turn}. " + STORY.format(one, other)


@dataclass(slots=True)
class Turn:
    """What a turn came to.

    Attributes:
        n_prompt, n_cached: tokens of the prompt, and of these not computed, as the answer says.
        n_computed: tokens of prompts that the engine computed for it, as its counters say.
        first_s: to the first event with text.
    """

    n_prompt: int
    n_cached: int
    n_computed: int
    first_s: float


@dataclass(slots=True)
class Peer:
    """A server, and who asks it."""

    http: ClientSession
    lanes: aio.Client
    model: str
    rounds: list[list[Turn]] = field(default_factory=list[list[Turn]])

    @classmethod
    async def start(
        cls, stack: AsyncExitStack, folder: Path, name: str, flags: Sequence[str]
    ) -> Self:
        """Start a server that ends with ``stack``."""
        http, binary = folder / f"{name}.http", folder / f"{name}.sock"
        await stack.enter_async_context(serving(BUNDLED, binary, [*flags, "--uds", str(http)]))
        lanes = await stack.enter_async_context(await aio.connect(f"unix://{binary}"))
        session = ClientSession("http://localhost", connector=UnixConnector(str(http)))
        await stack.enter_async_context(session)
        return cls(session, lanes, lanes.server.model)

    async def computed(self) -> int:
        """Tokens of prompts that the engine has computed so far."""
        return (await self.lanes.stats())["prompt_tokens_total"]

    async def conversation(self, number: int, n_turns: int, other: "Peer") -> None:
        """Hold a chat of so many turns, in words of its own; ``other`` has two of them, too."""
        messages = [{"role": "system", "content": f"Story {number}. {RULES}"}]
        turns = list[Turn]()
        other.rounds.append([])
        for turn in range(n_turns):
            messages.append({"role": "user", "content": question(turn)})
            is_compared = turn in (1, n_turns - 1)
            if is_compared and number % 2:
                other.rounds[-1].append((await other.turn(messages))[0])
            told, answer = await self.turn(messages)
            if is_compared and not number % 2:
                other.rounds[-1].append((await other.turn(messages))[0])
            messages.append({"role": "assistant", "content": answer})
            turns.append(told)
        self.rounds.append(turns)

    async def turn(self, messages: list[dict[str, str]]) -> tuple[Turn, str]:
        """Ask for an answer to all messages so far."""
        body = self.body(messages) | {"stream": True, "stream_options": {"include_usage": True}}
        before, text = await self.computed(), list[str]()
        began, first_s = time.perf_counter(), 0.0
        usage: dict[str, Any] = {}
        async with self.http.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise BenchError(f"a chat was answered by {response.status}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = msgspec.json.decode(line[6:])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    if content := choice["delta"].get("content"):
                        first_s = first_s or time.perf_counter() - began
                        text.append(content)
        n_computed = await self.computed() - before
        n_cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Turn(usage["prompt_tokens"], n_cached, n_computed, first_s), "".join(text)

    def body(self, messages: Sequence[dict[str, str]], **more: object) -> dict[str, object]:
        """What is asked: greedy, of a certain length."""
        return {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": N_ANSWER,
            "ignore_eos": True,
            **more,
        }

    async def ask(self, *bodies: dict[str, object]) -> tuple[int, list[int]]:
        """Ask several things together.

        Returns:
            How many tokens of prompts were computed for all of them, and how many each has.
        """
        before = await self.computed()

        async def post(body: dict[str, object]) -> int:
            async with self.http.post("/v1/chat/completions", json=body) as response:
                answer = await response.json()
            n_prompt: int = answer["usage"]["prompt_tokens"]
            return n_prompt

        lengths = await asyncio.gather(*map(post, bodies))
        return await self.computed() - before, lengths


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison | Finding]:
    """Run the benchmark. ``n_threads`` are torch's."""
    n_turns, n_rounds, n_lines = (4, 1, 4) if smoke else (40, 7, 60)
    flags = ["--device", "cpu", "--threads", str(n_threads), "--slots", "32"]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = await Peer.start(stack, folder, "kept", flags)
        whole = await Peer.start(stack, folder, "whole", [*flags, "--prefix-cache-bytes", "0"])
        for number in range(-1, n_rounds):  # the first one warms both up
            await kept.conversation(number, n_turns, whole)
        del kept.rounds[0], whole.rounds[0]
        lines = "\n".join(question(n) for n in range(n_lines))
        document = {"role": "system", "content": lines}
        asked = [[document, {"role": "user", "content": question(n)}] for n in (91, 92, 93)]
        together, lengths = await kept.ask(*map(kept.body, asked))
        choices, (n_prompt,) = await kept.ask(kept.body([{"role": "user", "content": lines}], n=16))
    return [
        *_of_turns(kept, whole, n_turns),
        Finding(
            "16 choices of one prompt: tokens computed for each beyond the prompt's own",
            (choices - n_prompt) / 15,
            "tokens",
            Bar(1, at_least=False),
            {"prompt": n_prompt, "computed": choices},
        ),
        Finding(
            "three questions about a document at once: tokens computed, against one",
            together / lengths[0],
            "times as many",
            None,
            {"prompt": lengths[0], "computed": together},
        ),
    ]


def _of_turns(kept: Peer, whole: Peer, n_turns: int) -> list[Comparison | Finding]:
    of_all = [turn for turns in kept.rounds for turn in turns]
    if any(turn.n_computed != turn.n_prompt - turn.n_cached for turn in of_all):
        raise BenchError("an answer says other than what was computed")
    beyond = [
        turn.n_computed - (turn.n_prompt - before.n_prompt)
        for turns in kept.rounds
        for before, turn in pairwise(turns)
    ]
    last = [[turns[-1].first_s * 1e3 for turns in peer.rounds] for peer in (kept, whole)]
    second = [
        [turns[at].first_s * 1e3 for turns in peer.rounds] for peer, at in ((kept, 1), (whole, 0))
    ]
    found: list[Comparison | Finding] = [
        Finding(
            f"{n_turns} turns: tokens that a turn computes beyond its new ones, at most",
            max(beyond),
            "tokens",
            Bar(GRID, at_least=False),
            {
                "median": statistics.median(beyond),
                "computed in a conversation": statistics.median(
                    sum(turn.n_computed for turn in turns) for turns in kept.rounds
                ),
                "all that was sent": statistics.median(
                    sum(turn.n_prompt for turn in turns) for turns in kept.rounds
                ),
                "the last prompt": statistics.median(turns[-1].n_prompt for turns in kept.rounds),
            },
        ),
        Comparison(
            f"first token at turn {n_turns}",
            "kept",
            "computed whole",
            "ms",
            tuple(last[0]),
            tuple(last[1]),
            None,
        ),
    ]
    for name, at_last, at_second in zip(("kept", "computed whole"), last, second, strict=True):
        found.append(
            Finding(
                f"first token at turn {n_turns} against turn 2, {name}",
                statistics.median(at_last) / statistics.median(at_second),
                "times as long",
                Bar(1.2, at_least=False) if name == "kept" else None,
                {"turn 2, ms": statistics.median(at_second)},
            )
        )
    return found
