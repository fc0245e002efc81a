"""The flags of the HTTP door, as tables; see ``flags``."""

from typing import get_args

from wkvm.cli.flags import Flag, place, port
from wkvm.gateway.config import RequestLogFormat

REQUEST_LOG_FORMATS: tuple[str, ...] = get_args(RequestLogFormat)


def listed(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(text.split(","))


HTTP_ADDRESS_FLAGS = (
    Flag(
        names=("--port",),
        field="port",
        kind=port,
        metavar="PORT",
        text="TCP port of HTTP; 0 takes a free one, 'none' serves no TCP (default: %(default)s)",
    ),
    Flag(
        names=("--uds",),
        field="uds",
        kind=place,
        metavar="PATH",
        text="unix socket of HTTP (default: none)",
    ),
    Flag(
        names=("--ssl-certfile",),
        field="ssl_certfile",
        kind=place,
        metavar="FILE",
        text="certificate chain for HTTPS, as PEM (default: none, plain HTTP)",
    ),
    Flag(
        names=("--ssl-keyfile",),
        field="ssl_keyfile",
        kind=place,
        metavar="FILE",
        text="the certificate's key, as PEM, not encrypted",
    ),
)

HTTP_LIMIT_FLAGS = (
    Flag(
        names=("--header-timeout-s",),
        field="header_timeout_s",
        kind=float,
        metavar="S",
        text="from a connection's start, or a request's first byte, to the end of its headers "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--body-timeout-s",),
        field="body_timeout_s",
        kind=float,
        metavar="S",
        text="from there to the end of the body (default: %(default)s)",
    ),
    Flag(
        names=("--http-write-timeout-s",),
        field="write_timeout_s",
        dest="http_write_timeout_s",
        kind=float,
        metavar="S",
        text="how long a client that stops reading is kept (default: %(default)s)",
    ),
    Flag(
        names=("--keepalive-timeout-s",),
        field="keepalive_timeout_s",
        kind=float,
        metavar="S",
        text="how long a connection may be idle between requests (default: %(default)s)",
    ),
    Flag(
        names=("--http-max-connections",),
        field="max_connections",
        dest="http_max_connections",
        kind=int,
        metavar="N",
        text="of HTTP, open at once (default: %(default)s)",
    ),
    Flag(
        names=("--max-body-bytes",),
        field="max_body_bytes",
        kind=int,
        metavar="N",
        text="largest body of a request (default: %(default)s)",
    ),
    Flag(
        names=("--max-state-bytes",),
        field="max_state_bytes",
        kind=int,
        metavar="N",
        text="largest file of a state that is imported over HTTP (default: %(default)s)",
    ),
    Flag(
        names=("--max-submitted",),
        field="max_submitted",
        kind=int,
        metavar="N",
        text="requests of /v1/submit that are remembered of one tenant (default: %(default)s)",
    ),
    Flag(
        names=("--submitted-ttl-s",),
        field="submitted_ttl_s",
        kind=float,
        metavar="S",
        text="how long a finished one of them is remembered (default: %(default)s)",
    ),
    Flag(
        names=("--max-submitted-bytes",),
        field="max_submitted_bytes",
        kind=int,
        metavar="N",
        text="how much may be remembered of one tenant's finished ones (default: %(default)s)",
    ),
    Flag(
        names=("--responses-dir",),
        field="responses_dir",
        kind=place,
        metavar="FOLDER",
        text="where responses and conversations are kept; several gateways may share it (default: "
        "beside the states of serve's --state-dir; without one, and of wkvm gateway, in memory, "
        "until the process ends)",
    ),
    Flag(
        names=("--max-responses",),
        field="max_responses",
        kind=int,
        metavar="N",
        text="responses of one tenant that are kept, each with a state (default: %(default)s)",
    ),
    Flag(
        names=("--max-responses-bytes",),
        field="max_responses_bytes",
        kind=int,
        metavar="N",
        text="how much may be kept of one tenant's responses and conversations, states aside "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--response-ttl-s",),
        field="response_ttl_s",
        kind=float,
        metavar="S",
        text="how long a response and its state are kept (default: %(default)s)",
    ),
    Flag(
        names=("--allowed-origins",),
        field="allowed_origins",
        kind=listed,
        metavar="ORIGIN,...",
        text="pages of which other sites a browser may let use this server, such as "
        "https://chat.example; '*' allows all (default: none)",
    ),
    Flag(
        names=("--model-aliases",),
        field="model_aliases",
        kind=listed,
        metavar="NAME,...",
        text="other names by which clients may ask for the model, for those that have names of "
        "their own; '*' takes any. Answers say its own (default: none)",
    ),
    Flag(
        names=("--omit-media",),
        field="omit_media",
        kind=None,
        text="replace what is no text in a chat message by a note that says so, rather than "
        "refuse the message",
    ),
    Flag(
        names=("--stream-interval",),
        field="stream_interval",
        kind=int,
        metavar="N",
        text="tokens of one event of a stream over HTTP, but for the first, where a request does "
        "not say (default: %(default)s)",
    ),
    Flag(
        names=("--request-log",),
        field="request_log",
        kind=str,
        choices=REQUEST_LOG_FORMATS,
        text="write a line for each HTTP request to standard error: its id, tenant, route, status, "
        "tokens and times, and nothing of its content (default: %(default)s)",
    ),
)

KEY_LIMIT_FLAGS = (
    Flag(
        names=("--limit-requests",),
        field="requests",
        dest="limit_requests",
        kind=int,
        metavar="N",
        text="HTTP requests of one key in a minute (default: no limit)",
    ),
    Flag(
        names=("--limit-tokens",),
        field="tokens",
        dest="limit_tokens",
        kind=int,
        metavar="N",
        text="tokens of one key in a minute, of prompts and outputs together (default: no limit)",
    ),
    Flag(
        names=("--limit-concurrent",),
        field="concurrent",
        dest="limit_concurrent",
        kind=int,
        metavar="N",
        text="HTTP requests of one key that are open at once (default: no limit)",
    ),
)
