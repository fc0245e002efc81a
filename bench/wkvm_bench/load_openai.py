"""Streams of ``/v1/completions``, as OpenAI clients ask for them.

Events are counted as they come; what they say is read when the answer is over.
"""

import asyncio
import re
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Annotated, Any, Self, TypeAlias, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from wkvm_bench.harness import BenchError
from wkvm_bench.load import Streamed

_EVENT = b"data: "
_N_CARRIED = len(_EVENT) - 1
_END = b"\n0\r\n\r\n"
"""Of a body in chunks: the end of the last chunk, and an empty one."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})(?!\d)", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d{1,15})(?!\d)", re.IGNORECASE)
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_NO_ADDRESS = "{} is neither http://HOST:PORT nor unix:///PATH"
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child")


class _Usage(msgspec.Struct):
    """The counts that an answer ends with."""

    completion_tokens: _Count
    prompt_tokens: _Count


class HttpConnection(asyncio.Protocol):
    """Sends one request after the other, and notes when events come.

    Attributes:
        arrivals: when each event of the last response came.
    """

    def __init__(self) -> None:
        self.arrivals: array[float] = array("d")
        self._parts: list[bytes] = []
        self._carried = self._tail = b""
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.is_open = False

    @classmethod
    async def connect(cls, url: str) -> Self:
        """A connection to ``http://HOST:PORT`` or ``unix:///PATH``.

        Raises:
            BenchError: it is neither, or nobody answers there.
        """
        loop, parts = asyncio.get_running_loop(), _split(url)
        try:
            if parts.scheme == "unix":
                _, one = await loop.create_unix_connection(cls, parts.path)
            elif parts.scheme == "http" and parts.hostname:
                _, one = await loop.create_connection(cls, parts.hostname, parts.port or 80)
            else:
                raise BenchError(_NO_ADDRESS.format(url))
        except OSError as error:
            raise BenchError(f"{url}: {error.strerror or error}") from error
        return one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # Not an isinstance: uvloop's unix transports are no asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Count events, and see whether the response is over."""
        now = time.perf_counter()
        self._parts.append(data)
        seen = self._carried + data
        for _ in range(seen.count(_EVENT)):
            self.arrivals.append(now)
        self._carried = seen[-_N_CARRIED:]
        self._tail = (self._tail + data)[-len(_END) :]
        if self._done is not None and not self._done.done() and self._is_over():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the response that is under way."""
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError())

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> bytes:
        """Send a request, and return all that came in answer.

        Raises:
            OSError: the server closed the connection.
        """
        self._parts, self.arrivals = [], array("d")
        self._carried = self._tail = b""
        self._done = done = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.is_open:
            raise ConnectionResetError
        self._transport.write(request)
        await done
        return b"".join(self._parts)

    def _is_over(self) -> bool:
        if self.arrivals:
            return self._tail == _END
        return _is_whole(b"".join(self._parts))


class OpenAiSource:
    """Sends every request on a connection of its own, which the next one takes over.

    Args:
        url: of the server.
        vocab_size: sends prompts as ids; None makes as many words of them.
        timeout_s: how long an answer is waited for.
        more: further fields of each request.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        vocab_size: int | None,
        api_key: str | None,
        temperature: float,
        top_p: float,
        timeout_s: float,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._url = url
        self._as_ids = vocab_size is not None
        self._timeout_s = timeout_s
        self._fields = {
            "model": model,
            "temperature": temperature,
            "top_p": top_p,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        host = _split(url).netloc or "localhost"
        self._head = f"HTTP/1.1\r\nHost: {host}\r\n{key}"
        self._idle: list[HttpConnection] = []

    async def stream(self, prompt: Sequence[int], n_out: int) -> Streamed:
        """Send a request, and take all of its output."""
        text = list(prompt) if self._as_ids else " ".join(_WORDS[i % len(_WORDS)] for i in prompt)
        body = msgspec.json.encode({**self._fields, "prompt": text, "max_tokens": n_out})
        request = self._request("POST", "/v1/completions", body)
        streamed = Streamed(due_at=time.perf_counter())
        one: HttpConnection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                one = self._take_idle() or await HttpConnection.connect(self._url)
                data = await one.ask(request)
        except (OSError, BenchError) as error:  # a TimeoutError is an OSError
            streamed.ended_at = time.perf_counter()
            streamed.error = "timeout" if isinstance(error, TimeoutError) else "connection lost"
            if one is not None:
                one.close()
            return streamed
        streamed.ended_at = time.perf_counter()
        read_answer(streamed, data, one.arrivals, n_out)
        self._idle.append(one)
        return streamed

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            one = self._idle.pop()
            if one.is_open:
                return one
        return None

    async def first_model(self) -> str:
        """The name of the first model that the server has.

        Raises:
            BenchError: it names none, or refuses to.
        """
        one = await HttpConnection.connect(self._url)
        try:
            async with asyncio.timeout(self._timeout_s):
                data = await one.ask(self._request("GET", "/v1/models", b""))
            if why := _message(data):
                raise BenchError(f"{self._url}: {why}")
            name: str = msgspec.json.decode(data.partition(b"\r\n\r\n")[2])["data"][0]["id"]
        except (OSError, TimeoutError, msgspec.MsgspecError, LookupError, TypeError) as error:
            raise BenchError(f"{self._url} names no model: give one with --model") from error
        finally:
            one.close()
        return name

    @property
    def model(self) -> str:
        """The name of what is asked for."""
        return str(self._fields["model"])

    def use(self, model: str) -> None:
        """Ask for this model from now on."""
        self._fields["model"] = model

    def close(self) -> None:
        """Close all connections."""
        for one in self._idle:
            one.close()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {path} {self._head}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode() + body


def read_answer(streamed: Streamed, data: bytes, arrivals: "array[float]", n_out: int) -> None:
    """Enter what an answer says: which of its events brought text, and how many ids there were."""
    status = data[9:12].decode("ascii", "replace")
    if status != "200":
        why, after = _message(data), _RETRY_AFTER.search(data)
        streamed.error = f"HTTP {status} ({why})" if why else f"HTTP {status}"
        streamed.retry_after_s = None if after is None else float(after[1])
        return
    lines = [line[len(_EVENT) :] for line in data.split(b"\n") if line.startswith(_EVENT)]
    usage: dict[str, Any] = {}
    try:
        for at, line in zip(arrivals, lines, strict=True):
            if line.strip() == b"[DONE]":
                continue
            event = msgspec.json.decode(line)
            if "error" in event:
                streamed.error = f"error: {event['error'].get('type', 'unnamed')}"
                return
            if any(choice.get("text") for choice in event["choices"]):
                streamed.arrivals.append(at)
            usage = event.get("usage") or usage
        counts = msgspec.convert(usage, _Usage)
    except (ValueError, LookupError, TypeError, AttributeError, msgspec.MsgspecError):
        streamed.error = "unreadable events"
        return
    streamed.n_ids, streamed.n_prompt = counts.completion_tokens, counts.prompt_tokens
    if streamed.n_ids != n_out:
        streamed.error = "short output"


def _split(url: str) -> SplitResult:
    """The parts of an address.

    Raises:
        BenchError: it is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise BenchError(_NO_ADDRESS.format(url)) from error
    return parts


def _message(data: bytes) -> str | None:
    """What an error's body says, where it is one of OpenAI's."""
    try:
        message: object = msgspec.json.decode(data.partition(b"\r\n\r\n")[2])["error"]["message"]
    except (ValueError, LookupError, TypeError, msgspec.MsgspecError):
        return None
    return message if isinstance(message, str) else None


def _is_whole(data: bytes) -> bool:
    """Whether this is all of an answer without events."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return False
    length = _LENGTH.search(head)
    return body.endswith(b"0\r\n\r\n") if length is None else len(body) >= int(length[1])


@asynccontextmanager
async def connected(
    url: str,
    *,
    model: str | None,
    vocab_size: int | None,
    api_key: str | None,
    temperature: float,
    top_p: float,
    timeout_s: float,
    more: Mapping[str, object] = MappingProxyType({}),
) -> AsyncIterator[OpenAiSource]:
    """Have connections to a server for the length of a block.

    Raises:
        BenchError: there is no such address, nobody answers there, or it names no model.
    """
    source = OpenAiSource(
        url,
        model=model or "",
        vocab_size=vocab_size,
        api_key=api_key,
        temperature=temperature,
        top_p=top_p,
        timeout_s=timeout_s,
        more=more,
    )
    try:
        if model is None:
            source.use(await source.first_model())
        yield source
    finally:
        source.close()
