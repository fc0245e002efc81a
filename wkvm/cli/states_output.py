"""What ``wkvm states`` prints for people, once it is made harmless for a terminal."""

import time
from collections.abc import Iterator, Sequence

from wkvm_client.states import Difference, LogEntry, Provenance, Replay, StateInfo

TITLES = ("STATE", "ACK", "TIER", "TOKENS", "BYTES", "MADE BY", "TAGS")
TO_THE_RIGHT = frozenset({3, 4})


def rows(infos: Sequence[StateInfo]) -> Iterator[str]:
    """A table of states."""
    table = [TITLES] + [
        (
            info.ref,
            info.ack,
            info.tier,
            f"{info.n_tokens:,}",
            f"{info.n_bytes:,}",
            info.operation,
            _tags(info),
        )
        for info in infos
    ]
    widths = [max(len(row[at]) for row in table) for at in range(len(TITLES))]
    for row in table:
        cells = (
            cell.rjust(width) if at in TO_THE_RIGHT else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def details(info: StateInfo) -> Iterator[str]:
    """All that is known of one state."""
    expires = "never" if info.expires_at is None else _when(info.expires_at)
    for name, value in (
        ("state", info.ref),
        ("newest version", f"{info.head}; {info.n_versions} kept"),
        ("ack", info.ack),
        ("tier", info.tier),
        ("tokens", f"{info.n_tokens:,}, of which {info.n_pending} pending"),
        ("bytes", f"{info.n_bytes:,}"),
        ("made by", info.operation),
        ("parents", ", ".join(info.parents) or "none"),
        ("tags", _tags(info) or "none"),
        ("made", _when(info.created_at)),
        ("changed", _when(info.updated_at)),
        ("expires", expires),
        ("content id", info.content_id),
        ("model", info.model_digest),
        ("layout", info.layout_fingerprint),
    ):
        yield f"{name:<15} {value}"


def difference(found: Difference) -> Iterator[str]:
    """How far two states are apart, tensor by tensor and layer by layer."""
    yield "equal in every bit" if found.equal else "not equal"
    yield f"{found.n_common:,} absorbed tokens in common"
    for tensor in found.tensors:
        yield f"{tensor.name:<20} {'all':>6}  {tensor.whole.relative:.4g}"
        for layer in tensor.layers:
            yield f"{'':<20} {layer.layer:>6}  {layer.whole.relative:.4g}"


def names_of(made: Provenance) -> str:
    """The parents of a version; what it was made from without a name is only called bytes."""
    return ", ".join(ref or "bytes" for ref, content_id in made.parents if ref or content_id)


def history(entries: Sequence[LogEntry]) -> Iterator[str]:
    """How versions came to be, newest first."""
    for entry in entries:
        made = entry.provenance
        parents = names_of(made)
        after = f"{made.n_before:,} to {made.n_after:,} tokens absorbed"
        line = f"{entry.name}@{entry.version}  {_when(entry.created_ms / 1000)}  {made.operation}"
        yield f"{line}{f' of {parents}' if parents else ''}, {after}"


def replay(found: Replay) -> Iterator[str]:
    """What came of making a state again."""
    if found.equal:
        yield f"{found.state}: {_operations(found.n_operations)} made the same bytes again"
    else:
        where = found.first_difference or "an unknown place"
        yield f"{found.state}: other bytes were made, in {where}"


def _operations(n: int) -> str:
    return "one operation" if n == 1 else f"{n:,} operations"


def _tags(info: StateInfo) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(info.tags.items()))


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
