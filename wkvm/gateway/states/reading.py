"""What a state has read and written: the ids of its log, and their text.

The log is the end of a state's file. The file is gone through as it comes, and of all that is not
asked for nothing is kept.
"""

import contextlib
import itertools
import struct
import time
from collections.abc import Sequence

import msgspec
from aiohttp import web
from multidict import MultiMapping

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.failures import HttpError, invalid
from wkvm.gateway.offload import LONG_TEXT
from wkvm.gateway.states import bodies
from wkvm.gateway.states.fields import FileLog, log_of_file
from wkvm.gateway.text.tokenizer import Tokenizer, new_utf8_decoder

MAX_IDS = 2**18
"""Ids that one answer has, at most."""
MAX_CUTS = 512
"""Places at which the text of one answer is cut, at most: a line of HTTP has room for them."""
PIECE = 4096
"""Ids that are turned into text at a time."""
PAUSE_S = 0.0002


class StateText(msgspec.Struct, kw_only=True):
    """A part of what a state has read and written.

    Attributes:
        state: which version it is.
        n_tokens: how many tokens belong to it, pending ones included.
        start: where the part begins, in tokens.
        end: where it ends.
        ids: of the part.
        texts: of the part, cut where that was asked for; special tokens by name.
    """

    object: str = "state.text"
    state: str
    n_tokens: int
    start: int
    end: int
    ids: list[int]
    texts: list[str]


class LogReader:
    """Takes the bytes of a state's file, and keeps its ids from ``start`` to ``end``.

    Args:
        start: the first that is kept.
        end: of the first that is not.
    """

    def __init__(self, start: int, end: int) -> None:
        self._first, self._last = start, end
        self._head = bytearray()
        self._kept = bytearray()
        self._at = 0
        self.log: FileLog | None = None

    def feed(self, data: bytes) -> None:
        """Take the bytes that come next.

        Raises:
            msgspec.MsgspecError: it is no file of a state.
        """
        if self.log is not None:
            self._keep(data)
            return
        self._head += data
        if len(self._head) < 8 or len(self._head) < (n := self._n_head()):
            return
        self.log = log_of_file(bytes(self._head[8:n]), n)
        rest, self._head, self._at = bytes(self._head[n:]), bytearray(), n
        self._keep(rest)

    def ids(self) -> list[int]:
        """The ids that were kept, pending ones included."""
        assert self.log is not None, "a file has a header"
        ids = list(struct.unpack(f"<{len(self._kept) // 4}I", self._kept))
        n = self.log.n_absorbed
        return ids + self.log.pending[max(self._first - n, 0) : max(self._last - n, 0)]

    def _n_head(self) -> int:
        return 8 + int.from_bytes(self._head[:8], "little")

    def _keep(self, data: bytes) -> None:
        assert self.log is not None
        first = self.log.start + 4 * self._first - self._at
        last = min(self.log.start + 4 * self._last, self.log.end) - self._at
        self._kept += data[max(first, 0) : max(last, 0)]
        self._at += len(data)


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids, special tokens by name; for long ones to be called in a thread.

    Between pieces the thread sleeps, so that the interpreter is the event loop's within about a
    millisecond, and not only when a thread's time with it is over.
    """
    if len(ids) < LONG_TEXT:
        return tokenizer.decode(ids, skip_special=False)
    decoder, parts = new_utf8_decoder(), list[str]()
    for at in range(0, len(ids), PIECE):
        piece = map(tokenizer.token_bytes, ids[at : at + PIECE])
        parts.append(decoder.decode(b"".join(piece)))
        time.sleep(PAUSE_S)
    return "".join((*parts, decoder.decode(b"", final=True)))


async def text(call: Call) -> web.StreamResponse:
    """``GET /v1/states/{ref}/text``: what it has read and written, as ids and as text."""
    query, limit = call.request.query, call.gateway.config.max_state_bytes
    bodies.known_query(query, "start", "end", "cut")
    start = bodies.query_count(query, "start") or 0
    end = bodies.query_count(query, "end")
    cuts = _cuts(query)
    info = await call.client.states.get(call.request.match_info["ref"])
    end = info.n_tokens if end is None else min(end, info.n_tokens)
    start = min(start, end)
    if end - start > MAX_IDS:
        raise invalid("end", f"more than {MAX_IDS} tokens after start, {start}")
    if info.n_bytes > limit:
        raise HttpError(413, f"the state has more than {limit} bytes", code="request_too_large")
    reader = LogReader(start, end)
    exported = await call.client.states.export(info.ref)
    with contextlib.closing(exported):
        async for data in exported:
            reader.feed(data)
    borders = [start, *(one for one in cuts if start < one < end), end]
    tokenizer = call.gateway.texts.tokenizer

    def told() -> bytes:
        ids = reader.ids()
        texts = [
            decoded(tokenizer, ids[one - start : other - start])
            for one, other in itertools.pairwise(borders)
        ]
        answer = StateText(
            state=info.ref, n_tokens=info.n_tokens, start=start, end=end, ids=ids, texts=texts
        )
        return msgspec.json.encode(answer)

    return json_response(await call.gateway.offload.run(told, size=end - start))


def _cuts(query: MultiMapping[str]) -> Sequence[int]:
    """Where the text is to be cut, in order, each place once.

    Raises:
        HttpError: 400; one is no count, or there are too many.
    """
    given = query.getall("cut", [])
    if len(given) > MAX_CUTS:
        raise invalid("cut", f"more than {MAX_CUTS} of them")
    found = {bodies.query_count({"cut": one}, "cut") or 0 for one in given}
    return sorted(found)
