"""The choices of one HTTP request: asked for, read side by side, given up together.

Each choice is a lane of its own, so that a stop string that ends one frees its slot at once,
whatever the others do.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from wkvm_client.aio import Client, Stream
from wkvm_client.errors import ClientError
from wkvm_client.results import TokenLogprobs

from wkvm.gateway.streams.pieces import ChoiceText, Finish, Piece, Whole

MAX_CHOICES = 256
"""Of one HTTP request, all its prompts together."""
MAX_WAITING = 1024
"""Ids and log probabilities of a choice that wait for a client that does not read."""


class Lanes:
    """The lanes of one request. ``async with`` cancels what is not over when the block is left.

    Attributes:
        streams: in the order in which they were opened.
        on_leave: called in place of that, if the client has left.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.streams = list[Stream]()
        self.on_leave: Callable[[], None] | None = None

    async def open(
        self, prompt: Sequence[int], keywords: dict[str, Any], *, n: int = 1
    ) -> list[Stream]:
        """Ask for ``n`` choices.

        Args:
            prompt: token ids.
            keywords: of ``Client.generate``, without ``n``.
            n: choices. With a seed, the first has that of ``keywords``, the others have
                seeds that follow from it.

        Returns:
            A stream of one choice for each of them.

        Raises:
            ClientError: as ``Client.generate``.
        """
        seed = keywords.get("seed")
        keywords = {**keywords, "credit": credit_for(keywords)}
        opened = list[Stream]()
        for index in range(n):
            if seed is not None:
                keywords = {**keywords, "seed": seed_of(seed, index)}
            stream = await self._client.generate(prompt, **keywords)
            self.streams.append(stream)
            opened.append(stream)
        return opened

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        has_left = exc is None or isinstance(exc, asyncio.CancelledError | ConnectionError)
        if has_left and self.on_leave is not None:
            self.on_leave()
            return
        for stream in self.streams:
            stream.cancel()


def credit_for(keywords: Mapping[str, Any]) -> int:
    """How many ids of a request may wait for their reader: fewer with log probabilities.

    Two of each choice at least, since choices share them. What is no number the engine refuses.

    Args:
        keywords: of ``Client.generate``.
    """
    n_logprobs, n = keywords.get("logprobs") or 0, keywords.get("n") or 1
    n_waiting = MAX_WAITING // (1 + n_logprobs) if 0 <= n_logprobs < MAX_WAITING else 1
    return max(n_waiting, 2 * n) if 0 < n < MAX_WAITING else n_waiting


async def taken(client: Client, stream: Stream) -> None:
    """Wait until the engine has taken a request, or refused it at once.

    Raises:
        ClientError: it was refused.
    """
    # Refusals come ahead of the answer to a ping that follows the request.
    # Where there is no answer, the stream says so itself.
    with contextlib.suppress(ClientError):
        await client.ping()
    if stream.is_over:
        await stream.choices[0].completion()


def seed_of(seed: int, index: int) -> int:
    """The seed of one of the choices of a request that brings a seed. That of the first is it."""
    if index == 0:
        return seed
    key = seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


class Ready:
    """Which of several choices, by their indices, have something to be read.

    However many do in one step of the engine, who waits for them wakes up once. There is no task
    and, while there are some, no waiting.
    """

    def __init__(self) -> None:
        self._indices = list[int]()
        self._woken: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def note(self, index: int) -> None:
        """A choice has something."""
        self._indices.append(index)
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self) -> list[int]:
        """Those that were noted since the last call; waits for one if there is none."""
        if not self._indices:
            self._woken = self._loop.create_future()
            try:
                await self._woken
            finally:
                self._woken = None
        indices, self._indices = self._indices, []
        return indices


class Arrivals:
    """The pieces of several choices, in the order in which they arrive.

    Args:
        whole: the reader wants no pieces but what the choices are in the end.
    """

    def __init__(self, texts: Sequence[ChoiceText], *, whole: bool = False) -> None:
        self._texts = texts
        self._whole = whole
        self._n_open = len(texts)
        self._ready = Ready()
        for index in range(len(texts)):
            self._watch(index)

    async def read(self) -> list[tuple[int, Piece]]:
        """Wait for something to arrive.

        Returns:
            Which of ``texts`` it is, and its piece, for each that has one; nothing when all
            have had their last.

        Raises:
            ClientError, HttpError: as ``ChoiceText.read``; the other choices go on.
        """
        pieces = list[tuple[int, Piece]]()
        while self._n_open and not pieces:
            for index in await self._ready.wait():
                piece = self._texts[index].take()
                if piece is not None:
                    pieces.append((index, piece))
                    if piece.finish is not None:
                        self._n_open -= 1
                        continue
                self._watch(index)
        return pieces

    def _watch(self, index: int) -> None:
        text = self._texts[index]
        watch = text.call_when_whole if self._whole else text.call_when_ready
        watch(partial(self._ready.note, index))


async def collect(texts: Sequence[ChoiceText]) -> list[Whole]:
    """Everything of all choices, for an answer that is not streamed.

    Raises:
        ClientError, HttpError: as ``ChoiceText.read``; of the first choice that fails.
    """
    arrivals = Arrivals(texts, whole=True)
    parts = [_Parts() for _ in texts]
    while pieces := await arrivals.read():
        for index, piece in pieces:
            parts[index].add(piece)
    return [part.whole() for part in parts]


class _Parts:
    """The pieces of one choice so far."""

    def __init__(self) -> None:
        self._text = list[str]()
        self._ids = list[int]()
        self._logprobs = list[TokenLogprobs]()
        self._finish: Finish | None = None

    def add(self, piece: Piece) -> None:
        self._text.append(piece.text)
        self._ids += piece.ids
        self._logprobs += piece.logprobs
        self._finish = piece.finish

    def whole(self) -> Whole:
        assert self._finish is not None, "the last piece is missing"
        return Whole("".join(self._text), self._ids, self._logprobs, self._finish)
