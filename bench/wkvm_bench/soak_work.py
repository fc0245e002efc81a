"""What a soak asks of a server: requests of every kind over both doors, and moves of states."""

import asyncio
import itertools
import random
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

import msgspec
from wkvm_client import aio
from wkvm_client.errors import CapacityError, ClientError

from wkvm.engine.states.memories import MAX_PASTS
from wkvm_bench.harness import BenchError
from wkvm_bench.http_once import HttpConnection, http_request
from wkvm_bench.soak_server import Soaked

KEYS: Final = {"anna": "anna-anna-anna", "bert": "bert-bert-bert"}
"""Tenants, and a key of each."""
VOCAB_SIZE = 4000
N_AT_ONCE = 32
N_HANDLES = 16
"""Of each tenant, one for each of its askers: which requests go on from and write to."""
N_HIBERNATED = 32
N_BURST, N_BURST_IDS = 600, 20
N_LONG = 8_000
"""Words of a text that is tokenized in a thread."""
N_LONG_ANSWER = 1_000
"""Ids of an answer; some such have nearly all ids that there are among them."""
WORDS = ("the", "sun", "a", "dog", "ran", "into", "garden", "and", "found", "small", "tree")


class Asker:
    """Who asks: one lane of one tenant's connection, and a connection of HTTP.

    Args:
        handle: a state that nobody else writes to meanwhile.
        draw: random numbers.
        number: of names that nobody used before.
    """

    def __init__(
        self,
        tenant: str,
        client: aio.Client,
        http: HttpConnection,
        handle: str,
        draw: random.Random,
        number: Iterator[int],
    ) -> None:
        self.tenant = tenant
        self.client = client
        self.handle = handle
        self.draw = draw
        self._http = http
        self._number = number
        self._headers = {"Authorization": f"Bearer {KEYS[tenant]}"}

    def ids(self, low: int = 1, high: int = 8) -> list[int]:
        """A prompt of so many random ids."""
        return [self.draw.randrange(1, VOCAB_SIZE) for _ in range(self.draw.randint(low, high))]

    def text(self, n_words: int = 6) -> str:
        """A prompt of random words."""
        return " ".join(self.draw.choices(WORDS, k=n_words))

    def new_name(self, kind: str) -> str:
        """A name that nothing had before."""
        return f"{kind}-{next(self._number)}"

    async def http(
        self, method: str, path: str, body: Mapping[str, object] | None = None, wanted: int = 200
    ) -> bytes:
        """Ask over HTTP.

        Raises:
            BenchError: the answer has another status than is wanted.
        """
        status, data = await self._http.ask(http_request(method, path, body, self._headers))
        if status != wanted:
            raise BenchError(f"{method} {path}: {status}: {data[:300]!r}")
        return data

    async def generate(self, prompt: list[int], **how: Any) -> None:
        """Ask over the binary protocol, and check that as many ids come as are asked for.

        Raises:
            BenchError: others come.
        """
        n = how.setdefault("max_tokens", self.draw.randint(1, 4))
        how.setdefault("credit", None)
        stream = await self.client.generate(prompt, ignore_eos=True, **how)
        for done in await stream.completions():
            if done.n_output != n:
                raise BenchError(f"{done.n_output} ids of {n}")


Kind: TypeAlias = Callable[[Asker], Coroutine[Any, Any, object]]


async def _ids(asker: Asker) -> None:
    await asker.generate(asker.ids(), temperature=asker.draw.choice((0.0, 0.8)))


async def _long_ids(asker: Asker) -> None:
    salt = asker.new_name("salt") if asker.draw.random() < 0.3 else ""
    await asker.generate(asker.ids(150, 300), max_tokens=1, cache_salt=salt)


async def _choices(asker: Asker) -> None:
    await asker.generate(asker.ids(), n=2, logprobs=2, top_p=0.9)


async def _kept(asker: Asker, key: str = "") -> None:
    handle = asker.handle
    await asker.generate(asker.ids(), state=handle, save_as=handle, idempotency_key=key)


async def _keyed(asker: Asker) -> None:
    await _kept(asker, asker.new_name("key"))


async def _limited_credit(asker: Asker) -> None:
    await asker.generate(asker.ids(), max_tokens=6, credit=2)


async def _scored(asker: Asker) -> None:
    await asker.client.score(asker.ids(2, 8))


async def _embedded(asker: Asker) -> None:
    await asker.client.embed(asker.ids(), pooling="mean")


async def _completion(asker: Asker) -> None:
    body = {"model": "tiny", "prompt": asker.text(), "max_tokens": 3}
    await asker.http("POST", "/v1/completions", body)


async def _long_answer(asker: Asker) -> None:
    how = {"ignore_eos": True, "temperature": 1, "stream": True}
    body = {"model": "tiny", "prompt": asker.text(), "max_tokens": N_LONG_ANSWER, **how}
    await asker.http("POST", "/v1/completions", body)


async def _chat(asker: Asker) -> None:
    messages = [{"role": "user", "content": asker.text()}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 3, "stream": True}
    data = await asker.http("POST", "/v1/chat/completions", body)
    if b"[DONE]" not in data:
        raise BenchError(f"a stream without an end: {data[-300:]!r}")


async def _native(asker: Asker) -> None:
    handle = asker.handle
    body = {"ids": asker.ids(), "max_tokens": 2, "state": handle, "save_as": handle}
    await asker.http("POST", "/v1/generate", body)


async def _message(asker: Asker) -> None:
    messages = [{"role": "user", "content": asker.text()}]
    await asker.http(
        "POST", "/v1/messages", {"model": "tiny", "messages": messages, "max_tokens": 2}
    )


async def _response(asker: Asker) -> None:
    body = {"model": "tiny", "input": asker.text(), "max_output_tokens": 2}
    answer = msgspec.json.decode(await asker.http("POST", "/v1/responses", body))
    await asker.http("DELETE", f"/v1/responses/{answer['id']}")


async def _session(asker: Asker) -> None:
    name = asker.new_name("session")
    await asker.http("POST", "/v1/sessions", {"name": name, "text": asker.text()}, 201)
    await asker.http("POST", f"/v1/sessions/{name}/generate", {"max_tokens": 2})
    await asker.http("DELETE", f"/v1/sessions/{name}")


async def _submitted(asker: Asker) -> None:
    await asker.http("POST", "/v1/submit", {"ids": asker.ids(), "max_tokens": 2}, 202)


async def _long_text(asker: Asker) -> None:
    await asker.http("POST", "/tokenize", {"prompt": asker.text(N_LONG)})


async def _no_model(asker: Asker) -> None:
    await asker.http("POST", "/tokenize", {"prompt": asker.text()})
    await asker.http("GET", "/metrics")


KINDS: Final[Mapping[Kind, int]] = {
    _ids: 50,
    _limited_credit: 5,
    _long_ids: 3,
    _choices: 3,
    _kept: 2,
    _keyed: 1,
    _scored: 3,
    _embedded: 3,
    _completion: 10,
    _chat: 10,
    _native: 2,
    _message: 3,
    _response: 1,
    _session: 1,
    _submitted: 2,
    _long_text: 1,
    _no_model: 1,
}
"""Requests, and how many of a hundred are of a kind."""


class Work:
    """All that is asked, but for who gives up or is bad: see ``soak_crowds``.

    Attributes:
        counts: what was done, by name.
        latencies_s: of requests, since they were last taken.
    """

    def __init__(self, server: Soaked, seed: int) -> None:
        self._server = server
        self._draw = random.Random(seed)
        self._number = itertools.count(1)
        self.counts = Counter[str]()
        self.latencies_s = array("d")

    async def prepare(self, *, fills: bool) -> None:
        """Make the states that all work goes on from.

        So many at once that each pool of threads has all that it may have: they stay.

        Args:
            fills: have it remember as many turns with a key, and texts of ids, as it ever will.
        """
        kinds = (("kept", N_HANDLES), ("left", N_HANDLES), ("still", N_HIBERNATED))
        async with self._askers(2 * len(KEYS)) as askers:
            for asker in askers[: len(KEYS)]:
                states = asker.client.states
                names = [f"{kind}-{at}" for kind, n in kinds for at in range(n)]
                await asyncio.gather(*(states.create(name, asker.ids()) for name in names))
                await asyncio.gather(*map(states.hibernate, names))
                await asyncio.gather(*map(states.resume, names))
            await asyncio.gather(*map(_long_text, askers))
        if not fills:
            return
        left = iter(range(MAX_PASTS))

        async def some(asker: Asker) -> None:
            await _long_answer(asker)
            for _ in left:
                await _keyed(asker)

        await self._by(N_AT_ONCE, some)

    async def requests(self, n: int) -> None:
        """Requests, some at a time.

        Raises:
            BenchError, ClientError: one is not answered as it should be.
        """
        kinds, weights = list(KINDS), list(KINDS.values())
        left = iter(range(n))

        async def some(asker: Asker) -> None:
            for _ in left:
                (kind,) = self._draw.choices(kinds, weights)
                began = time.perf_counter()
                try:
                    await kind(asker)
                except ClientError as error:
                    raise BenchError(f"{kind.__name__}: {error!r}") from error
                self.latencies_s.append(time.perf_counter() - began)

        await self._by(N_AT_ONCE, some)
        self.counts["requests"] += n

    async def forks(self, n: int) -> None:
        """Branches of states, made and deleted, over either door."""
        left = iter(range(n))

        async def some(asker: Asker) -> None:
            for _ in left:
                parent = f"kept-{asker.draw.randrange(N_HANDLES)}"
                child = asker.new_name("fork")
                if asker.draw.random() < 0.7:
                    await asker.client.states.fork(parent, child)
                    await asker.client.states.delete(child)
                else:
                    body = {"names": [child]}
                    await asker.http("POST", f"/v1/states/{parent}/fork", body, 201)
                    await asker.http("DELETE", f"/v1/states/{child}")

        await self._by(8, some)
        self.counts["forks"] += n

    async def hibernations(self, n: int) -> None:
        """States that leave memory for the disk, and come back from there, over either door."""
        left = iter(range(n))

        async def some(asker: Asker) -> None:
            for _ in left:
                name = f"still-{asker.draw.randrange(N_HIBERNATED)}"
                if asker.draw.random() < 0.7:
                    await asker.client.states.hibernate(name)
                    await asker.client.states.resume(name)
                else:
                    await asker.http("POST", f"/v1/states/{name}/hibernate")
                    await asker.http("POST", f"/v1/states/{name}/resume")

        await self._by(8, some)
        self.counts["hibernations"] += n

    async def burst(self) -> None:
        """Many more requests at once than may wait. Each is answered: in full, or refused."""
        refused = Counter[bool]()

        async def ask(asker: Asker, *, by_http: bool) -> None:
            try:
                if by_http:
                    body = {"ids": asker.ids(), "max_tokens": N_BURST_IDS}
                    await asker.http("POST", "/v1/generate", body)
                else:
                    await asker.generate(asker.ids(), max_tokens=N_BURST_IDS)
                refused[False] += 1
            except CapacityError:
                refused[True] += 1
            except BenchError as error:
                if ": 503: " not in str(error) and ": 429: " not in str(error):
                    raise
                refused[True] += 1

        async with self._askers(N_BURST // 4) as askers:
            asked = [ask(one, by_http=True) for one in askers]
            asked += [
                ask(one, by_http=False)
                for one, _ in zip(
                    itertools.cycle(askers), range(N_BURST - len(asked)), strict=False
                )
            ]
            await asyncio.gather(*asked)
        if refused.total() != N_BURST or not refused[True]:
            raise BenchError(f"of {N_BURST} requests at once {refused[True]} were refused")
        self.counts["bursts"] += 1
        self.counts["requests"] += refused[False]
        self.counts["refused"] += refused[True]

    async def _by(self, n: int, some: Callable[[Asker], Coroutine[Any, Any, None]]) -> None:
        async with self._askers(n) as askers, asyncio.TaskGroup() as tasks:
            for asker in askers:
                tasks.create_task(some(asker))

    @asynccontextmanager
    async def _askers(self, n: int) -> AsyncIterator[list[Asker]]:
        """Askers on connections of their own, which end with the block."""
        async with AsyncExitStack() as stack:
            clients = {
                tenant: await stack.enter_async_context(
                    aio.connect(f"unix://{self._server.binary}", api_key=key)
                )
                for tenant, key in KEYS.items()
            }
            askers = list[Asker]()
            for tenant, at in zip(itertools.cycle(KEYS), range(n), strict=False):
                http = HttpConnection(self._server.http)
                stack.push_async_callback(http.close)
                handle = f"kept-{at // len(KEYS) % N_HANDLES}"
                askers.append(
                    Asker(tenant, clients[tenant], http, handle, self._draw, self._number)
                )
            yield askers
