"""The gateway's peer: a chat endpoint on FastAPI and uvicorn, built the way vLLM builds its own.

What it has in common with vLLM: pydantic models for the request and for every chunk, which note
unknown fields; chunks written by ``model_dump_json(exclude_unset=True)``; a ``StreamingResponse``
over an async generator over another one, fed through a collector with an ``asyncio.Event`` for
each request; a task that decodes the text of all requests of a step and fills their collectors;
an engine behind a socket, whose steps come as msgpack; prompts that wait up to 2 ms
to be tokenized together, in a thread; a watch for the client's going around the handler; uvloop and
httptools.

What it leaves out, in its own favour: vLLM's access log, middleware, metrics, tracing, the parsers
of tools and reasoning, ZeroMQ and its threads. Its engine shares process and loop, as the gateway's
does, and texts are encoded and decoded by the same code.
"""

import asyncio
import functools
import gc
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from wkvm.gateway.text import IncrementalDecoder
from wkvm.gateway.text.tokenizer import Tokenizer
from wkvm.gateway.texts import Texts
from wkvm_bench.fastapi_bodies import ChatRequest, DeltaMessage, StreamChoice, StreamChunk
from wkvm_bench.null_engine import VOCAB_SIZE
from wkvm_bench.null_texts import null_texts

N_TURNS = 1
"""Of the loop between two steps: with fewer, outputs come so fast that a collector joins them."""

FINGERPRINT = "fp_000000000000"
MAX_BATCH = 32
BATCH_WAIT_S = 0.002
"""How many prompts vLLM tokenizes together, and how long it waits for them."""


@dataclass(slots=True)
class _Output:
    """What a step brings to one request."""

    text: str
    token_ids: list[int]
    finish_reason: str | None


class _Collector:
    """Hands outputs to whoever waits for them; one that is not taken in time is added to."""

    def __init__(self) -> None:
        self._output: _Output | None = None
        self._ready = asyncio.Event()

    def put(self, output: _Output) -> None:
        held = self._output
        if held is None:
            self._output = output
        else:
            self._output = _Output(
                held.text + output.text, held.token_ids + output.token_ids, output.finish_reason
            )
        self._ready.set()

    def get_nowait(self) -> _Output | None:
        output, self._output = self._output, None
        if output is not None:
            self._ready.clear()
        return output

    async def get(self) -> _Output:
        while (output := self.get_nowait()) is None:
            await self._ready.wait()
        return output


class _CoreOutput(msgspec.Struct, array_like=True):
    """What a step of the engine brings to one request, as it crosses the border."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None


@dataclass(slots=True)
class _Row:
    next_id: int
    n_left: int


class _NullCore:
    """The engine: gives every request one id a step, as the null engine does."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._rows = dict[str, _Row]()
        self._wake = asyncio.Event()

    def add(self, request_id: str, row: _Row) -> None:
        """Take a request."""
        self._rows[request_id] = row
        self._wake.set()

    def abort(self, request_id: str) -> None:
        """Forget a request, if it has not ended."""
        self._rows.pop(request_id, None)

    async def run(self) -> None:
        """Run steps, each when what the last one brought is on its way to HTTP clients."""
        encoder = msgspec.msgpack.Encoder()
        while True:
            if not self._rows:
                self._wake.clear()
                await self._wake.wait()
            outputs = list[_CoreOutput]()
            for request_id, row in list(self._rows.items()):
                token_id = row.next_id
                row.next_id = (token_id + 1) % VOCAB_SIZE
                row.n_left -= 1
                reason = None if row.n_left else "length"
                outputs.append(_CoreOutput(request_id, [token_id], reason))
                if reason is not None:
                    del self._rows[request_id]
            data = encoder.encode(outputs)
            self._write(len(data).to_bytes(4, "little") + data)
            for _ in range(N_TURNS):
                await asyncio.sleep(0)


class _Border(asyncio.Protocol):
    """Cuts what comes from the engine into steps."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(list[_CoreOutput])
        self.steps = asyncio.Queue[list[_CoreOutput]]()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            end = 4 + int.from_bytes(buffer[:4], "little")
            if len(buffer) < end:
                return
            self.steps.put_nowait(self._decoder.decode(memoryview(buffer)[4:end].tobytes()))
            del buffer[:end]


@dataclass(slots=True)
class _Live:
    decoder: IncrementalDecoder
    collector: _Collector = field(default_factory=_Collector)


class _AsyncEngine:
    """The engine's front: requests out, and outputs to whoever waits for them."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._live = dict[str, _Live]()
        self._tasks = list[asyncio.Task[None]]()

    async def start(self) -> None:
        """Connect to the engine and run it."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        _, border = await loop.create_connection(_Border, sock=ours)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=theirs)
        self._core = _NullCore(transport.write)
        self._tasks += [
            asyncio.create_task(self._core.run()),
            asyncio.create_task(self._hand_out(border)),
        ]

    async def generate(
        self, request_id: str, prompt: list[int], max_tokens: int
    ) -> AsyncGenerator[_Output, None]:
        """The outputs of a request; ends with it."""
        live = self._live[request_id] = _Live(IncrementalDecoder(self._texts.tokenizer))
        self._core.add(request_id, _Row(prompt[-1] + 1, max_tokens))
        collector = live.collector
        try:
            is_over = False
            while not is_over:
                output = collector.get_nowait() or await collector.get()
                is_over = output.finish_reason is not None
                yield output
        finally:
            self._live.pop(request_id, None)
            self._core.abort(request_id)

    async def _hand_out(self, border: _Border) -> None:
        while True:
            for one in await border.steps.get():
                live = self._live.get(one.request_id)
                if live is not None:
                    text = live.decoder.feed(one.new_token_ids)
                    live.collector.put(_Output(text, one.new_token_ids, one.finish_reason))


async def _chunks(
    outputs: AsyncGenerator[_Output, None], request_id: str, model: str
) -> AsyncGenerator[str, None]:
    """The events of a response, cut as the gateway cuts them: role, texts, end."""
    created, is_first = int(time.time()), True

    def event(delta: DeltaMessage, finish_reason: str | None) -> str:
        choice = StreamChoice(index=0, delta=delta, logprobs=None, finish_reason=finish_reason)
        chunk = StreamChunk(
            id=request_id,
            object="chat.completion.chunk",
            created=created,
            choices=[choice],
            model=model,
            system_fingerprint=FINGERPRINT,
        )
        return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"

    async for output in outputs:
        if is_first:
            is_first = False
            yield event(DeltaMessage(role="assistant", content=""), None)
        yield event(DeltaMessage(content=output.text), None)
        if output.finish_reason is not None:
            yield event(DeltaMessage(), output.finish_reason)
    yield "data: [DONE]\n\n"


class _BatchingTokenizer:
    """Encodes prompts in a thread, up to 32 at a time: it waits a little for more of them."""

    def __init__(self, tokenizer: Tokenizer, wait_s: float) -> None:
        self._tokenizer = tokenizer
        self._wait_s = wait_s
        self._queue = asyncio.Queue[tuple[str, asyncio.Future[list[int]]]]()
        self._threads = ThreadPoolExecutor(max_workers=1)

    async def encode(self, text: str) -> list[int]:
        """The ids of a prompt."""
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        await self._queue.put((text, done))
        return await done

    async def run(self) -> None:
        """Serve ``encode``."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            deadline = loop.time() + self._wait_s
            while len(batch) < MAX_BATCH and (left := deadline - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self._queue.get(), left))
                except TimeoutError:
                    break
            texts = [text for text, _ in batch]
            ids = await loop.run_in_executor(self._threads, self._encode, texts)
            for (_, done), one in zip(batch, ids, strict=True):
                if not done.done():
                    done.set_result(one)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [self._tokenizer.encode(text) for text in texts]


def _or_gone(
    handler: Callable[..., Coroutine[Any, Any, StreamingResponse]],
) -> Callable[..., Coroutine[Any, Any, StreamingResponse | None]]:
    """Give a handler up when the client goes, as long as it has not answered."""

    @functools.wraps(handler)
    async def watched(body: ChatRequest, raw: Request) -> StreamingResponse | None:
        handling = asyncio.create_task(handler(body, raw))
        watching = asyncio.create_task(_gone(raw))
        done, pending = await asyncio.wait(
            [handling, watching], return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        return handling.result() if handling in done else None

    return watched


async def _gone(raw: Request) -> None:
    while (await raw.receive())["type"] != "http.disconnect":
        pass


def _build_app(texts: Texts, tokenizer: _BatchingTokenizer, engine: _AsyncEngine) -> FastAPI:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    @_or_gone
    async def chat(body: ChatRequest, raw: Request) -> StreamingResponse:
        del raw
        request_id = f"chatcmpl-{body.request_id}"
        prompt = await tokenizer.encode(texts.template.render(body.messages))
        outputs = engine.generate(request_id, prompt, body.max_tokens or texts.default_max_tokens)
        chunks = _chunks(outputs, request_id, body.model or "")
        return StreamingResponse(chunks, media_type="text/event-stream")

    return app


async def serve(path: str, *, batch_wait_s: float) -> None:
    """Serve on a unix socket until told to stop.

    Args:
        path: of the socket.
        batch_wait_s: how long a prompt waits for others to be tokenized with; ``BATCH_WAIT_S``
            as in vLLM.
    """
    texts = null_texts()
    tokenizer = _BatchingTokenizer(texts.tokenizer, batch_wait_s)
    encoding = asyncio.create_task(tokenizer.run())
    engine = _AsyncEngine(texts)
    await engine.start()
    config = uvicorn.Config(
        _build_app(texts, tokenizer, engine),
        uds=path,
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
    )
    # As vLLM's server does once it is set up, and wkvm's.
    gc.collect()
    gc.freeze()
    await uvicorn.Server(config).serve()
    encoding.cancel()
