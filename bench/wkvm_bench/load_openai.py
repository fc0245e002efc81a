"""Streams of ``/v1/completions`` and ``/v1/chat/completions``, as OpenAI clients ask for them.

Any server that speaks these is measured alike. What its events say is read when an answer is over.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import msgspec

from wkvm.cli.terminal import on_one_line
from wkvm_bench.figures import Streamed
from wkvm_bench.harness import BenchError
from wkvm_bench.http_stream import Answer, HttpConnection, TooLongError, split

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d{1,15})(?!\d)", re.IGNORECASE)
MAX_MESSAGE = 300
"""Characters of what a server says of an error; some say the whole request."""
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child")
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Usage(msgspec.Struct):
    """The counts that an answer ends with."""

    completion_tokens: _Count
    prompt_tokens: _Count


class _Delta(msgspec.Struct):
    """What an event adds to a chat's answer; servers name what a model thinks in two ways."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None

    def brings_text(self) -> bool:
        """Whether it is of an id of the output."""
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct):
    """The part of an event that brings text."""

    text: str | None = None
    delta: _Delta | None = None

    def brings_text(self) -> bool:
        """Whether it is of an id of the output."""
        return bool(self.text) or (self.delta is not None and self.delta.brings_text())


class _Event(msgspec.Struct):
    """An event of either interface."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class OpenAiSource:
    """Sends every request on a connection of its own, which the next one takes over.

    Args:
        url: of the server.
        vocab_size: sends prompts as ids; None makes as many words of them. Chats are words always.
        timeout_s: how long an answer is waited for.
        more: further fields of each request.
        path: of the interface.
        ignore_eos: asks for outputs of full length, which not every server knows.
        counts_events: takes each event that brings text for an id, and no usage is asked for.
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
        path: str = COMPLETIONS,
        is_chat: bool = False,
        ignore_eos: bool = True,
        counts_events: bool = False,
    ) -> None:
        parts = split(url)
        self._url = url
        base = "" if parts.scheme == "unix" else parts.path.rstrip("/")
        self._base = base.removesuffix("/v1")  # which the path begins with
        self._path, self._is_chat = path, is_chat
        self._as_ids = vocab_size is not None and not is_chat
        self._timeout_s = timeout_s
        self._ignore_eos, self._counts_events = ignore_eos, counts_events
        self._fields: dict[str, object] = {
            "model": model,
            "temperature": temperature,
            "top_p": top_p,
            **({"ignore_eos": True} if ignore_eos else {}),
            "stream": True,
            **({} if counts_events else {"stream_options": {"include_usage": True}}),
            **more,
        }
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        host = parts.netloc or "localhost"
        self._head = f"HTTP/1.1\r\nHost: {host}\r\n{key}"
        self._idle: list[HttpConnection] = []

    async def stream(self, prompt: Sequence[int], n_out: int) -> Streamed:
        """Send a request, and take all of its output."""
        body = msgspec.json.encode({**self._fields, **self._asked(prompt), "max_tokens": n_out})
        request = self._request("POST", self._path, body)
        streamed = Streamed(due_at=time.perf_counter())
        one: HttpConnection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                one = self._take_idle() or await HttpConnection.connect(self._url)
                answer = await one.ask(request)
        except (OSError, BenchError) as error:  # a TimeoutError is an OSError
            streamed.ended_at = time.perf_counter()
            streamed.error = "timeout" if isinstance(error, TimeoutError) else "connection lost"
            if isinstance(error, TooLongError):
                streamed.error = "no end of the answer"
            if isinstance(error, BenchError):
                # It may be this process that has no room for more.
                streamed.error = f"no connection ({error})"
            if one is not None:
                one.close()
            return streamed
        streamed.ended_at = time.perf_counter()
        if self._counts_events:
            read_answer(streamed, answer, None, n_prompt=len(prompt))
        else:
            read_answer(streamed, answer, n_out, may_be_short=not self._ignore_eos)
        self._idle.append(one)
        return streamed

    def _asked(self, prompt: Sequence[int]) -> dict[str, object]:
        if self._as_ids:
            return {"prompt": list(prompt)}
        text = " ".join(_WORDS[i % len(_WORDS)] for i in prompt)
        if self._is_chat:
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}

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
        one: HttpConnection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                one = await HttpConnection.connect(self._url)
                answer = await one.ask(self._request("GET", "/v1/models", b""))
            if why := _message(answer):
                raise BenchError(f"{self._url}: {why}")
            name: str = msgspec.json.decode(answer.body)["data"][0]["id"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise BenchError(f"{self._url} names no model: give one with --model") from error
        finally:
            if one is not None:
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
        head = f"{method} {self._base}{path} {self._head}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode() + body


def read_answer(
    streamed: Streamed,
    answer: Answer,
    n_out: int | None,
    *,
    may_be_short: bool = False,
    n_prompt: int = 0,
) -> None:
    """Enter what an answer says: which of its events brought text, and how many ids there were.

    Args:
        streamed: what is entered into.
        answer: to a request for a stream.
        n_out: how many ids were asked for; None takes each event with text for one, and does not
            look at the answer's usage.
        may_be_short: fewer are no error.
        n_prompt: ids of the prompt, where usage is not looked at.
    """
    if answer.status != "200":
        why, after = _message(answer), _RETRY_AFTER.search(answer.head + b"\r\n")
        status = on_one_line(answer.status)
        streamed.error = f"HTTP {status} ({why})" if why else f"HTTP {status}"
        streamed.retry_after_s = None if after is None else float(after[1])
        return
    usage: _Usage | None = None
    try:
        for at, data in answer.events():
            if data == b"[DONE]":
                continue
            event = _decode_event(data)
            if event.error is not None:
                streamed.error = f"error: {_kind(event.error)}"
                return
            if any(choice.brings_text() for choice in event.choices or ()):
                streamed.arrivals.append(at)
            usage = event.usage or usage
    except (ValueError, RecursionError):  # msgspec's errors are of the former
        streamed.error = "unreadable events"
        return
    if n_out is None:
        streamed.n_ids, streamed.n_prompt = len(streamed.arrivals), n_prompt
        return
    if usage is None:
        # Without it nobody knows how many ids an event had.
        streamed.error = "no usage in the answer (see --count-events)"
        return
    streamed.n_ids, streamed.n_prompt = usage.completion_tokens, usage.prompt_tokens
    is_short = streamed.n_ids < n_out and not may_be_short
    if is_short or streamed.n_ids > n_out:
        streamed.error = "short output" if is_short else "long output"


def _kind(error: object) -> str:
    """The type of an error in a stream, and its code, since a type may be that of many."""
    if not isinstance(error, dict):
        return "unnamed"
    told = [str(one)[:MAX_MESSAGE] for one in (error.get("type"), error.get("code")) if one]
    return on_one_line(", ".join(told) or "unnamed")


def _message(answer: Answer) -> str | None:
    """What an error's body says, where it is one of OpenAI's, or of a server on FastAPI."""
    try:
        said: object = msgspec.json.decode(answer.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    error = said.get("error")
    found = error.get("message") if isinstance(error, dict) else said.get("detail")
    return on_one_line(found[:MAX_MESSAGE]) if isinstance(found, str) else None


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
    path: str | None = None,
    is_chat: bool = False,
    ignore_eos: bool = True,
    counts_events: bool = False,
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
        path=path or (CHAT if is_chat else COMPLETIONS),
        is_chat=is_chat,
        ignore_eos=ignore_eos,
        counts_events=counts_events,
    )
    try:
        if model is None:
            source.use(await source.first_model())
        yield source
    finally:
        source.close()
