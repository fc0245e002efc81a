"""What a server process says of itself to a benchmark."""

import msgspec


class Held(msgspec.Struct):
    """What the process holds.

    Attributes:
        port: where it serves HTTP over TCP.
        n_tasks: of asyncio, without those that look.
        n_objects: that the garbage collector knows of; 0 where it did not look.
        stats: the engine's counters and gauges.
    """

    port: int
    n_tasks: int
    n_files: int
    rss_bytes: int
    n_objects: int
    n_connections: int
    n_requests: int
    stats: dict[str, int]
