"""The other processes that serve the same HTTP port, for what only one of them has.

A port may be shared by several gateway processes, and a client's next call may come to any. Most
of what a gateway has of its own belongs to one name: a submitted request, the last turn of a
session. Every process can tell from a name whose it is, and hands the call to that one, over
its unix socket, as it came. What has no owner, such as a request that is to be cancelled by
its client's name for it, all are asked for.
"""

import asyncio
import hmac
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from wkvm.gateway.dialects import REQUEST_ID_HEADER
from wkvm.gateway.failures import DEFAULT_RETRY_AFTER_S, SERVER, HttpError

ASK = "/-/ask"
"""The route of questions, on the sockets of peers alone."""
SECRET_HEADER = "X-Wkvm-Secret"
ASK_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 5.0
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "expect",
        "keep-alive",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Cancel(msgspec.Struct, tag=True):
    """Cancel what runs of a tenant under a name. Answered by ``Cancelled``."""

    tenant: bytes
    request_id: str


class Forget(msgspec.Struct, tag=True):
    """Forget the last turn of what had a session's name before. Answered by ``Done``."""

    tenant: bytes
    session: str


class Tell(msgspec.Struct, tag=True):
    """What was counted? Answered by ``Counted``."""


class Cancelled(msgspec.Struct, tag=True):
    """Whether something ran, and whether a submitted request has the name at all."""

    was_running: bool
    is_known: bool


class Done(msgspec.Struct, tag=True):
    """It is done."""


class Counted(msgspec.Struct, tag=True):
    """A process's own numbers, by their names; see ``metrics``."""

    numbers: dict[str, float]


Question: TypeAlias = Cancel | Forget | Tell
Answer: TypeAlias = Cancelled | Done | Counted
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


class Peers:
    """All processes of a port, this one among them. Belongs to one event loop.

    Args:
        index: which of them this is.
        paths: of the unix sockets of all, by index.
        secret: that they share; whoever has not got it is not answered there.
    """

    def __init__(self, index: int, paths: Sequence[str], secret: str) -> None:
        self.index = index
        self._paths = tuple(paths)
        self._secret = secret
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        self.numbers: dict[int, dict[str, float]] = {}
        """What each of the others last said that it had counted."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._paths)

    def owner(self, tenant: bytes, name: str) -> int:
        """Which of them has what a tenant calls by a name."""
        return zlib.crc32(tenant + b"\0" + name.encode("utf-8", "surrogatepass")) % len(self)

    def owns(self, tenant: bytes, name: str) -> bool:
        """Whether this one has it."""
        return self.owner(tenant, name) == self.index

    def knows(self, request: web.Request) -> bool:
        """Whether a call is a peer's."""
        given = request.headers.get(SECRET_HEADER, "")
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._secret.encode())

    async def forward(
        self, request: web.Request, body: bytes, index: int, request_id: str
    ) -> web.StreamResponse:
        """Let another one answer a call, and pass the answer on as it comes.

        Args:
            body: of the request.
            request_id: what this one calls it.

        Raises:
            HttpError: 503; it is not there now.
            ConnectionError: the client is gone; or the other one, halfway.
        """
        headers = _passed_on(request.headers)
        headers[SECRET_HEADER] = self._secret
        headers[REQUEST_ID_HEADER] = request_id
        url = URL(f"http://peer{request.raw_path}", encoded=True)
        try:
            found = await self._session(index).request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _absent() from error
        async with found:
            return await _pass_on(request, found)

    async def ask(self, index: int, question: Question) -> Answer | None:
        """Ask one of the others; None if it is not there to answer in time."""
        data = msgspec.json.encode(question)
        with suppress(aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
            async with (
                asyncio.timeout(ASK_TIMEOUT_S),
                self._session(index).post(
                    f"http://peer{ASK}", data=data, headers={SECRET_HEADER: self._secret}
                ) as response,
            ):
                return _answers.decode(await response.read())
        return None

    async def ask_all(self, question: Question) -> list[tuple[int, Answer | None]]:
        """Ask all the others at once; with each answer goes whose it is."""
        others = [index for index in range(len(self)) if index != self.index]
        answers = await asyncio.gather(*(self.ask(index, question) for index in others))
        return list(zip(others, answers, strict=True))

    async def aclose(self) -> None:
        """Close the connections to the others."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            await session.close()

    def _session(self, index: int) -> aiohttp.ClientSession:
        found = self._sessions.get(index)
        if found is None:
            found = self._sessions[index] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._paths[index], limit=0),
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return found


def read_question(data: bytes) -> Question:
    """A question, as a peer has sent it.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return _questions.decode(data)


def _passed_on(headers: Mapping[str, str]) -> "CIMultiDict[str]":
    found = CIMultiDict(headers)
    for name in _HOP_BY_HOP:
        found.popall(name, None)
    found.popall(SECRET_HEADER, None)
    return found


async def _pass_on(request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
    """The answer of a peer, to the client."""
    headers = _passed_on(found.headers)
    try:
        if not found.content_type.startswith("text/event-stream"):
            body = b"" if request.method == "HEAD" else await found.read()
            return web.Response(status=found.status, headers=headers, body=body)
        response = web.StreamResponse(status=found.status, headers=headers)
        await response.prepare(request)
        async for data in found.content.iter_any():
            await response.write(data)
        await response.write_eof()
    except aiohttp.ClientError as error:
        # As where a stream breaks off: only the end of the connection says so.
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer broke off") from error
    return response


def _absent() -> HttpError:
    return HttpError(
        503,
        "the process that has this is being started anew",
        SERVER,
        code="worker_unavailable",
        retry_after_s=DEFAULT_RETRY_AFTER_S,
    )
