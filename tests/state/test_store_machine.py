"""Random histories of a store on a simulated disk, against a model of dictionaries."""

import contextlib
import errno
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.machines import walk
from tests.soak import amount, tell
from tests.state.images import an_image, same
from tests.state.programs import check_clean
from tests.state.simulated import IN_MEMORY, Disk, Plan, PowerCut, SimIO
from tests.state.stores import Clock, crash, put
from wkvm.core.errors import StateExistsError, StateNotFoundError, WkvmError
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import AckClass, Durability, VersionRecord
from wkvm.state.store import Store

TENANTS = st.sampled_from(["t", "u"])
NAMES = st.sampled_from(["a", "b", "c", "d"])
SEEDS = st.integers(0, 4)
DURABILITIES = st.sampled_from(list(Durability))
LIMITS = StoreLimits(host_bytes=3 * an_image(0).nbytes, disk_reserve=0.0)

Key = tuple[str, str]


class StoreMachine(RuleBasedStateMachine):
    """Handles by tenant and name, each with the seeds of its versions."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.random = random.Random(seed)
        self.disk = Disk(Path(self.folder.name))
        self.clock = Clock()
        self.handles = dict[Key, dict[int, int]]()
        self.in_memory = set[tuple[Key, int]]()
        self.expiry = dict[Key, float]()
        # Whatever was seen under a name and a version, for ever.
        self.seen = dict[tuple[Key, int], int]()
        self.open()

    def open(self) -> None:
        self.io = SimIO(self.disk)
        self.store = Store.open("/sim", clock=self.clock, io=self.io, limits=LIMITS)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            crash(self.store)
            self.folder.cleanup()
            # Hypothesis holds on to its machines, and each disk has some MiB of ballast.
            del self.store, self.io, self.disk

    # --- the model ---------------------------------------------------------------------

    def note(self, record: VersionRecord, seed: int) -> None:
        key, version = (record.tenant, record.name), record.version
        assert version > max([0, *self.handles.get(key, {})])
        assert self.seen.setdefault((key, version), seed) == seed
        self.handles.setdefault(key, {})[version] = seed
        if record.ack is AckClass.VISIBLE:
            self.in_memory.add((key, version))
        else:
            self.saved(key[0], seed)

    def saved(self, tenant: str, seed: int) -> None:
        """Versions of a tenant with the same bytes share them, in memory and on disk."""
        for key, version in list(self.in_memory):
            if key[0] == tenant and self.handles[key][version] == seed:
                self.in_memory.discard((key, version))

    def drop(self, key: Key) -> None:
        for version in self.handles.pop(key):
            self.in_memory.discard((key, version))
        self.expiry.pop(key, None)

    def drop_version(self, key: Key, version: int) -> None:
        del self.handles[key][version]
        self.in_memory.discard((key, version))
        if not self.handles[key]:
            self.drop(key)

    def crashed(self) -> None:
        for key, version in list(self.in_memory):
            self.drop_version(key, version)

    def head(self, key: Key) -> int:
        return max(self.handles.get(key, {0: 0}))

    # --- what happens ------------------------------------------------------------------

    @rule(tenant=TENANTS, name=NAMES, seed=SEEDS, durability=DURABILITIES)
    def commit(self, tenant: str, name: str, seed: int, durability: Durability) -> None:
        expected = self.head((tenant, name))
        record = put(
            self.store, name, seed, tenant, expected_version=expected, durability=durability
        )
        self.note(record, seed)
        self.forget_spilled()

    @rule(tenant=TENANTS, source=NAMES, name=NAMES, durability=DURABILITIES)
    def fork(self, tenant: str, source: str, name: str, durability: Durability) -> None:
        versions = self.handles.get((tenant, source))
        try:
            (record,) = self.store.fork(tenant, source, [name], durability=durability)
        except StateNotFoundError:
            assert versions is None
        except StateExistsError:
            assert (tenant, name) in self.handles
        else:
            assert versions is not None
            self.note(record, versions[max(versions)])
            self.forget_spilled()

    @rule(tenant=TENANTS, name=NAMES, data=st.data())
    def rollback(self, tenant: str, name: str, data: st.DataObject) -> None:
        versions = self.handles.get((tenant, name))
        if versions is None:
            return
        version = data.draw(st.sampled_from(sorted(versions)))
        self.note(self.store.rollback(tenant, name, version=version), versions[version])

    @rule(tenant=TENANTS, name=NAMES, data=st.data())
    def delete(self, tenant: str, name: str, data: st.DataObject) -> None:
        key = (tenant, name)
        if key not in self.handles:
            with pytest.raises(StateNotFoundError):
                self.store.delete(tenant, name)
            return
        version = data.draw(st.none() | st.sampled_from(sorted(self.handles[key])))
        if version is None:
            self.store.delete(tenant, name)
            self.drop(key)
        else:
            self.store.delete(tenant, f"{name}@{version}")
            self.drop_version(key, version)

    @rule(tenant=TENANTS, name=NAMES, new=NAMES)
    def rename(self, tenant: str, name: str, new: str) -> None:
        key, new_key = (tenant, name), (tenant, new)
        try:
            self.store.rename(tenant, name, new)
        except StateNotFoundError:
            assert key not in self.handles
        except StateExistsError:
            taken = any(
                self.seen.get((new_key, version), seed) != seed
                for version, seed in self.handles[key].items()
            )
            assert new_key in self.handles or taken or self.was_used(new_key, key)
        else:
            self.handles[new_key] = self.handles.pop(key)
            if key in self.expiry:
                self.expiry[new_key] = self.expiry.pop(key)
            for version, seed in self.handles[new_key].items():
                assert self.seen.setdefault((new_key, version), seed) == seed
                if (key, version) in self.in_memory:
                    self.in_memory.discard((key, version))
                    self.in_memory.add((new_key, version))

    def was_used(self, new_key: Key, key: Key) -> bool:
        """Whether the name stood for versions up to one that this handle has."""
        lowest = min(self.handles[key])
        return any(one == new_key and version >= lowest for one, version in self.seen)

    @rule(tenant=TENANTS, name=NAMES, seconds=st.integers(1, 20))
    def expire(self, tenant: str, name: str, seconds: int) -> None:
        key = (tenant, name)
        if key in self.handles:
            self.store.set_expiry(tenant, name, self.clock.now + seconds)
            self.expiry[key] = self.clock.now + seconds

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds
        for key, at in list(self.expiry.items()):
            if at <= self.clock.now:
                self.drop(key)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.in_memory.clear()

    @rule()
    def gc(self) -> None:
        self.store.gc()

    @rule()
    def check(self) -> None:
        assert self.store.check().findings == ()

    @rule()
    def close(self) -> None:
        self.store.close()
        self.crashed()
        self.open()

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        crash(self.store)
        if power:
            self.disk.lose_power(self.random)
        self.disk.locks.clear()
        self.crashed()
        self.open()
        check_clean(self.store)

    @rule(
        tenant=TENANTS,
        name=NAMES,
        seed=st.integers(5, 9),
        at=st.integers(0, 12),
        fault=st.sampled_from([errno.EIO, errno.ENOSPC, errno.EMFILE]),
        is_sticky=st.booleans(),
    )
    def commit_while_the_disk_fails(
        self, tenant: str, name: str, seed: int, at: int, fault: int, is_sticky: bool
    ) -> None:
        self.io.n_operations = 0
        self.io.plan = Plan(at=at, fault=fault, is_sticky=is_sticky)
        try:
            record = put(self.store, name, seed, tenant)
        except WkvmError:
            pass
        else:
            self.note(record, seed)
        self.io.plan = Plan()
        if not self.store.stat().is_writable:
            self.crash(True)

    @rule(tenant=TENANTS, name=NAMES, seed=st.integers(5, 9), at=st.integers(0, 12))
    def commit_while_power_goes(self, tenant: str, name: str, seed: int, at: int) -> None:
        self.io.n_operations = 0
        self.io.plan = Plan(at=at)
        key, before = (tenant, name), self.head((tenant, name))
        with contextlib.suppress(PowerCut):
            self.note(put(self.store, name, seed, tenant), seed)
        self.crash(True)
        found = [one for one in self.store.handles(tenant) if one.name == name]
        if found and found[0].head.version > max(before, self.head(key)):
            self.note(found[0].head, seed)

    # --- what holds --------------------------------------------------------------------

    def forget_spilled(self) -> None:
        """What memory had no room for went to disk."""
        for key, version in list(self.in_memory):
            record = self.store.get(key[0], f"{key[1]}@{version}")
            if record.ack is AckClass.DURABLE:
                self.in_memory.discard((key, version))

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        for tenant in ("t", "u"):
            handles = self.store.handles(tenant)
            names = [key[1] for key in self.handles if key[0] == tenant]
            assert [one.name for one in handles] == sorted(names)
            for handle in handles:
                key = (tenant, handle.name)
                versions = self.handles[key]
                assert handle.head.version == max(versions)
                for record in self.store.log(tenant, handle.name):
                    image = self.store.load(tenant, record.ref).image
                    assert same(image, an_image(versions[record.version]))
                    is_in_memory = (key, record.version) in self.in_memory
                    assert (record.ack is AckClass.VISIBLE) == is_in_memory
                assert handle.n_versions == len(versions)

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_host_tier_keeps_its_bound(self) -> None:
        assert self.store.stat().host.n_bytes <= LIMITS.host_bytes


def test_a_store_holds_what_a_model_of_dictionaries_holds_whatever_happens() -> None:
    n_steps = walk(StoreMachine, amount(2_000, 50_000), length=amount(30, 50))
    tell(0, "a store against its model", n_steps, "steps")
