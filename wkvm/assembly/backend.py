"""What ``complete``, ``chat`` and ``wkvm.LLM`` talk to: a server, or an engine in this process.

Either way it is a client of the binary protocol, on an event loop in a thread of its own.
So the main thread can always be interrupted by Ctrl-C without harm to the connection.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import uvloop
import wkvm_client.aio
from wkvm_client.results import Completion
from wkvm_protocol.messages import HelloOk

from wkvm.core.config import ServerConfig
from wkvm.engine.interface import EngineLike

if TYPE_CHECKING:
    from wkvm.server.serve import MakeStates

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Remote:
    """A server at an address."""

    address: str
    api_key: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Local:
    """An engine in this process, and what makes its durable states; None for none."""

    engine: EngineLike
    states: "MakeStates | None" = None


Place: TypeAlias = Remote | Local


class Answer:
    """The ids of one request as they arrive. For the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrivals = SimpleQueue[list[int] | Completion | BaseException]()
        self._cancel: Callable[[], object] | None = None
        self._completion: Completion | None = None
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[list[int]]:
        """Go through the ids in the portions in which they come, each at least one.

        Raises:
            ClientError: the request failed.
        """
        while self._completion is None:
            if self._error is not None:
                raise self._error
            match self._arrivals.get():
                case Completion() as completion:
                    self._completion = completion
                case BaseException() as error:
                    self._error = error
                case ids:
                    yield ids

    def completion(self) -> Completion:
        """Wait for the end. All ids are in it, also those that were gone through before.

        Raises:
            ClientError: the request failed.
        """
        for _ in self:
            pass
        assert self._completion is not None
        return self._completion

    def cancel(self) -> None:
        """Ask for the end. It comes soon, with reason CANCELLED unless it came by itself."""
        self._loop.call_soon_threadsafe(self._cancel_now)

    def _cancel_now(self) -> None:
        if self._cancel is not None:
            self._cancel()

    async def produce(
        self, client: wkvm_client.aio.Client, prompt: Sequence[int], options: dict[str, Any]
    ) -> None:
        """Send the request and collect what comes. On the loop's thread."""
        try:
            stream = await client.generate(prompt, **options)
            self._cancel = stream.cancel
            while ids := await stream.read():
                self._arrivals.put(ids)
            self._arrivals.put(await stream.completion())
        except BaseException as error:  # noqa: BLE001  it is raised in the main thread
            self._arrivals.put(error)


class Backend:
    """A connected client, made by ``open``. For the main thread.

    ``with`` closes it at the end.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._opened = Future[tuple[wkvm_client.aio.Client, asyncio.AbstractEventLoop]]()
        self._closing = asyncio.Event()
        self._answers = set[asyncio.Task[None]]()
        self._thread = threading.Thread(target=self._work, name="wkvm-client", daemon=True)
        self._thread.start()
        self._client, self._loop = self._opened.result()

    @staticmethod
    def open(place: Place) -> "Backend":
        """Connect.

        Raises:
            ClientError: that failed.
        """
        return Backend(place)

    @property
    def server(self) -> HelloOk:
        """What the server says of itself."""
        return self._client.server

    @property
    def where(self) -> str:
        """Where the model runs, for people."""
        match self._place:
            case Remote(address):
                return f"at {address}"
            case Local():
                return "in this process"

    def close(self) -> None:
        """Close the connection, and end the engine if it is in this process."""
        self._loop.call_soon_threadsafe(self._closing.set)
        if threading.current_thread() is not self._thread:  # where the garbage collector may run
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def generate(self, prompt: Sequence[int], **options: Any) -> Answer:
        """Send a request. What is wrong with it, the answer raises.

        Args:
            prompt: token ids.
            options: as for ``wkvm_client.aio.Client.generate``.
        """
        answer = Answer(self._loop)

        def start() -> None:
            task = asyncio.create_task(answer.produce(self._client, prompt, options))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

        self._loop.call_soon_threadsafe(start)
        return answer

    def run(self, work: Callable[[wkvm_client.aio.Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine with the client, on its loop. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work(self._client), self._loop)

    def _work(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # it is raised in the main thread
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def _main(self) -> None:
        match self._place:
            case Remote(address, api_key, timeout_s):
                await self._talk(
                    wkvm_client.aio.connect(address, api_key=api_key, connect_timeout_s=timeout_s)
                )
            case Local(engine, states):
                await self._host(engine, states)

    async def _host(self, engine: EngineLike, states: "MakeStates | None") -> None:
        """Serve an engine to the client of this process alone."""
        from wkvm.engine.loop import EngineLoop
        from wkvm.server.serve import Server

        engine_loop = EngineLoop(engine)
        service = None if states is None else states(engine_loop)
        config = ServerConfig(binary_port=None)
        server = Server(engine_loop if service is None else service, config, service)
        stepping = asyncio.create_task(engine_loop.run())
        try:
            await self._talk(wkvm_client.aio.over(server.attach))
        finally:
            engine_loop.close()
            await asyncio.wait([stepping])
            await server.close()
            if service is not None:
                await service.close()

    async def _talk(self, connecting: wkvm_client.aio.Client) -> None:
        async with connecting as client:
            self._opened.set_result((client, asyncio.get_running_loop()))
            await self._closing.wait()
