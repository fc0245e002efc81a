"""The coldest tier: payload files as objects of a bucket, a local folder, or memory.

obstore does the talking. It is optional, and imported here alone.
"""

from collections.abc import Iterator
from typing import Any

from wkvm.core.errors import ConfigError, MissingExtraError, StoreFailedError

WHOLE_BYTES = 2**23
"""Up to so many bytes an object is written at once. Of larger ones as much is held at a time."""


class ObjectTier:
    """Objects under one prefix. Threads may call any method at the same time.

    Args:
        bucket: an object store of obstore.
        prefix: of all names here.
    """

    def __init__(self, bucket: Any, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix

    def put(self, name: str, pieces: Iterator[memoryview], n_bytes: int) -> None:
        """Write an object. A large one goes in parts, and is there once all of them are.

        Args:
            pieces: of its bytes, in order. Each may be overwritten once the next is asked for.
            n_bytes: all together.

        Raises:
            StoreFailedError: the object store refused.
        """
        whole: bytes | Iterator[bytes]
        whole = b"".join(pieces) if n_bytes <= WHOLE_BYTES else (bytes(one) for one in pieces)
        try:
            self._bucket.put(self._prefix + name, whole)
        except _errors() as error:
            raise StoreFailedError("write an object", type(error).__name__) from error

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Read an object, a few MiB at a time.

        Raises:
            StoreFailedError: the object store refused, or does not have it.
        """
        try:
            for piece in self._bucket.get(self._prefix + name).stream(min_chunk_size=WHOLE_BYTES):
                yield memoryview(piece)
        except _errors() as error:
            raise StoreFailedError("read an object", type(error).__name__) from error

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none.

        Raises:
            StoreFailedError: the object store refused.
        """
        try:
            self._bucket.delete(self._prefix + name)
        except FileNotFoundError:
            pass
        except _errors() as error:
            raise StoreFailedError("remove an object", type(error).__name__) from error


def open_objects(url: str) -> ObjectTier:
    """An object store by its URL.

    Args:
        url: ``s3://BUCKET/PREFIX`` (credentials, region and endpoint from the environment, as
            AWS's tools take them), ``file:///FOLDER``, or ``memory:///``.

    Raises:
        ConfigError: there is no such store.
        MissingExtraError: obstore is not installed.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise MissingExtraError("objects", "obstore") from error
    try:
        options = {"mkdir": True} if url.startswith("file:") else {}
        return ObjectTier(from_url(url, **options))  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        raise ConfigError("objects", f"{url}: {error}") from error


def _errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return (BaseError, OSError)
