"""The gateway's settings."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from wkvm.gateway.errors import SettingError

RequestLogFormat: TypeAlias = Literal["off", "text", "json"]

MAX_SECONDS = 1e9
DEFAULT_MAX_TOKENS = 256
"""How long an answer may be if neither the request nor the model says."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+")


MAX_STREAM_INTERVAL = 1024
"""Ids of one event of a stream."""
MAX_LIMIT = 10**12
"""Of requests and tokens a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one key may ask for; None for as much as it likes.

    Attributes:
        requests: in a minute.
        tokens: in a minute, of prompts and outputs together.
        concurrent: requests that are open at once.
    """

    requests: int | None = None
    tokens: int | None = None
    concurrent: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return any(limit is not None for _, limit in self.named())

    def named(self) -> tuple[tuple[str, int | None], ...]:
        """Each limit, with its name on the command line."""
        return (
            ("limit-requests", self.requests),
            ("limit-tokens", self.tokens),
            ("limit-concurrent", self.concurrent),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of the HTTP door. What may be asked of the engine is the engine's business.

    Attributes:
        host: address or name to bind.
        port: TCP port; 0 takes a free one, None serves no TCP.
        uds: path of a unix socket; None serves none.
        ssl_certfile, ssl_keyfile: PEM files; both or none.
        header_timeout_s: from a connection's start, or a request's first byte, to the end of
            its headers.
        body_timeout_s: from there to the end of the body.
        write_timeout_s: how long a client may leave what was written to it unread.
        keepalive_timeout_s: how long a connection may be idle between requests.
        max_connections: open at once.
        max_body_bytes: of one request.
        max_state_bytes: of the file of a state that is imported.
        max_submitted: requests of ``/v1/submit`` of one tenant that are remembered at once,
            those that run included.
        max_submitted_bytes: of the results of one tenant's finished ones. The last to finish is
            kept whatever its size.
        submitted_ttl_s: how long a finished one is remembered.
        responses_dir: folder of what is kept of responses and conversations; several gateways may
            have one. None keeps it for as long as the gateway lives, for this one alone.
        max_responses: of one tenant that are kept; each has a state. The oldest make room.
        max_responses_bytes: of all that is kept of one tenant's responses and conversations, their
            states aside.
        response_ttl_s: how long a response and its state are kept.
        allowed_origins: of browser pages that may use this server though they come from
            elsewhere, such as ``https://chat.example``; ``*`` allows all.
        limits: of a key that has none of its own.
        key_limits: of other keys, by the SHA-256 of the key in hexadecimal digits.
        stream_interval: how many ids an event of a stream should have, where a request does not
            say; the first has one.
        request_log: whether a line is written to standard error for each request, and how.
        model_aliases: names, besides its own, by which clients may ask for the model; ``*`` is any.
        omit_media: whether a part of a chat message that is no text is replaced by a note that
            says so; otherwise such a message is refused.
    """

    host: str = "127.0.0.1"
    port: int | None = 8000
    uds: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 10.0
    keepalive_timeout_s: float = 75.0
    max_connections: int = 10_240
    max_body_bytes: int = 4 * 1024 * 1024
    max_state_bytes: int = 1024 * 1024 * 1024
    max_submitted: int = 1024
    max_submitted_bytes: int = 64 * 1024 * 1024
    submitted_ttl_s: float = 600.0
    responses_dir: str | None = None
    max_responses: int = 4096
    max_responses_bytes: int = 256 * 1024 * 1024
    response_ttl_s: float = 30 * 24 * 3600.0
    allowed_origins: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = ()
    omit_media: bool = False
    limits: Limits = Limits()
    key_limits: Mapping[str, Limits] = field(default_factory=dict[str, Limits])
    stream_interval: int = 1
    request_log: RequestLogFormat = "off"

    @property
    def has_limits(self) -> bool:
        """Whether any key has limits."""
        return bool(self.limits) or any(self.key_limits.values())

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 2**16:
            raise SettingError("port", f"{self.port} is not in [0, 65535]")
        if (
            self.uds is not None
            and not 1 <= len(self.uds.encode("utf-8", "surrogateescape")) <= 107
        ):
            raise SettingError("uds", "a socket's path has 1 to 107 bytes")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise SettingError("ssl-certfile", "certificate and key go together")
        for setting, seconds in (
            ("header-timeout-s", self.header_timeout_s),
            ("body-timeout-s", self.body_timeout_s),
            ("http-write-timeout-s", self.write_timeout_s),
            ("keepalive-timeout-s", self.keepalive_timeout_s),
            ("submitted-ttl-s", self.submitted_ttl_s),
            ("response-ttl-s", self.response_ttl_s),
        ):
            if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
                raise SettingError(setting, f"{seconds} is not a positive number of seconds")
        for setting, count in (
            ("http-max-connections", self.max_connections),
            ("max-body-bytes", self.max_body_bytes),
            ("max-state-bytes", self.max_state_bytes),
            ("max-submitted", self.max_submitted),
            ("max-submitted-bytes", self.max_submitted_bytes),
            ("max-responses", self.max_responses),
            ("max-responses-bytes", self.max_responses_bytes),
        ):
            if not 1 <= count < 2**63:
                raise SettingError(setting, f"{count} is not a positive count")
        if not 1 <= self.stream_interval <= MAX_STREAM_INTERVAL:
            why = f"{self.stream_interval} is not in [1, {MAX_STREAM_INTERVAL}]"
            raise SettingError("stream-interval", why)
        if self.request_log not in get_args(RequestLogFormat):
            raise SettingError("request-log", f"{self.request_log!r} is not off, text or json")
        for limits in (self.limits, *self.key_limits.values()):
            for name, limit in limits.named():
                if limit is not None and not 1 <= limit <= MAX_LIMIT:
                    raise SettingError(name, f"{limit} is not in [1, {MAX_LIMIT}]")
        if not all(self.model_aliases):
            raise SettingError("model-aliases", "a name has at least one character")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                why = f"{origin!r} is not an origin: https://HOST or https://HOST:PORT"
                raise SettingError("allowed-origins", why)
