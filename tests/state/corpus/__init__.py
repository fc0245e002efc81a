"""Makes the corpus: see README.md here."""

import hashlib
import io
import json
import sqlite3
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.state import random_images
from tests.state.images import KINDS, an_image
from tests.state.random_images import FAMILIES
from tests.state.stores import Clock, after, put
from wkvm.core.registry import Parent, Provenance
from wkvm.state.catalogue import SCHEMA_VERSION
from wkvm.state.exchange import export_image
from wkvm.state.format import FORMAT
from wkvm.state.image import StateImage, encode_image
from wkvm.state.store import Store

HERE = Path(__file__).parent
CONTENTS = HERE / "contents.json"
RECORDS = (
    Provenance(operation="create", n_after=5, engine="0.1", cuts=(64,)),
    Provenance(
        operation="noise",
        parameters={"deviation": 0.5, "layers": None},
        parents=(Parent(ref="story@1", content_id="ab"),),
        n_before=5,
        n_after=5,
        seed=2**63,
    ),
)


def facts_of(image: StateImage) -> dict[str, Any]:
    """What a state is, but for how it is written."""
    return {
        "identity": image.identity.to_json(),
        "carried": image.carried.to_json(),
        "tensors": {
            name: [view.dtype.__repr__(), list(view.shape)] for name, view in image.views().items()
        },
        "record": hashlib.sha256(image.record.numpy().tobytes()).hexdigest(),
        "token_ids": hashlib.sha256(image.token_ids).hexdigest(),
        "content_id": encode_image(image).content_id,
    }


def images() -> dict[str, StateImage]:
    """States of all kinds, small."""
    made = {family: random_images.image(1, kind=family) for family in FAMILIES}
    made |= {
        "empty": an_image(1, n_tokens=0),
        "pages": an_image(2, layout=KINDS["pages"], n_tokens=70),
        "pages-full": an_image(3, layout=KINDS["pages"], n_tokens=64),
        "pages-empty": an_image(4, layout=KINDS["pages"], n_tokens=0),
        "half": random_images.image(5, "bfloat16"),
        "ring": random_images.image(6, ring=True, waiting=0),
    }
    return made


def files() -> dict[str, tuple[bytes, StateImage]]:
    """By name a file of a state, and what is in it."""
    made = dict[str, tuple[bytes, StateImage]]()
    for name, image in images().items():
        made[f"state-{FORMAT}-{name}"] = encode_image(image).tobytes(), image
    image = random_images.image(7)
    exported = b"".join(export_image(image, RECORDS, omitted=2).chunks())
    made[f"export-{FORMAT}"] = exported, image
    return made


def fill(store: Store) -> None:
    """Do one of everything that leaves rows."""
    put(store, "a", 1, tags={"x": "y"})
    put(store, "a", 2, provenance=after(store.get("t", "a")), idempotency_key="k")
    put(store, "a", 3, checkpoints=[an_image(4, n_tokens=1)])
    put(store, "b", 2)
    put(store, "gone", 5)
    store.fork("t", "a@2", ["f", "g"])
    store.rollback("t", "a", version=1)
    store.rename("t", "b", "c")
    store.set_expiry("t", "c", 1e12)
    store.delete("t", "gone")
    store.delete("t", "a@3")
    put(store, "a", 6, tenant="u")


def contents_of(store: Store) -> dict[str, Any]:
    """All that a store says of what is in it."""
    content = dict[str, Any]()
    for tenant in ("t", "u"):
        for handle in store.handles(tenant):
            content[f"{tenant}/{handle.name}"] = {
                "head": handle.head.version,
                "tags": dict(handle.tags),
                "expires_at": handle.expires_at,
                "versions": {
                    str(one.version): {
                        "n_computed": one.n_computed,
                        "operation": one.provenance.operation,
                        "parents": [parent.ref for parent in one.provenance.parents],
                        "image": facts_of(store.load(tenant, one.ref).image),
                    }
                    for one in store.log(tenant, handle.name)
                },
            }
    return content


def store_archive() -> tuple[bytes, dict[str, Any]]:
    """A closed store as one archive, and what is in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store = Store.open(str(path), clock=Clock())
        fill(store)
        content = contents_of(store)
        store.close()
        (path / "ballast").unlink()
        with sqlite3.connect(path / "catalogue.db") as database:
            database.execute("VACUUM")
        database.close()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz") as archive:
            archive.add(path, "store")
        return packed.getvalue(), content


def make() -> None:
    """Write what is not there yet."""
    contents = json.loads(CONTENTS.read_text()) if CONTENTS.exists() else {}
    for name, (data, image) in files().items():
        path = HERE / f"{name}.safetensors"
        if not path.exists():
            path.write_bytes(data)
            contents[path.name] = facts_of(image)
    path = HERE / f"store-{SCHEMA_VERSION}.tar.xz"
    if not path.exists():
        data, contents[path.name] = store_archive()
        path.write_bytes(data)
    CONTENTS.write_text(json.dumps(contents, indent=1, sort_keys=True) + "\n")
    sums = {name: hashlib.sha256((HERE / name).read_bytes()).hexdigest() for name in contents}
    lines = [f"{sums[name]}  {name}\n" for name in sorted(sums)]
    (HERE / "SHA256SUMS").write_text("".join(lines))
