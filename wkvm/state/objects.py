"""The coldest tier: payload files as objects of a bucket, a local folder, or memory.

obstore does the talking. It is optional, and imported here alone.
"""

from collections.abc import Sequence
from typing import Any

from wkvm.core.errors import ConfigError, MissingExtraError, StoreFailedError


class ObjectTier:
    """Objects under one prefix. Threads may call any method at the same time.

    Args:
        bucket: an object store of obstore.
        prefix: of all names here.
    """

    def __init__(self, bucket: Any, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = prefix

    def put(self, name: str, buffers: Sequence[bytes | memoryview]) -> None:
        """Write an object.

        Raises:
            StoreFailedError: the object store refused.
        """
        try:
            self._bucket.put(self._prefix + name, b"".join(buffers))
        except _errors() as error:
            raise StoreFailedError("write an object", type(error).__name__) from error

    def get(self, name: str) -> memoryview:
        """Read an object.

        Raises:
            StoreFailedError: the object store refused, or does not have it.
        """
        try:
            return memoryview(self._bucket.get(self._prefix + name).bytes())
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
