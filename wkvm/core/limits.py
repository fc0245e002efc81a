"""How much a store of states takes, and which tags, keys and records it takes. Rules alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from wkvm.core.errors import InvalidParameterError
from wkvm.core.registry import Provenance, canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much one store takes. Bytes of a tenant count each payload once, however many share it.

    Attributes:
        handles_per_tenant: live handles.
        bytes_per_tenant: of payloads, in all tiers together.
        host_bytes_per_tenant: of those that are in host memory alone; 0 for no limit but that of
            all.
        forks_per_s: handles that a tenant may fork in a second; 0 for no limit.
        versions_per_handle: kept ones; more are refused until some are deleted.
        drops_old_versions: they are not refused, but the oldest go with each new one.
        checkpoints_per_handle: likewise.
        forks_at_once: of one call.
        tags_per_handle: with at most ``tag_chars`` characters in a key or a value.
        provenance_bytes: of one record, as JSON.
        disk_reserve: share of the disk that no payload may take, so that the catalogue can always
            be written.
        host_bytes: of states in host memory.
        idempotency_s: how long a key is remembered.
        past_names_per_tenant: names of deleted handles that are remembered one by one, so that
            their versions' numbers are not given again.
    """

    handles_per_tenant: int = 10_000
    bytes_per_tenant: int = 64 * 2**30
    host_bytes_per_tenant: int = 0
    forks_per_s: int = 1_000
    versions_per_handle: int = 10_000
    drops_old_versions: bool = False
    checkpoints_per_handle: int = 1_000
    forks_at_once: int = 64
    tags_per_handle: int = 32
    tag_chars: int = 256
    provenance_bytes: int = 65_536
    disk_reserve: float = 0.05
    host_bytes: int = 256 * 2**20
    idempotency_s: float = 86_400.0
    past_names_per_tenant: int = 100_000

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is bool:
                continue
            low = 0 if one.name in _MAY_BE_0 else 1
            is_number = type(value) is int or (one.type is float and type(value) is float)
            if not is_number or not low <= value < math.inf:
                raise InvalidParameterError(one.name, f"{value!r} is not a number from {low}")
        if self.disk_reserve >= 1:
            raise InvalidParameterError("disk_reserve", "a share of the disk is below 1")


_MAY_BE_0 = frozenset(
    {"host_bytes", "host_bytes_per_tenant", "forks_per_s", "disk_reserve", "tags_per_handle"}
)

OWN_TAGS = "wkvm."
"""What the keys of tags begin with that wkvm gives; they do not count."""

MAX_KEY_CHARS = 128


def check_key(key: str) -> str:
    """An idempotency key, if it may be one.

    Raises:
        InvalidParameterError: it is empty or too long.
    """
    if not 0 < len(key) <= MAX_KEY_CHARS:
        raise InvalidParameterError("idempotency_key", f"1 to {MAX_KEY_CHARS} characters")
    return key


def check_given(
    limits: StoreLimits, tags: Mapping[str, str] | None, idempotency_key: str | None = None
) -> None:
    """Check what a client wants kept with a version, before anything is made or received for it.

    Raises:
        InvalidParameterError: they could not be kept, or a tag is one of wkvm's own.
    """
    if tags:
        if any(key.startswith(OWN_TAGS) for key in tags):
            raise InvalidParameterError("tags", f"keys that begin with {OWN_TAGS!r} are wkvm's own")
        check_tags(tags, limits)
    if idempotency_key is not None:
        check_key(idempotency_key)


def check_tags(tags: Mapping[str, str], limits: StoreLimits) -> dict[str, str]:
    """The tags, if they may be kept.

    Raises:
        InvalidParameterError: they are too many or too long, or not text.
    """
    if sum(not str(key).startswith(OWN_TAGS) for key in tags) > limits.tags_per_handle:
        raise InvalidParameterError("tags", f"at most {limits.tags_per_handle}")
    texts: list[object] = [*tags.keys(), *tags.values()]
    for text in texts:
        if not isinstance(text, str) or len(text) > limits.tag_chars or not _is_text(text):
            raise InvalidParameterError(
                "tags", f"printable text of at most {limits.tag_chars} characters"
            )
    if "" in tags:
        raise InvalidParameterError("tags", "a key is empty")
    return dict(tags)


def check_provenance(provenance: Provenance, limits: StoreLimits) -> str:
    """The provenance as the catalogue keeps it.

    Raises:
        InvalidParameterError: its parameters are not JSON, or it is too long.
    """
    try:
        text = canonical_json(provenance.to_json())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError("provenance", f"not JSON: {error}") from error
    if len(text) > limits.provenance_bytes:
        raise InvalidParameterError(
            "provenance", f"the limit is {limits.provenance_bytes:,} bytes of JSON"
        )
    return text


def _is_text(text: str) -> bool:
    return "\0" not in text and text.isprintable()
