"""One set of verbs for both clients, so that one script of requests runs on each.

The blocking client runs in a thread, the server in the loop. Each verb is one call of
the client.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import wkvm_client
from wkvm_client import aio

T = TypeVar("T")


class Driver(Protocol):
    client: Any

    async def connect(self, address: str, **options: Any) -> None: ...
    async def from_socket(self, sock: socket.socket, **options: Any) -> None: ...
    async def generate(self, prompt: Any, **options: Any) -> Any: ...
    async def read(self, stream: Any) -> list[int]: ...
    async def take(self, stream: Any, n: int | None = None) -> list[int]:
        """Loop over a stream, and break out after ``n`` ids."""
        ...

    async def iterate(self, stream: Any) -> "Steps": ...
    async def completion(self, stream: Any) -> wkvm_client.Completion: ...
    async def completions(self, stream: Any) -> list[wkvm_client.Completion]: ...
    async def cancel(self, stream: Any) -> None: ...
    async def leave(self, stream: Any) -> None:
        """Enter and leave a ``with`` block."""
        ...

    async def score(self, ids: Any, **options: Any) -> list[wkvm_client.TokenLogprobs]: ...
    async def embed(self, ids: Any, **options: Any) -> list[float]: ...
    async def states(
        self, operation: str, *args: Any, within: float | None = 60.0, **options: Any
    ) -> Any:
        """Call a method of ``client.states``."""
        ...

    async def do(self, on: Any, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of something that the client made."""
        ...

    async def exported(self, state: str, n: int | None = None) -> list[bytes]:
        """Loop over an export, and break out after ``n`` parts."""
        ...

    async def interrupt(self, stream: Any, keep: int | None = None) -> None: ...
    async def ping(self, **options: Any) -> float: ...
    async def stats(self, **options: Any) -> dict[str, int]: ...
    async def close_client(self) -> None: ...
    async def close(self) -> None: ...


class Steps(Protocol):
    """An iteration that is driven by hand."""

    async def next(self) -> int | None: ...


class AioSteps:
    def __init__(self, stream: aio.Stream) -> None:
        self._iterator = aiter(stream)

    async def next(self) -> int | None:
        return await anext(self._iterator, None)


class AioDriver:
    client: aio.Client

    def __init__(self) -> None:
        self._clients: list[aio.Client] = []

    async def connect(self, address: str, **options: Any) -> None:
        self.client = await aio.connect(address, **options)
        self._clients.append(self.client)

    async def from_socket(self, sock: socket.socket, **options: Any) -> None:
        self.client = await aio.from_socket(sock, **options)
        self._clients.append(self.client)

    async def over(self, attach: aio.Attach, **options: Any) -> None:
        self.client = await aio.over(attach, **options)
        self._clients.append(self.client)

    async def generate(self, prompt: Any, **options: Any) -> aio.Stream:
        return await self.client.generate(prompt, **options)

    async def read(self, stream: aio.Stream) -> list[int]:
        return await stream.read()

    async def take(self, stream: aio.Stream, n: int | None = None) -> list[int]:
        ids: list[int] = []
        async for token_id in stream:
            ids.append(token_id)
            if len(ids) == n:
                break
        return ids

    async def iterate(self, stream: aio.Stream) -> AioSteps:
        return AioSteps(stream)

    async def completion(self, stream: aio.Stream) -> wkvm_client.Completion:
        return await stream.completion()

    async def completions(self, stream: aio.Stream) -> list[wkvm_client.Completion]:
        return await stream.completions()

    async def cancel(self, stream: aio.Stream) -> None:
        stream.cancel()

    async def leave(self, stream: aio.Stream) -> None:
        async with stream:
            pass

    async def score(self, ids: Any, **options: Any) -> list[wkvm_client.TokenLogprobs]:
        return await self.client.score(ids, **options)

    async def embed(self, ids: Any, **options: Any) -> list[float]:
        return await self.client.embed(ids, **options)

    async def states(
        self, operation: str, *args: Any, within: float | None = 60.0, **options: Any
    ) -> Any:
        return await getattr(self.client.states.within(within), operation)(*args, **options)

    async def do(self, on: Any, method: str, *args: Any, **options: Any) -> Any:
        name = {"close": "aclose"}.get(method, method)
        return await getattr(on, name)(*args, **options)

    async def exported(self, state: str, n: int | None = None) -> list[bytes]:
        parts: list[bytes] = []
        async for data in await self.client.states.export(state):
            parts.append(data)
            if len(parts) == n:
                break
        return parts

    async def interrupt(self, stream: aio.Stream, keep: int | None = None) -> None:
        stream.interrupt(keep)

    async def ping(self, **options: Any) -> float:
        return await self.client.ping(**options)

    async def stats(self, **options: Any) -> dict[str, int]:
        return await self.client.stats(**options)

    async def close_client(self) -> None:
        await self.client.aclose()

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


class BlockingSteps:
    def __init__(self, iterator: Iterator[int], call: "BlockingDriver") -> None:
        self._iterator = iterator
        self._driver = call

    async def next(self) -> int | None:
        return await self._driver.call(lambda: next(self._iterator, None))


class BlockingDriver:
    client: wkvm_client.Client

    def __init__(self) -> None:
        self._clients: list[wkvm_client.Client] = []
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def connect(self, address: str, **options: Any) -> None:
        self.client = await self.call(lambda: wkvm_client.connect(address, **options))
        self._clients.append(self.client)

    async def from_socket(self, sock: socket.socket, **options: Any) -> None:
        self.client = await self.call(lambda: wkvm_client.from_socket(sock, **options))
        self._clients.append(self.client)

    async def generate(self, prompt: Any, **options: Any) -> wkvm_client.Stream:
        return await self.call(lambda: self.client.generate(prompt, **options))

    async def read(self, stream: wkvm_client.Stream) -> list[int]:
        return await self.call(stream.read)

    async def take(self, stream: wkvm_client.Stream, n: int | None = None) -> list[int]:
        def loop() -> list[int]:
            ids: list[int] = []
            for token_id in stream:
                ids.append(token_id)
                if len(ids) == n:
                    break
            return ids

        return await self.call(loop)

    async def iterate(self, stream: wkvm_client.Stream) -> BlockingSteps:
        return BlockingSteps(iter(stream), self)

    async def completion(self, stream: wkvm_client.Stream) -> wkvm_client.Completion:
        return await self.call(stream.completion)

    async def completions(self, stream: wkvm_client.Stream) -> list[wkvm_client.Completion]:
        return await self.call(stream.completions)

    async def cancel(self, stream: wkvm_client.Stream) -> None:
        await self.call(stream.cancel)

    async def leave(self, stream: wkvm_client.Stream) -> None:
        def block() -> None:
            with stream:
                pass

        await self.call(block)

    async def score(self, ids: Any, **options: Any) -> list[wkvm_client.TokenLogprobs]:
        return await self.call(lambda: self.client.score(ids, **options))

    async def embed(self, ids: Any, **options: Any) -> list[float]:
        return await self.call(lambda: self.client.embed(ids, **options))

    async def states(
        self, operation: str, *args: Any, within: float | None = 60.0, **options: Any
    ) -> Any:
        method = getattr(self.client.states.within(within), operation)
        return await self.call(lambda: method(*args, **options))

    async def do(self, on: Any, method: str, *args: Any, **options: Any) -> Any:
        return await self.call(lambda: getattr(on, method)(*args, **options))

    async def exported(self, state: str, n: int | None = None) -> list[bytes]:
        def loop() -> list[bytes]:
            parts: list[bytes] = []
            for data in self.client.states.export(state):
                parts.append(data)
                if len(parts) == n:
                    break
            return parts

        return await self.call(loop)

    async def interrupt(self, stream: wkvm_client.Stream, keep: int | None = None) -> None:
        await self.call(lambda: stream.interrupt(keep))

    async def ping(self, **options: Any) -> float:
        return await self.call(lambda: self.client.ping(**options))

    async def stats(self, **options: Any) -> dict[str, int]:
        return await self.call(lambda: self.client.stats(**options))

    async def close_client(self) -> None:
        await self.call(self.client.close)

    async def close(self) -> None:
        for client in self._clients:
            await self.call(client.close)
        self._thread.shutdown()
