"""The flags of a server that is short of memory or disk, as a table; see ``flags``."""

from wkvm.cli.flags import Flag
from wkvm.cli.store_flags import n_bytes

PRESSURE_FLAGS = (
    Flag(
        names=("--max-rss-bytes",),
        field="max_rss_bytes",
        kind=n_bytes,
        metavar="BYTES",
        text="memory of the process from which on nothing new is taken but what makes room, such "
        "as 12G; 0 for no limit (default: %(default)s)",
    ),
    Flag(
        names=("--shed-rss-bytes",),
        field="shed_rss_bytes",
        kind=n_bytes,
        metavar="BYTES",
        text="memory of the process from which on no request is taken that would wait, and no new "
        "state; 0 for nine tenths of --max-rss-bytes (default: %(default)s)",
    ),
    Flag(
        names=("--shed-disk",),
        field="shed_disk",
        kind=float,
        metavar="SHARE",
        text="while less than this share of the disk of --state-dir is free, no new state is "
        "taken, such as 0.1; 0 for --state-disk-reserve alone (default: %(default)s)",
    ),
)
