"""Keys of clients: whose they are, and how a file of them is read. No key itself is kept."""

import hashlib
import re
from dataclasses import dataclass, field, replace

from wkvm.core.errors import ConfigError

LOCAL_TENANT = "local"
"""Whose requests those are that come without a key."""

_TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


LIMIT_NAMES = ("requests", "tokens", "concurrent")
"""Of one key over HTTP: requests and tokens in a minute, and requests that are open at once."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the server knows it: whose it is, and its SHA-256. The key itself is not kept.

    Attributes:
        limits: what it may ask for over HTTP: pairs of a name, one of ``LIMIT_NAMES``, and a
            number. Without any, the limits of all keys that have none of their own are its.
    """

    tenant: str
    digest: bytes = field(repr=False)
    limits: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if _TENANT_NAME.fullmatch(self.tenant) is None:
            raise ConfigError(
                "api-key",
                "a tenant's name is a letter or digit, then up to 127 of A-Z a-z 0-9 . _ -",
            )
        if len(self.digest) != hashlib.sha256().digest_size:
            raise ConfigError("api-key", "a digest is not one of SHA-256")

    @staticmethod
    def of(key: str, tenant: str = LOCAL_TENANT) -> "ApiKey":
        """Digest a key.

        Raises:
            ConfigError: the key is empty, not UTF-8, or has white space at an end, or the
                tenant's name is not allowed.
        """
        if not key or key != key.strip():
            raise ConfigError("api-key", "a key is empty or has white space at an end")
        try:
            data = key.encode()
        except UnicodeEncodeError:
            why = "a key is not UTF-8: no client could send it"
            raise ConfigError("api-key", why) from None
        return ApiKey(tenant, hashlib.sha256(data).digest())


def parse_api_keys(text: str) -> tuple[ApiKey, ...]:
    """Read a keys file: one ``tenant:key`` or ``tenant:digest`` a line; ``#`` starts a comment.

    64 hexadecimal digits after the colon are always the SHA-256 of a key, never a key, and nothing
    may follow them.

    A line such as ``[requests=60 tokens=20000 concurrent=4]`` is about the keys below it, up to the
    next such line: these are their limits. ``[]`` is for keys without limits of their own.

    Raises:
        ConfigError: a line is neither, or there is no line. The message gives the line's
            number and nothing of its text.
    """
    keys, limits = list[ApiKey](), tuple[tuple[str, int], ...]()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.lstrip().startswith("["):
            limits = _key_limits(line.strip(), number)
            continue
        tenant, colon, secret = line.strip().partition(":")
        if not colon:
            raise ConfigError("api-keys-file", f"line {number} is not tenant:key")
        try:
            if re.match(r"[0-9a-fA-F]{64}\s", secret):  # such as the " -" of sha256sum
                raise ConfigError("api-keys-file", "something follows the 64 digits of a digest")
            if _SHA256_HEX.fullmatch(secret):
                keys.append(ApiKey(tenant, bytes.fromhex(secret), limits))
            else:
                keys.append(replace(ApiKey.of(secret, tenant), limits=limits))
        except ConfigError as error:
            raise ConfigError("api-keys-file", f"line {number}: {error.why}") from None
    if not keys:
        raise ConfigError("api-keys-file", "there is no key in it")
    return tuple(keys)


def _key_limits(line: str, number: int) -> tuple[tuple[str, int], ...]:
    """The limits of a line in brackets.

    Raises:
        ConfigError: it is none.
    """
    limits = dict[str, int]()
    for word in line[1:].removesuffix("]").split():
        name, _, text = word.partition("=")
        if name not in LIMIT_NAMES or name in limits or not re.fullmatch("[1-9][0-9]{0,11}", text):
            line = ""
        else:
            limits[name] = int(text)
    if not line.endswith("]"):
        why = "is not [requests=N tokens=N concurrent=N], each of them above 0 or left out"
        raise ConfigError("api-keys-file", f"line {number} {why}")
    return tuple(limits.items())
