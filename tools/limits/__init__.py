"""Write the limits of docs/reliability.md, with the defaults that the code has.

    python -m tools.limits

Each row names a flag, whose default is looked up, or gives the constant itself. A
test holds the document to what this writes, and the rows to the flags that there are.
"""

from collections.abc import Iterator
from pathlib import Path

from tools.limits.doors import CONNECTIONS, SENT
from tools.limits.limit import Limit, Unit
from tools.limits.process import PROCESS
from tools.limits.requests import REQUESTS
from tools.limits.states import STATES
from tools.readme_figures import with_figures
from wkvm.cli.engine_flags import ENGINE_FLAGS
from wkvm.cli.flags import LIMIT_FLAGS, PROCESS_FLAGS
from wkvm.cli.http_flags import HTTP_LIMIT_FLAGS, KEY_LIMIT_FLAGS
from wkvm.cli.pressure_flags import PRESSURE_FLAGS
from wkvm.cli.store_flags import STORE_FLAGS
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.pressure_config import PressureConfig
from wkvm.core.state_config import StateConfig
from wkvm.gateway.config import GatewayConfig, Limits

LIMITS: dict[str, tuple[Limit, ...]] = {
    "Connections": CONNECTIONS,
    "What is sent": SENT,
    "Requests": REQUESTS,
    "States": STATES,
    "The process": PROCESS,
}

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
BEGIN, END = "<!-- limits: begin -->\n", "<!-- limits: end -->\n"

UNLIMITED = {
    "--max-slots-per-tenant": "none",
    "--max-model-len": "none",
    "--max-queue-of-all": "none",
    "--max-queue-s": "the request's own time",
    "--max-state-host-bytes-per-tenant": "what all may have",
    "--max-rss-bytes": "none",
    "--shed-rss-bytes": "nine tenths of that",
    "--shed-disk": "none",
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
        (LIMIT_FLAGS + PROCESS_FLAGS, ServerConfig()),
        (HTTP_LIMIT_FLAGS, GatewayConfig()),
        (KEY_LIMIT_FLAGS, Limits()),
        (ENGINE_FLAGS, EngineConfig()),
        (STORE_FLAGS, StateConfig()),
        (PRESSURE_FLAGS, PressureConfig()),
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
    yield "| limit | default | flag | beyond it | shown by |"
    yield "|---|---|---|---|---|"
    for limit in limits:
        flag, value = "", object()
        if isinstance(limit.by, str):
            flag, value = f"`{limit.by}`", known[limit.by]
        else:
            value = limit.by
        text = "" if value else UNLIMITED.get(str(limit.by), "")
        text = text or said(value, limit.unit)
        yield f"| {limit.what} | {text} | {flag} | {limit.beyond} | `{limit.test}` |"


def tables() -> str:
    """All tables, as Markdown."""
    parts = ["\n".join((f"**{name}.**", "", *rows(limits))) for name, limits in LIMITS.items()]
    return "\n\n".join(parts) + "\n"


def written(page: str) -> str:
    """``page`` with the limits as the code has them."""
    return with_figures(page, tables(), BEGIN, END)
