"""One line for each request that was answered: whose it was, what it cost; nothing of its content.

Of what a client sends, a line has the method, the template of the route, and the request's id: no
path, no query, no header, no text and no token.
"""

import hashlib
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from wkvm.gateway.config import RequestLogFormat
from wkvm.gateway.engines import Whose
from wkvm.gateway.monitoring.spent import Spent

_NO_KEY = (b"", hashlib.sha256(b"").digest())
"""Digests of no key: of a request that was let in with none, too."""


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is written.

    Attributes:
        time: of the end, in UTC.
        tenant: by name where it is known, else the beginning of the key's digest.
        status: 499 if the client was gone.
        ttft_s: to the first token, on the engine's clock.
        duration_s: from the headers to the end of the answer.
    """

    time: str
    id: str
    tenant: str
    route: str
    status: int
    duration_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None


class RequestLog:
    """Writes the lines.

    Args:
        style: ``off`` writes none.
        write: takes a line with its end.
    """

    def __init__(
        self,
        style: RequestLogFormat,
        *,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self._style = style
        self._write = write

    def add(
        self,
        *,
        request_id: str,
        whose: Whose,
        route: str,
        status: int | None,
        spent: Spent,
        began_at: float,
    ) -> None:
        """A call is over.

        Args:
            route: the method and the template.
            status: None if the client was gone.
            began_at: on the clock of ``time.perf_counter``.
        """
        if self._style == "off":
            return
        line = Line(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            id=request_id,
            tenant="-" if whose.key in _NO_KEY else whose.name or whose.key.hex()[:12],
            route=route,
            status=499 if status is None else status,
            duration_s=round(time.perf_counter() - began_at, 6),
            prompt_tokens=spent.n_prompt,
            cached_tokens=spent.n_cached,
            output_tokens=spent.n_output,
            ttft_s=spent.first_token_s,
        )
        write = sys.stderr.write if self._write is None else self._write
        # In one piece: other processes may write to the same file.
        write(_text(line) if self._style == "text" else msgspec.json.encode(line).decode() + "\n")


def _text(line: Line) -> str:
    told = msgspec.to_builtins(line)
    at, request_id = told.pop("time"), told.pop("id")
    route = told.pop("route")
    pairs = " ".join(f"{name}={value}" for name, value in told.items())
    return f"{at} {request_id} {route} {pairs}\n"
