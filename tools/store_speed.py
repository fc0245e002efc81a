"""How fast a store is: ``python -m tools.store_speed``. One JSON line a measurement."""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import torch

from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import Carried, Durability, Identity, Provenance, RandomKey
from wkvm.state.image import StateImage
from wkvm.state.store import Store

SIZES = {"2.3 MiB": 2_400_000, "12.8 MB": 12_800_000}
N_HANDLES = 9984
SMOKE_SIZES, SMOKE_N, SMOKE_HANDLES = {"4 kB": 4_000}, 2, 128
CREATE = Provenance(operation="create")


def an_image(n_bytes: int, seed: int) -> StateImage:
    """A state of about so many bytes."""
    layout = StateLayout((TensorSpec("toy.matrix", (n_bytes // 4,), "float32"),))
    record = torch.zeros(layout.record_bytes, dtype=torch.uint8)
    record.view(torch.float32)[:] = torch.rand(
        layout.record_bytes // 4, generator=torch.Generator().manual_seed(seed)
    )
    record[layout.payload_bytes :] = 0
    return StateImage(
        identity=Identity(model_digest="ab", fingerprint=layout.fingerprint),
        layout=layout,
        carried=Carried(n_computed=0),
        token_ids=b"",
        record=record,
    )


def timed(name: str, work: Callable[[int], object], n: int) -> None:
    """Run ``work`` n times and say how long one took."""
    times = list[float]()
    for at in range(n):
        start = time.perf_counter()
        work(at)
        times.append(1e3 * (time.perf_counter() - start))
    times.sort()
    print(
        json.dumps(
            {
                "what": name,
                "n": n,
                "p50_ms": round(statistics.median(times), 3),
                "p99_ms": round(times[min(len(times) - 1, int(0.99 * n))], 3),
            }
        ),
        flush=True,
    )


def measure(folder: Path, label: str, n_bytes: int, n: int) -> None:
    """Measure what moves the bytes of states."""
    images = [an_image(n_bytes, seed) for seed in range(n)]
    path, clock = str(folder / f"store-{n_bytes}"), time.time

    def commit(store: Store, durability: Durability) -> Callable[[int], object]:
        return lambda at: store.commit(
            durability.value,
            f"n{at}",
            images[at],
            provenance=CREATE,
            durability=durability,
            check_finite=False,
        )

    with closing(Store.open(path, clock=clock, limits=StoreLimits(host_bytes=2**31))) as store:
        timed(f"commit {label} to disk", commit(store, Durability.DISK), n)
        timed(f"commit {label} to memory", commit(store, Durability.MEMORY), n)
    probe = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT)

    def write(at: int) -> None:
        os.pwrite(probe, memoryview(images[at].record.numpy()), at * n_bytes)  # type: ignore[arg-type]
        os.fsync(probe)

    timed(f"write and fsync {label} alone", write, n)
    os.close(probe)
    buffer = torch.zeros_like(images[0].record)
    with closing(Store.open(path, clock=clock, limits=StoreLimits(host_bytes=0))) as store:

        def load(at: int) -> None:
            store.load("disk", f"n{at}", into=buffer)

        timed(f"load {label} from the page cache", load, n)


def handles(folder: Path, n: int, n_handles: int = N_HANDLES) -> None:
    """What many handles cost."""
    path = str(folder / "handles")
    store = Store.open(path, clock=time.time)
    store.commit("t", "a", an_image(1000, 0), provenance=CREATE)
    start = time.perf_counter()
    for first in range(0, n_handles, 64):
        names = [f"f{first + at}" for at in range(64)]
        store.fork("t", "a", names, keys=[RandomKey(at, first) for at in range(64)])
    print(json.dumps({"what": f"{n_handles:,} forks", "s": round(time.perf_counter() - start, 3)}))
    timed("look up one", lambda at: store.get("t", f"f{at * 37 % n_handles}"), 100 * n)
    for at in range(10):
        store.delete("t", f"f{at}")
    timed("one fork", lambda at: store.fork("t", "a", [f"f{at % 10}"]), 10)
    for at in range(65):
        store.delete("t", f"f{at}")
    timed("64 forks", lambda at: store.fork("t", "a", [f"f{one}" for one in range(64)]), 1)
    timed("a page of 100 handles", lambda at: store.handles("t"), n)
    store.close()
    timed("open with all handles", lambda at: Store.open(path, clock=time.time).close(), 5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="on the disk that is measured (default: a temporary one)")
    parser.add_argument("--n", type=int, default=40, help="of each (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="once, with tiny counts")
    args = parser.parse_args(arguments)
    sizes, n, n_handles = SIZES, args.n, N_HANDLES
    if args.smoke:
        sizes, n, n_handles = SMOKE_SIZES, SMOKE_N, SMOKE_HANDLES
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        for label, n_bytes in sizes.items():
            measure(folder, label, n_bytes, n)
        handles(folder, n, n_handles)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
