"""Being told what changes: legal only where the feature ``watch`` was agreed.

A watch is a lane on which the server says what is new of a tenant's states and of its own counters,
until the client cancels it. Whoever does not keep up is told less often, never more at once: what
is said of a state is always how it is now.
"""

from typing import Annotated

import msgspec

from wkvm_protocol.fields import Count, Message, RequestId, ShortText
from wkvm_protocol.messages_states import MAX_PAGE, MAX_STATES, StateInfo

WATCH_FEATURE = "watch"
"""The feature under which all of these may be sent."""
MAX_LINEAGE = 1024
"""Versions in one page of a lineage."""
MAX_COUNTERS = 1024


class LineageEntry(Message, frozen=True):
    """One version in a lineage: what it is, and what it was made from."""

    name: ShortText
    version: Count
    made_as: ShortText
    """The name of its handle when it was made, which is what ``parents`` of others call it."""
    operation: ShortText
    parents: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_STATES)]
    """As ``NAME@VERSION`` at the time, the first being what it continues."""
    created_ms: Count
    n_computed: Count
    n_pending: Count
    n_bytes: Count
    content_id: ShortText


class StateLineage(Message, frozen=True, tag=0x36):
    """Client to server: tell of all versions what they came from. Answered by StateLineagePage."""

    request_id: RequestId
    prefix: ShortText = ""
    """Of the handles' names."""
    state: ShortText = ""
    """A name: of this handle alone."""
    newest: Count = 0
    """Only so many of the newest version numbers of each handle; 0 for all."""
    cursor: ShortText = ""
    """The ``next`` of the page before; empty for the first."""
    limit: Count = MAX_LINEAGE


class StateLineagePage(Message, frozen=True, tag=0x3D):
    """Server to client: a page of a lineage, by name and version. Closes the lane."""

    request_id: RequestId
    entries: Annotated[tuple[LineageEntry, ...], msgspec.Meta(max_length=MAX_LINEAGE)]
    next: ShortText
    """The ``cursor`` of the next page; empty after the last."""


class Watch(Message, frozen=True, tag=0x42):
    """Client to server: tell what there is, and from then on what changes.

    Answered by any number of StateChanges and StatsChanges; Failed closes the lane.
    """

    request_id: RequestId
    wants_states: bool = True
    """Whether states are told of."""
    prefix: ShortText = ""
    """Of the names of states."""
    interval_ms: Count = 200
    """The least time between two StateChanges, once the first picture is complete."""
    stats_ms: Count = 0
    """The time between two StatsChanges; 0 for none."""
    credit: Count = 0
    """How many messages may come before Credit allows more; 0 for any number."""


class StateChanges(Message, frozen=True, tag=0x43):
    """Server to client: how states are now, and which are no more. The lane stays open."""

    request_id: RequestId
    restarts: bool
    """Whether all that was told before is to be forgotten: a picture of everything begins."""
    is_complete: bool
    """Whether nothing is left to be told now."""
    states: Annotated[tuple[StateInfo, ...], msgspec.Meta(max_length=MAX_PAGE)]
    """The newest version of each handle that is new or has changed."""
    used_s: bytes
    """When each of ``states`` was used last, packed uint32: seconds since 1970, 0 if not known."""
    gone: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_PAGE)]
    """Names that are no more."""


class StatsChanges(Message, frozen=True, tag=0x44):
    """Server to client: those counters and gauges that have changed. The lane stays open."""

    request_id: RequestId
    at_us: Count
    """When they were read, by a clock of the server that only ever rises."""
    values: Annotated[dict[ShortText, int], msgspec.Meta(max_length=MAX_COUNTERS)]
    """All of them in the first message of a lane."""
