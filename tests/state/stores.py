"""Stores for tests: on a real folder or a simulated disk, with a clock that the test turns."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.state.images import an_image
from wkvm.core.registry import Durability, Parent, Provenance, VersionRecord
from wkvm.state.store import Store

CREATE = Provenance(operation="create")
MEMORY = Durability.MEMORY


class Clock:
    """Seconds since 1970, as many as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def opened(path: Path | str, clock: Clock | None = None, **options: Any) -> Iterator[Store]:
    store = Store.open(str(path), clock=clock or Clock(), **options)
    try:
        yield store
    finally:
        if store._catalogue._writer is not None:
            store.close()


def put(store: Store, name: str, seed: int, tenant: str = "t", **options: Any) -> VersionRecord:
    """Commit the image of ``seed``."""
    n_tokens = options.pop("n_tokens", 3)
    options.setdefault("provenance", CREATE)
    return store.commit(tenant, name, an_image(seed, n_tokens=n_tokens), **options)


def after(record: VersionRecord) -> Provenance:
    """The provenance of what goes on from a version."""
    parent = Parent(ref=str(record.ref), content_id=record.content_id)
    return Provenance(operation="generate", parents=(parent,), n_before=record.n_computed)


def crash(store: Store) -> None:
    """What kill -9 leaves: nothing is flushed, no lock is held."""
    store._catalogue.close()
    store._threads.shutdown()
    store._folders.close(store._io)


def files(path: Path | str) -> list[str]:
    """Names of all payload files."""
    return sorted(one.name for one in (Path(path) / "payloads").iterdir())
