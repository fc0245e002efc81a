"""The flags of durable states, as a table; see ``flags``."""

import argparse

from wkvm.cli.flags import Flag, place

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def n_bytes(text: str) -> int:
    """A number of bytes, such as ``512M`` or ``64G``."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return int(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes, such as 512M or 64G"
        ) from None


STORE_FLAGS = (
    Flag(
        names=("--state-dir",),
        field="folder",
        dest="state_folder",
        kind=place,
        metavar="FOLDER",
        text="where named states are kept; it is made where it is missing, and belongs to one "
        "process at a time (default: in memory, until the process ends)",
    ),
    Flag(
        names=("--state-cold",),
        field="cold",
        dest="state_cold",
        kind=str,
        metavar="URL",
        text="object store to which states can be moved from the disk: s3://BUCKET/PREFIX or "
        "file:///FOLDER (default: none)",
    ),
    Flag(
        names=("--state-host-bytes",),
        field="host_bytes",
        dest="state_host_bytes",
        kind=n_bytes,
        metavar="BYTES",
        text="host memory for states that no request works on, such as 512M or 64G "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--state-idle-s",),
        field="idle_s",
        dest="state_idle_s",
        kind=float,
        metavar="S",
        text="a state that nobody has used for so long leaves host memory for the disk; 0 for "
        "never (default: %(default)s)",
    ),
    Flag(
        names=("--state-disk-reserve",),
        field="disk_reserve",
        dest="state_disk_reserve",
        kind=float,
        metavar="SHARE",
        text="share of the disk that states leave free, so that deletions always work "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--max-states-per-tenant",),
        field="handles_per_tenant",
        dest="state_handles_per_tenant",
        kind=int,
        metavar="N",
        text="how many named states one tenant may have (default: %(default)s)",
    ),
    Flag(
        names=("--max-state-bytes-per-tenant",),
        field="bytes_per_tenant",
        dest="state_bytes_per_tenant",
        kind=n_bytes,
        metavar="BYTES",
        text="how many bytes these may take in all tiers together (default: %(default)s)",
    ),
    Flag(
        names=("--max-state-host-bytes-per-tenant",),
        field="host_bytes_per_tenant",
        dest="state_host_bytes_per_tenant",
        kind=n_bytes,
        metavar="BYTES",
        text="how many of these may be in host memory alone; 0 for as many as --state-host-bytes "
        "has room for (default: %(default)s)",
    ),
    Flag(
        names=("--max-forks-per-s",),
        field="forks_per_s",
        dest="state_forks_per_s",
        kind=int,
        metavar="N",
        text="how many states one tenant may fork in a second; 0 for any number "
        "(default: %(default)s)",
    ),
    Flag(
        names=("--max-versions-per-state",),
        field="versions_per_handle",
        dest="state_versions_per_handle",
        kind=int,
        metavar="N",
        text="how many versions of a state are kept; more are refused (default: %(default)s)",
    ),
    Flag(
        names=("--drop-old-versions",),
        field="drops_old_versions",
        dest="state_drops_old_versions",
        kind=None,
        text="of a state that has as many versions as are kept, the oldest go with each new one, "
        "and with them what can be gone back to",
    ),
)
