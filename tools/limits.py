"""Write the limits of docs/reliability.md, with the defaults that the code has.

    python -m tools.limits

Each row of ``LIMITS`` names a flag, whose default is looked up, or gives the constant itself. A
test holds the document to what this writes, and the rows to the flags that there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from wkvm_protocol.fields import MAX_HELLO_FRAME_BYTES

from tools.readme_figures import with_figures
from wkvm.cli.engine_flags import ENGINE_FLAGS
from wkvm.cli.flags import LIMIT_FLAGS
from wkvm.cli.http_flags import HTTP_LIMIT_FLAGS, KEY_LIMIT_FLAGS
from wkvm.cli.store_flags import STORE_FLAGS
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.grammar import MAX_GRAMMAR_BYTES
from wkvm.core.limits import MAX_KEY_CHARS, StoreLimits
from wkvm.core.sampling import MAX_BIASED_IDS, MAX_LOGPROBS, MAX_N, MAX_STOP_IDS
from wkvm.core.state_config import StateConfig
from wkvm.gateway.config import GatewayConfig, Limits
from wkvm.gateway.door.connection import MIN_READ_RATE
from wkvm.gateway.fields import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_REQUEST_ID_LENGTH,
    MAX_STOP_LENGTH,
    MAX_STOPS,
)
from wkvm.gateway.monitoring.health import MAX_STEP_AGE_S
from wkvm.gateway.nesting import MAX_NESTING
from wkvm.gateway.schemas import MAX_DEPTH, MAX_SUBSCHEMAS
from wkvm.gateway.streams.choices import MAX_CHOICES
from wkvm.server.operations import (
    LARGE_BYTES,
    LARGE_TRANSFERS_PER_TENANT,
    OPERATIONS_PER_CONNECTION,
    OPERATIONS_PER_TENANT,
    TRANSFERS_PER_TENANT,
)
from wkvm.server.state_bytes import TRANSFER_TIMEOUT_S, WHOLE_TRANSFER_S, WINDOW_BYTES
from wkvm.state.ballast import BALLAST_BYTES
from wkvm.state.exchange import MAX_INLINE_BYTES
from wkvm.state.format import MAX_HEADER_BYTES

PAGE = Path(__file__).parents[1] / "docs/reliability.md"
BEGIN, END = "<!-- limits: begin -->\n", "<!-- limits: end -->\n"

Unit: TypeAlias = Literal["", "B", "s", "B/s", "share"]
STORE = StoreLimits()


@dataclass(frozen=True, slots=True)
class Limit:
    """One row.

    Attributes:
        what: is limited.
        by: the flag that sets it, or the value, where no flag does.
        beyond: what becomes of what is more.
        unit: of the value; none where it is a count.
    """

    what: str
    by: str | float
    beyond: str
    unit: Unit = ""


LIMITS: dict[str, tuple[Limit, ...]] = {
    "Connections": (
        Limit(
            "of the binary protocol, open at once", "--max-connections", "`TOO_MANY_CONNECTIONS`"
        ),
        Limit("of these, of one tenant", "--max-connections-per-tenant", "`TOO_MANY_CONNECTIONS`"),
        Limit("of HTTP, open at once", "--http-max-connections", "503, and the connection ends"),
        Limit("from connecting to HELLO", "--auth-timeout-s", "`AUTH_TIMEOUT`", "s"),
        Limit("from a frame's first byte to its last", "--frame-timeout-s", "`FRAME_TIMEOUT`", "s"),
        Limit("from a request's first byte to its headers' end", "--header-timeout-s", "408", "s"),
        Limit("from there to the end of the body", "--body-timeout-s", "408", "s"),
        Limit("silence before a ping", "--ping-interval-s", "a ping", "s"),
        Limit("unanswered pings in a row", "--max-missed-pings", "the connection ends"),
        Limit("silence on the binary protocol", "--idle-timeout-s", "the connection ends", "s"),
        Limit("idle between HTTP requests", "--keepalive-timeout-s", "the connection ends", "s"),
        Limit("open requests of one connection", "--max-lanes", "`TOO_MANY_LANES`"),
        Limit(
            "output that waits for one connection",
            "--max-output-bytes",
            "from a quarter on its lanes pause",
            "B",
        ),
        Limit(
            "how long that may last",
            "--write-timeout-s",
            "the connection ends, its requests with it",
            "s",
        ),
        Limit("a client of HTTP that reads less", MIN_READ_RATE, "as the next", "B/s"),
        Limit(
            "how long that may last",
            "--http-write-timeout-s",
            "the connection ends, its request with it",
            "s",
        ),
    ),
    "What is sent": (
        Limit("a frame before HELLO is answered", MAX_HELLO_FRAME_BYTES, "`FRAME_TOO_LARGE`", "B"),
        Limit("a frame after it", "--max-frame-bytes", "`FRAME_TOO_LARGE`", "B"),
        Limit("the body of an HTTP request", "--max-body-bytes", "413", "B"),
        Limit("arrays and objects within each other in JSON", MAX_NESTING, "400"),
        Limit("likewise in a schema of an answer", MAX_DEPTH, "400"),
        Limit("schemas within one schema", MAX_SUBSCHEMAS, "400"),
        Limit("a grammar", MAX_GRAMMAR_BYTES, "`INVALID_PARAMETER`, 400", "B"),
        Limit("choices of one request, `n`", MAX_N, "`INVALID_PARAMETER`, 400"),
        Limit("choices of all prompts of an HTTP request", MAX_CHOICES, "400"),
        Limit("log probabilities of one token", MAX_LOGPROBS, "`INVALID_PARAMETER`, 400"),
        Limit("stop ids", MAX_STOP_IDS, "`INVALID_PARAMETER`, 400"),
        Limit("stop strings", MAX_STOPS, "400"),
        Limit("characters of one of them", MAX_STOP_LENGTH, "400"),
        Limit("biased ids", MAX_BIASED_IDS, "`INVALID_PARAMETER`, 400"),
        Limit("`bad_words`", MAX_BAD_WORDS, "400"),
        Limit("characters of one of them", MAX_BAD_WORD_LENGTH, "400"),
        Limit("characters of an `X-Request-Id`", MAX_REQUEST_ID_LENGTH, "a fresh one"),
    ),
    "Requests": (
        Limit("states that are live at once", "--slots", "requests wait"),
        Limit("of these, of one tenant", "--max-slots-per-tenant", "its requests wait"),
        Limit("tokens that attention layers keep", "--guest-tokens", "requests wait"),
        Limit("tokens of a step", "--max-num-batched-tokens", "prompts wait"),
        Limit("of these, of prompts, while others decode", "--decode-prompt-tokens", "they wait"),
        Limit("requests of a tenant that wait", "--max-queue", "`QUEUE_FULL`, 429"),
        Limit("tokens of these together", "--max-queued-tokens", "`QUEUE_FULL`, 429"),
        Limit("prompt and `max_tokens` together", "--max-model-len", "`PROMPT_TOO_LONG`, 400"),
        Limit("from arrival to the end", "--request-timeout-s", "`TIMED_OUT`, 408", "s"),
        Limit("without credit on a slot", "--stall-timeout-s", "`STALLED`", "s"),
        Limit("requests put to host memory", "--max-hibernated", "they keep their slots"),
        Limit("finished requests that are remembered", "--max-completed-requests", "forgotten"),
        Limit("states on the way through prompts", "--prefix-cache-bytes", "the oldest go", "B"),
        Limit("of these, on the device", "--prefix-cache-device-bytes", "the oldest go", "B"),
        Limit("HTTP requests of one key in a minute", "--limit-requests", "429"),
        Limit("tokens of one key in a minute", "--limit-tokens", "429"),
        Limit("open HTTP requests of one key", "--limit-concurrent", "429"),
        Limit("submitted requests of a tenant", "--max-submitted", "429"),
        Limit("bytes of finished ones", "--max-submitted-bytes", "the oldest go", "B"),
        Limit("how long these are kept", "--submitted-ttl-s", "forgotten", "s"),
        Limit("a step, before the server is not ready", MAX_STEP_AGE_S, "`/ready` is 503", "s"),
        Limit("the drain after SIGTERM", "--drain-timeout-s", "requests are cancelled", "s"),
    ),
    "States": (
        Limit("handles of a tenant", "--max-states-per-tenant", "`QUOTA`, 507"),
        Limit("their bytes in all tiers", "--max-state-bytes-per-tenant", "`QUOTA`, 507", "B"),
        Limit("versions of a handle", "--max-versions-per-state", "`QUOTA`, 507"),
        Limit("forks at once", STORE.forks_at_once, "`INVALID_PARAMETER`, 400"),
        Limit("tags of a handle", STORE.tags_per_handle, "`INVALID_PARAMETER`, 400"),
        Limit("characters of a tag's key or value", STORE.tag_chars, "`INVALID_PARAMETER`, 400"),
        Limit("characters of an idempotency key", MAX_KEY_CHARS, "`INVALID_PARAMETER`, 400"),
        Limit("how long such a key is remembered", STORE.idempotency_s, "it is new again", "s"),
        Limit(
            "one record of a provenance", STORE.provenance_bytes, "`INVALID_PARAMETER`, 400", "B"
        ),
        Limit("states in host memory", "--state-host-bytes", "the oldest leave for the disk", "B"),
        Limit("how long one is there unused", "--state-idle-s", "it leaves for the disk", "s"),
        Limit("the disk's share that stays free", STORE.disk_reserve, "`STORE_FULL`, 507", "share"),
        Limit("given up to delete on a full disk", BALLAST_BYTES, "deletions wait for room", "B"),
        Limit("the header of a state's file", MAX_HEADER_BYTES, "`BAD_STATE_FILE`, 422", "B"),
        Limit("a state's file over HTTP", "--max-state-bytes", "413", "B"),
        Limit("a state's file within a request", MAX_INLINE_BYTES, "`BAD_STATE_FILE`, 422", "B"),
        Limit("operations of one connection", OPERATIONS_PER_CONNECTION, "`QUEUE_FULL`, 429"),
        Limit("operations of one tenant", OPERATIONS_PER_TENANT, "`QUEUE_FULL`, 429"),
        Limit("transfers of one tenant", TRANSFERS_PER_TENANT, "`QUEUE_FULL`, 429"),
        Limit(
            f"of these, of files above {LARGE_BYTES >> 20} MiB",
            LARGE_TRANSFERS_PER_TENANT,
            "`QUEUE_FULL`, 429",
        ),
        Limit("bytes granted ahead of their use", WINDOW_BYTES, "never granted", "B"),
        Limit("silence in a transfer", TRANSFER_TIMEOUT_S, "it ends, typed", "s"),
        Limit("a transfer, and 1 s for each MiB", WHOLE_TRANSFER_S, "it ends, typed", "s"),
        Limit("responses of a tenant", "--max-responses", "the oldest go"),
        Limit("bytes of these, states aside", "--max-responses-bytes", "the oldest go", "B"),
        Limit("how long they are kept", "--response-ttl-s", "deleted", "s"),
    ),
}

UNLIMITED = {
    "--max-slots-per-tenant": "none",
    "--max-model-len": "none",
    "--limit-requests": "none",
    "--limit-tokens": "none",
    "--limit-concurrent": "none",
    "--guest-tokens": "what fits",
    "--decode-prompt-tokens": "448 on a GPU, else all",
    "--prefix-cache-device-bytes": "half of a GPU's slots and pages",
}
"""What is said of a flag without a default of its own."""


def defaults() -> dict[str, object]:
    """Each flag of a limit, by its first name, and what it is where nobody sets it."""
    found = dict[str, object]()
    for flags, settings in (
        (LIMIT_FLAGS, ServerConfig()),
        (HTTP_LIMIT_FLAGS, GatewayConfig()),
        (KEY_LIMIT_FLAGS, Limits()),
        (ENGINE_FLAGS, EngineConfig()),
        (STORE_FLAGS, StateConfig()),
    ):
        found |= {flag.names[0]: getattr(settings, flag.field) for flag in flags}
    return found


def said(value: object, unit: Unit) -> str:
    """A value as the page has it.

    Raises:
        TypeError: it is no number.
    """
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if unit == "share":
        return f"{value:.0%}"
    if unit in ("B", "B/s"):
        for name, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value >= size and value % size == 0:
                return f"{value // size:,} {name}{unit[1:]}"
        return f"{value:,} bytes{unit[1:]}"
    if unit == "s":
        if value >= 7_200 and value % 3_600 == 0:
            return f"{value / 3_600:,.0f} h"
        return f"{value:,g} s"
    return f"{value:,}"


def rows(limits: tuple[Limit, ...]) -> Iterator[str]:
    """The lines of one table."""
    known = defaults()
    yield "| limit | default | flag | beyond it |"
    yield "|---|---|---|---|"
    for limit in limits:
        flag, value = "", object()
        if isinstance(limit.by, str):
            flag, value = f"`{limit.by}`", known[limit.by]
        else:
            value = limit.by
        text = UNLIMITED[str(limit.by)] if value is None else said(value, limit.unit)
        yield f"| {limit.what} | {text} | {flag} | {limit.beyond} |"


def tables() -> str:
    """All tables, as Markdown."""
    parts = ["\n".join((f"**{name}.**", "", *rows(limits))) for name, limits in LIMITS.items()]
    return "\n\n".join(parts) + "\n"


def written(page: str) -> str:
    """``page`` with the limits as the code has them."""
    return with_figures(page, tables(), BEGIN, END)


def main() -> None:
    """Rewrite the limits of the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
