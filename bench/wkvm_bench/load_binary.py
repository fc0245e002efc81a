"""Streams over the binary protocol, by ``wkvm_client``: many lanes on few connections."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle

import wkvm_client.aio
from wkvm_client.aio import Client
from wkvm_client.errors import ClientError, RequestError
from wkvm_protocol.messages import EndReason

from wkvm.cli.terminal import on_one_line
from wkvm_bench.figures import Streamed
from wkvm_bench.harness import BenchError

FULL = frozenset({EndReason.LENGTH, EndReason.STOP})


class BinarySource:
    """Sends every request on the next of its connections.

    Args:
        clients: connected.
        temperature, top_p: of every request. The random numbers are the server's choice.
        timeout_s, priority: of every request.
        ignore_eos: asks for outputs of full length; one that is shorter is an error then.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        *,
        temperature: float,
        top_p: float,
        timeout_s: float,
        priority: int = 0,
        ignore_eos: bool = True,
    ) -> None:
        self._first, self._clients = clients[0], cycle(clients)
        self._temperature = temperature
        self._top_p = top_p
        self._timeout_s = timeout_s
        self._priority = priority
        self._ignore_eos = ignore_eos
        self.server = clients[0].server

    @property
    def model(self) -> str:
        """The name of what is served."""
        return self.server.model

    async def stats(self) -> dict[str, int]:
        """The server's counters."""
        return await self._first.stats()

    async def stream(self, prompt: Sequence[int], n_out: int) -> Streamed:
        """Send a request, and take all of its output.

        An id costs an append, whatever else happens when the request is over.
        """
        client = next(self._clients)
        clock = time.perf_counter
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        streamed = Streamed(due_at=clock())
        arrivals = streamed.arrivals
        try:
            stream = await client.generate(
                prompt,
                temperature=self._temperature,
                top_p=self._top_p,
                max_tokens=n_out,
                ignore_eos=self._ignore_eos,
                credit=None,
                timeout_s=self._timeout_s,
                priority=self._priority,
            )
            choice = stream.choices[0]

            def arrived() -> None:
                now = clock()
                try:
                    for _ in choice.take():
                        arrivals.append(now)
                except ClientError:
                    pass  # ``completion`` says so
                if choice.is_over and not done.done():
                    done.set_result(None)

            choice.watch(arrived)
            await done
            streamed.ended_at = clock()
            completion = await choice.completion()
        except ClientError as error:
            streamed.ended_at = clock()
            streamed.retry_after_s = error.retry_after_ms / 1000 or None
            kind = type(error).__name__
            # Only these say the same of every request, and only they need explaining.
            why = f"{kind} ({error})" if isinstance(error, RequestError) else kind
            streamed.error = on_one_line(why)
            return streamed
        streamed.n_ids, streamed.n_prompt = completion.n_output, completion.n_prompt
        if completion.reason not in FULL:
            streamed.error = f"ended: {completion.reason}"
        elif self._ignore_eos and completion.n_output != n_out:
            streamed.error = "short output"
        elif len(arrivals) != completion.n_output:
            streamed.error = "miscounted output"
        return streamed


@asynccontextmanager
async def connected(
    address: str,
    *,
    n_connections: int = 1,
    api_key: str | None = None,
    temperature: float = 0.8,
    top_p: float = 0.9,
    timeout_s: float = 60.0,
    priority: int = 0,
    ignore_eos: bool = True,
) -> AsyncIterator[BinarySource]:
    """Connect to a server for the length of a block.

    Raises:
        BenchError: there is no such address, or nobody answers there.
    """
    async with AsyncExitStack() as stack:
        try:
            clients = [
                await stack.enter_async_context(
                    wkvm_client.aio.connect(address, api_key=api_key, reconnect=False)
                )
                for _ in range(n_connections)
            ]
        except ClientError as error:
            raise BenchError(on_one_line(str(error))) from error
        yield BinarySource(
            clients,
            temperature=temperature,
            top_p=top_p,
            timeout_s=timeout_s,
            priority=priority,
            ignore_eos=ignore_eos,
        )
