"""Facts about a store that nothing goes wrong with."""

import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.state.images import an_image, identity_of, same
from tests.state.stores import CREATE, MEMORY, Clock, after, crash, files, opened, put
from wkvm.core.errors import (
    InvalidParameterError,
    KeyReusedError,
    QuotaError,
    StaleVersionError,
    StateExistsError,
    StateMismatchError,
    StateNotFiniteError,
    StateNotFoundError,
)
from wkvm.core.limits import StoreLimits
from wkvm.core.registry import AckClass, Durability, RandomKey, Ref
from wkvm.core.states import Tier
from wkvm.state.catalogue import Catalogue
from wkvm.state.store import Store

pytestmark = pytest.mark.usefixtures("either_kind")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with opened(tmp_path / "store", clock) as one:
        yield one


def test_a_version_is_durable_and_comes_back_equal_after_reopening(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        record = put(store, "a", 1)
        assert (record.ref, record.ack) == (Ref("a", 1), AckClass.DURABLE)
    with opened(tmp_path) as store:
        assert store.get("t", "a") == record
        assert same(store.load("t", "a").image, an_image(1))


def test_an_earlier_version_stays_as_it_was(store: Store) -> None:
    put(store, "a", 1)
    put(store, "a", 2)
    assert same(store.load("t", "a@1").image, an_image(1))
    assert same(store.load("t", "a").image, an_image(2))
    assert [one.version for one in store.log("t", "a")] == [2, 1]
    assert [one.version for one in store.log("t", "a@1")] == [1]
    assert [one.version for one in store.log("t", "a", before=2)] == [1]
    assert store.log("t", "a", before=1) == []


def test_a_commit_on_a_version_that_is_not_the_head_is_refused_and_changes_nothing(
    store: Store, tmp_path: Path
) -> None:
    put(store, "a", 1, expected_version=0)
    before = files(tmp_path / "store")
    for expected in (0, 2):
        with pytest.raises(StaleVersionError) as caught:
            put(store, "a", 2, expected_version=expected)
        assert (caught.value.expected, caught.value.head) == (expected, 1)
    with pytest.raises(StaleVersionError):
        put(store, "b", 2, expected_version=1)
    assert store.get("t", "a").version == 1
    assert files(tmp_path / "store") == before


def test_a_commit_that_is_retried_with_its_key_is_applied_once(store: Store) -> None:
    first = put(store, "a", 1, idempotency_key="k", expected_version=0)
    again = put(store, "a", 1, idempotency_key="k", expected_version=0)
    assert again == first
    assert store.handle("t", "a").n_versions == 1
    with pytest.raises(KeyReusedError):
        put(store, "b", 1, idempotency_key="k")


def test_forks_and_rollbacks_that_are_retried_are_applied_once(store: Store) -> None:
    put(store, "a", 1)
    forks = store.fork("t", "a", ["b", "c"], idempotency_key="f")
    assert store.fork("t", "a", ["b", "c"], idempotency_key="f") == forks
    back = store.rollback("t", "a", version=1, idempotency_key="r")
    assert store.rollback("t", "a", version=1, idempotency_key="r") == back
    assert back.version == 2


def test_a_key_of_one_tenant_means_nothing_to_another(store: Store) -> None:
    put(store, "a", 1, idempotency_key="k")
    assert put(store, "b", 2, tenant="u", idempotency_key="k").name == "b"


def test_a_key_is_forgotten_in_the_end(store: Store, clock: Clock) -> None:
    put(store, "a", 1, idempotency_key="k")
    clock.now += store.limits.idempotency_s
    assert put(store, "a", 1, idempotency_key="k").version == 2
    clock.now += store.limits.idempotency_s
    assert store.gc().n_keys == 1


def test_equal_states_of_a_tenant_are_one_file_and_those_of_two_are_two(
    store: Store, tmp_path: Path
) -> None:
    put(store, "a", 1)
    put(store, "b", 1)
    put(store, "b", 1)
    assert len(files(tmp_path / "store")) == 1
    put(store, "a", 1, tenant="u")
    assert len(files(tmp_path / "store")) == 2


def test_forks_share_their_parents_file_until_the_last_goes(store: Store, tmp_path: Path) -> None:
    put(store, "a", 1)
    names = [f"f{at}" for at in range(64)]
    assert [one.ref for one in store.fork("t", "a", names)] == [Ref(one, 1) for one in names]
    for name in ("a", *names):
        assert len(files(tmp_path / "store")) == 1
        assert store.load("t", name).image.token_ids == an_image(1).token_ids
        store.delete("t", name)
    assert files(tmp_path / "store") == []
    assert store.stat().n_handles == 0


def test_forks_draw_from_keys_of_their_own_and_a_replay_from_its_parents(store: Store) -> None:
    put(store, "a", 1)
    store.fork("t", "a", ["b", "c"], keys=[RandomKey(7, 8), RandomKey(2**64 - 1, 0)])
    store.fork("t", "b", ["d"])
    store.fork("t", "a", ["e"])
    keys = {}
    for name in "abcde":
        sampler = store.load("t", name).image.carried.sampler
        assert sampler is not None
        keys[name] = sampler.key
    assert keys["b"] == keys["d"] == RandomKey(7, 8)
    assert keys["c"] == RandomKey(2**64 - 1, 0)
    assert keys["a"] == keys["e"] == RandomKey(1, 0)


def test_a_fork_onto_a_name_that_is_taken_makes_none(store: Store) -> None:
    put(store, "a", 1)
    with pytest.raises(StateExistsError):
        store.fork("t", "a", ["b", "a"])
    assert [one.name for one in store.handles("t")] == ["a"]


@pytest.mark.parametrize("names", [[], ["b", "b"], ["../b"], [f"n{at}" for at in range(65)]])
def test_a_fork_needs_some_different_names(store: Store, names: list[str]) -> None:
    put(store, "a", 1)
    with pytest.raises(InvalidParameterError):
        store.fork("t", "a", names)


def test_a_rollback_is_a_new_version_with_the_old_bytes(store: Store) -> None:
    put(store, "a", 1)
    put(store, "a", 2)
    back = store.rollback("t", "a", version=1)
    assert (back.version, back.content_id) == (3, store.get("t", "a@1").content_id)
    assert same(store.load("t", "a").image, an_image(1))


def test_a_rollback_by_position_goes_to_checkpoints_along_the_way(store: Store) -> None:
    one = put(store, "a", 1, n_tokens=10)
    two = put(
        store,
        "a",
        2,
        n_tokens=30,
        provenance=after(one),
        checkpoints=[an_image(3, n_tokens=15), an_image(4, n_tokens=20)],
    )
    assert store.checkpoints("t", "a") == [10, 15, 20, 30]
    back = store.rollback("t", "a", position=15)
    assert same(store.load("t", back.ref).image, an_image(3, n_tokens=15))
    # what came after position 15 is not on the way to the new head
    assert store.checkpoints("t", "a") == [10, 15]
    put(store, "a", 5, n_tokens=25, provenance=after(back))
    assert store.checkpoints("t", "a") == [10, 15, 25]
    for position in (0, 20, 30):
        with pytest.raises(StateNotFoundError):
            store.rollback("t", "a", position=position)
    assert store.get("t", two.ref) == two


def test_a_fork_can_be_rolled_back_to_its_parents_checkpoints(store: Store) -> None:
    put(store, "a", 1, n_tokens=10, checkpoints=[an_image(2, n_tokens=5)])
    store.fork("t", "a", ["b"])
    assert store.checkpoints("t", "b") == [5, 10]
    store.rollback("t", "b", position=5)
    assert same(store.load("t", "b").image, an_image(2, n_tokens=5))
    assert store.get("t", "a").version == 1


def test_deleting_a_version_moves_the_head_back_and_never_gives_its_number_again(
    store: Store,
) -> None:
    for seed in (1, 2, 3):
        put(store, "a", seed)
    store.delete("t", "a@3")
    assert store.get("t", "a").version == 2
    store.delete("t", "a@1")
    assert put(store, "a", 4).version == 4
    store.delete("t", "a@2")
    store.delete("t", "a@4")
    with pytest.raises(StateNotFoundError):
        store.get("t", "a")
    assert put(store, "a", 5).version == 5


def test_what_was_deleted_is_gone_also_after_reopening(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", 1, checkpoints=[an_image(2, n_tokens=1)])
        store.delete("t", "a")
        assert files(tmp_path) == []
        with pytest.raises(StateNotFoundError):
            store.load("t", "a")
    with opened(tmp_path) as store:
        assert store.handles("t") == []
        assert store.check().findings == ()


def test_a_handle_keeps_its_versions_and_numbers_when_it_is_renamed(store: Store) -> None:
    put(store, "a", 1)
    put(store, "a", 2)
    assert store.rename("t", "a", "b").head.ref == Ref("b", 2)
    assert same(store.load("t", "b@1").image, an_image(1))
    with pytest.raises(StateNotFoundError):
        store.get("t", "a")
    assert put(store, "a", 3).version == 3
    with pytest.raises(StateExistsError):
        store.rename("t", "b", "a")
    store.delete("t", "a")
    with pytest.raises(StateExistsError):
        store.rename("t", "b", "a")
    store.rename("t", "b", "c")
    assert store.rename("t", "c", "b").head.version == 2


def test_what_is_said_of_a_handle_that_has_moved_on_is_refused(store: Store) -> None:
    put(store, "a", 1)
    before = put(store, "a", 2).version - 1
    operations: list[Callable[[], object]] = [
        lambda: store.rename("t", "a", "b", expected_version=before),
        lambda: store.set_tags("t", "a", {"x": "y"}, expected_version=before),
        lambda: store.set_expiry("t", "a", 5000.0, expected_version=before),
        lambda: store.delete("t", "a", expected_version=before),
        lambda: store.rollback("t", "a", version=1, expected_version=before),
    ]
    for operation in operations:
        with pytest.raises(StaleVersionError):
            operation()
    handle = store.handle("t", "a")
    assert (handle.head.version, handle.tags, handle.expires_at) == (2, {}, None)


def test_a_name_never_stands_for_two_states_under_one_version(store: Store) -> None:
    put(store, "a", 1)
    put(store, "b", 2)
    store.delete("t", "b")
    with pytest.raises(StateExistsError):
        store.rename("t", "a", "b")
    put(store, "a", 3)
    store.delete("t", "a@1")
    assert store.rename("t", "a", "b").head.ref == Ref("b", 2)


def test_a_state_is_over_when_its_time_is(store: Store, clock: Clock, tmp_path: Path) -> None:
    put(store, "a", 1, expires_at=clock.now + 10)
    put(store, "b", 2, expires_at=clock.now + 10)
    store.set_expiry("t", "b", None)
    clock.now += 10
    with pytest.raises(StateNotFoundError):
        store.load("t", "a")
    assert [one.name for one in store.handles("t")] == ["b"]
    with pytest.raises(StateNotFoundError):
        store.fork("t", "a", ["c"])
    assert len(files(tmp_path / "store")) == 2
    assert store.gc().n_expired == 1
    assert len(files(tmp_path / "store")) == 1


def test_a_name_whose_state_is_over_can_be_taken(store: Store, clock: Clock) -> None:
    put(store, "a", 1, expires_at=clock.now + 10)
    clock.now += 11
    assert put(store, "a", 2, expected_version=0).version == 2
    assert store.handle("t", "a").expires_at is None


@pytest.mark.parametrize("durability", Durability)
def test_a_state_that_is_over_can_be_made_again_of_the_same_bytes(
    store: Store, clock: Clock, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The commit itself deletes the handle, and with it the payload that has these bytes.
    put(store, "a", 1, expires_at=clock.now + 10)
    clock.now += 11
    write, n_tries = Catalogue.write, iter(range(5))

    def limited(*arguments: Any, **options: Any) -> Any:
        assert next(n_tries, None) is not None, "it is tried again and again"
        return write(*arguments, **options)

    monkeypatch.setattr(Catalogue, "write", limited)
    assert put(store, "a", 1, durability=durability).version == 2
    assert same(store.load("t", "a").image, an_image(1))


def test_tags_are_kept_replaced_and_searched(store: Store) -> None:
    put(store, "a", 1, tags={"kind": "x", "n": "1"})
    put(store, "b", 2, tags={"kind": "y"})
    put(store, "a", 3)
    assert store.handle("t", "a").tags == {"kind": "x", "n": "1"}
    assert [one.name for one in store.handles("t", tags={"kind": "x"})] == ["a"]
    store.set_tags("t", "b", {"kind": "x"})
    assert [one.name for one in store.handles("t", tags={"kind": "x"})] == ["a", "b"]


def test_handles_come_by_name_a_page_at_a_time(store: Store) -> None:
    names = sorted(["a", "B", "a.1", "a-2", "b", "0"])
    for at, name in enumerate(names):
        put(store, name, at)
    seen, last = list[str](), ""
    while page := store.handles("t", after=last, limit=2):
        seen += [one.name for one in page]
        last = seen[-1]
    assert seen == names
    assert [one.name for one in store.handles("t", prefix="a")] == ["a", "a-2", "a.1"]


def test_another_tenants_state_is_not_found_by_any_operation(store: Store) -> None:
    put(store, "a", 1)
    operations: list[Callable[[], object]] = [
        lambda: store.get("u", "a"),
        lambda: store.handle("u", "a"),
        lambda: store.load("u", "a@1"),
        lambda: store.log("u", "a"),
        lambda: store.checkpoints("u", "a"),
        lambda: store.fork("u", "a", ["b"]),
        lambda: store.rollback("u", "a", version=1),
        lambda: store.rename("u", "a", "b"),
        lambda: store.set_tags("u", "a", {}),
        lambda: store.set_expiry("u", "a", 0.0),
        lambda: store.delete("u", "a"),
        lambda: store.persist("u", "a"),
        lambda: store.get("u", "never@1"),
    ]
    for operation in operations:
        with pytest.raises(StateNotFoundError):
            operation()
    assert store.handles("u") == []
    assert store.handle("t", "a").n_versions == 1


def test_the_error_for_a_foreign_state_is_that_for_none(store: Store) -> None:
    put(store, "a", 1)
    with pytest.raises(StateNotFoundError) as foreign:
        store.get("u", "a")
    with pytest.raises(StateNotFoundError) as absent:
        store.get("nobody", "a")
    assert str(foreign.value) == str(absent.value)


def test_a_state_of_another_model_is_refused(store: Store) -> None:
    put(store, "a", 1)
    assert store.load("t", "a", identity=identity_of(an_image().layout)).record.version == 1
    with pytest.raises(StateMismatchError):
        store.load("t", "a", identity=identity_of(an_image().layout, model="ef" * 32))


def test_a_state_that_is_not_finite_leaves_nothing_behind(store: Store, tmp_path: Path) -> None:
    image = an_image(1)
    image.view("toy.matrix")[1, 1, 1] = float("nan")
    with pytest.raises(StateNotFiniteError):
        store.commit("t", "a", image, provenance=CREATE)
    assert files(tmp_path / "store") == []
    assert store.handles("t") == []


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_a_state_is_loaded_into_memory_that_the_caller_has(
    store: Store, is_in_memory: bool
) -> None:
    put(store, "a", 1)
    if not is_in_memory:
        store._shelf.host.drop(next(iter(store._shelf.host._held)))
    buffer = torch.full((len(an_image(1).record),), 255, dtype=torch.uint8)
    loaded = store.load("t", "a", into=buffer)
    assert loaded.image.record is buffer
    assert same(loaded.image, an_image(1))
    with pytest.raises(ValueError, match="does not fit"):
        store.load("t", "a", into=buffer[:-1])


def test_numbers_are_not_given_again_when_the_oldest_names_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path, limits=StoreLimits(past_names_per_tenant=2)) as store:
        for at in range(4):
            for seed in range(at + 1):
                put(store, f"n{at}", seed)
            store.delete("t", f"n{at}")
        store.gc()
        # n0 and n1 are forgotten: whatever begins now begins above both
        assert put(store, "n1", 7).version == 3
        assert put(store, "new", 7).version == 3
        assert put(store, "n3", 7).version == 5
        assert put(store, "new", 7, tenant="u").version == 1


# --- quotas -------------------------------------------------------------------------------


def test_a_tenant_has_so_many_handles_and_expired_ones_do_not_count(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path, clock, limits=StoreLimits(handles_per_tenant=2)) as store:
        put(store, "a", 1)
        with pytest.raises(QuotaError):
            store.fork("t", "a", ["b", "c"])
        put(store, "b", 2, expires_at=clock.now + 1)
        with pytest.raises(QuotaError):
            put(store, "c", 3)
        put(store, "a", 4)
        put(store, "c", 3, tenant="u")
        clock.now += 1
        put(store, "c", 3)
        assert [one.name for one in store.handles("t")] == ["a", "c"]


def test_a_tenant_has_so_many_bytes_and_forks_cost_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        n_bytes = put(store, "a", 1).n_bytes
        store.delete("t", "a")
    with opened(tmp_path, limits=StoreLimits(bytes_per_tenant=2 * n_bytes)) as store:
        put(store, "a", 1)
        put(store, "b", 2)
        store.fork("t", "a", ["c", "d"])
        for durability in Durability:
            with pytest.raises(QuotaError):
                put(store, "e", 3, durability=durability)
        assert len(files(tmp_path)) == 2
        put(store, "e", 3, tenant="u")
        store.delete("t", "b")
        put(store, "e", 3)


def test_a_handle_has_so_many_versions_and_keep_makes_room(tmp_path: Path) -> None:
    with opened(tmp_path, limits=StoreLimits(versions_per_handle=3)) as store:
        for seed in range(3):
            put(store, "a", seed)
        with pytest.raises(QuotaError):
            put(store, "a", 3)
        store.delete("t", "a@2")
        put(store, "a", 3, keep=2)
        assert [one.version for one in store.log("t", "a")] == [4, 3]
        assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("limit", [1, 3])
def test_the_oldest_versions_go_with_each_new_one_where_that_is_wanted(
    tmp_path: Path, limit: int
) -> None:
    limits = StoreLimits(versions_per_handle=limit, drops_old_versions=True)
    with opened(tmp_path, limits=limits) as store:
        for seed in range(5):
            assert put(store, "a", seed).version == seed + 1
        kept = list(range(5, 5 - limit, -1))
        assert [one.version for one in store.log("t", "a")] == kept
        assert len(files(tmp_path)) == limit
        # its bytes are those of the version that goes
        back = store.rollback("t", "a", version=kept[-1])
        assert same(store.load("t", back.ref).image, an_image(kept[-1] - 1))
        assert len(store.log("t", "a")) == limit
        assert store.check().findings == ()


# --- memory -------------------------------------------------------------------------------


def test_a_version_in_memory_is_visible_and_becomes_durable(store: Store, tmp_path: Path) -> None:
    record = put(store, "a", 1, durability=MEMORY)
    assert record.ack is AckClass.VISIBLE
    assert files(tmp_path / "store") == []
    assert same(store.load("t", "a").image, an_image(1))
    (fork,) = store.fork("t", "a", ["b"], durability=MEMORY)
    assert fork.ack is AckClass.VISIBLE
    assert store.persist("t", "a").ack is AckClass.DURABLE
    assert store.get("t", "b").ack is AckClass.DURABLE
    assert len(files(tmp_path / "store")) == 1


def test_a_durable_fork_of_a_version_in_memory_puts_it_on_disk(
    store: Store, tmp_path: Path
) -> None:
    put(store, "a", 1, durability=MEMORY)
    (fork,) = store.fork("t", "a", ["b"])
    assert fork.ack is AckClass.DURABLE
    assert len(files(tmp_path / "store")) == 1


def test_the_same_bytes_committed_to_disk_make_the_version_in_memory_durable(store: Store) -> None:
    put(store, "a", 1, durability=MEMORY)
    assert put(store, "b", 1).ack is AckClass.DURABLE
    assert store.get("t", "a").ack is AckClass.DURABLE
    # and a commit to memory of bytes that are on disk is durable at once
    assert put(store, "c", 1, durability=MEMORY).ack is AckClass.DURABLE


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_number_that_was_seen_is_never_given_to_other_bytes(
    tmp_path: Path, is_crash: bool
) -> None:
    store = Store.open(str(tmp_path), clock=Clock())
    put(store, "a", 1)
    seen = put(store, "a", 2, durability=MEMORY).version
    put(store, "gone", 3, durability=MEMORY)
    put(store, "gone", 4, durability=MEMORY)
    if is_crash:
        crash(store)
    else:
        store.close()
    with opened(tmp_path) as store:
        assert store.get("t", "a").version == 1
        assert same(store.load("t", "a").image, an_image(1))
        with pytest.raises(StateNotFoundError):
            store.get("t", Ref("a", seen))
        assert [one.name for one in store.handles("t")] == ["a"]
        assert put(store, "a", 5).version > seen
        assert put(store, "gone", 6).version > 2
        assert store.check().findings == ()


def test_a_number_in_memory_is_not_given_again_when_power_is_lost(tmp_path: Path) -> None:
    # What is in memory alone is in the catalogue too, but not synced: power loss takes it.
    with opened(tmp_path / "store") as store:
        put(store, "a", 1)
        write = store._catalogue.write

        def write_and_keep_what_is_synced(change: Any, **options: Any) -> Any:
            if options.get("durable") is False:
                shutil.rmtree(tmp_path / "lost", ignore_errors=True)
                shutil.copytree(tmp_path / "store", tmp_path / "lost")
            return write(change, **options)

        store._catalogue.write = write_and_keep_what_is_synced  # type: ignore[method-assign]
        seen = put(store, "a", 2, durability=MEMORY).version
        seen_new = put(store, "b", 3, durability=MEMORY).version
        store._catalogue.write = write  # type: ignore[method-assign]
    with opened(tmp_path / "lost") as store:
        assert store.get("t", "a").version == 1
        assert put(store, "a", 4).version > seen
        assert put(store, "b", 5).version > seen_new
        assert put(store, "c", 6, durability=MEMORY).version > seen_new
        assert store.check().findings == ()


def test_flushing_saves_what_is_in_memory_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for seed in range(3):
            put(store, f"n{seed}", seed, durability=MEMORY)
        assert store.flush() == 3
    with opened(tmp_path) as store:
        assert [one.head.ack for one in store.handles("t")] == [AckClass.DURABLE] * 3


def test_full_memory_writes_the_coldest_to_disk_and_keeps_its_bound(tmp_path: Path) -> None:
    limit = 3 * an_image(0).nbytes
    with opened(tmp_path, limits=StoreLimits(host_bytes=limit)) as store:
        for seed in range(5):
            assert put(store, f"n{seed}", seed, durability=MEMORY).ack is AckClass.VISIBLE
            assert store.stat().host.n_bytes <= limit
        acks = [one.head.ack is AckClass.DURABLE for one in store.handles("t")]
        assert acks == [True, True, False, False, False]
        for seed in range(5):
            assert same(store.load("t", f"n{seed}").image, an_image(seed))
        assert store.stat().host.n_bytes <= limit
        assert store.stat().memory.n_payloads == 3


def test_what_is_larger_than_all_memory_for_states_goes_to_disk_and_says_so(tmp_path: Path) -> None:
    limit = an_image(1).nbytes
    with opened(tmp_path, limits=StoreLimits(host_bytes=limit)) as store:
        assert put(store, "a", 1, durability=MEMORY).ack is AckClass.VISIBLE
        checkpoints = [an_image(2, n_tokens=1)]
        record = put(store, "b", 3, durability=MEMORY, checkpoints=checkpoints)
        assert record.ack is AckClass.DURABLE
        assert same(store.load("t", "b").image, an_image(3))
        assert store.get("t", "a").ack is AckClass.VISIBLE
        assert store.stat().host.n_bytes <= limit


def test_a_state_that_has_no_room_in_memory_is_shared_while_somebody_holds_it(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, limits=StoreLimits(host_bytes=0)) as store:
        put(store, "a", 1)
        store.fork("t", "a", ["b"], keys=[RandomKey(7, 0)])
        held = store.load("t", "a").image
        assert store.load("t", "b").image.record is held.record
        assert store.stat().host.n_bytes == 0
        store.cool("t", "a")
        again = store.load("t", "a").image
        assert again.record is not held.record
        held = again
        del again
        of_record = weakref.ref(held.record)
        del held
        assert of_record() is None
        assert store._shelf.host._alive == {}
        assert same(store.load("t", "a").image, an_image(1))


# --- tiers --------------------------------------------------------------------------------


def test_a_version_that_cools_is_on_disk_and_no_longer_in_memory(store: Store) -> None:
    put(store, "a", 1, durability=MEMORY)
    assert store.tier("t", "a") is Tier.HOST
    assert store.cool("t", "a").ack is AckClass.DURABLE
    assert store.tier("t", "a") is Tier.DISK
    assert same(store.load("t", "a").image, an_image(1))
    assert store.tier("t", "a") is Tier.HOST


def test_the_newest_state_at_or_below_a_position_is_found(store: Store) -> None:
    one = put(store, "a", 1, n_tokens=10)
    put(store, "a", 2, n_tokens=30, provenance=after(one), checkpoints=[an_image(3, n_tokens=20)])
    (fork,) = store.fork("t", "a", ["b"], keys=[RandomKey(7, 7)])
    for position, seed, n_tokens, ref in (
        (9, None, 0, None),
        (10, 1, 10, Ref("a", 1)),
        (19, 1, 10, Ref("a", 1)),
        (29, 3, 20, Ref("a", 2)),
        (99, 2, 30, Ref("a", 2)),
    ):
        if seed is None:
            with pytest.raises(StateNotFoundError):
                store.load_at("t", "a", position)
        else:
            loaded = store.load_at("t", "a", position)
            assert loaded.record.ref == ref
            assert same(loaded.image, an_image(seed, n_tokens=n_tokens))
    assert store.load_at("t", "b", 40).record.ref == fork.ref
    assert store.load_at("t", "b", 20).record.ref == Ref("a", 2)


@pytest.mark.parametrize(("n_tokens", "expected"), [(0, (5,)), (3, (5, 6, 7, 5))])
def test_the_last_ids_of_a_state_are_known_without_its_bytes(
    store: Store, n_tokens: int, expected: tuple[int, ...]
) -> None:
    assert put(store, "a", 5, n_tokens=n_tokens).tail == expected
    assert store.fork("t", "a", ["b"])[0].tail == expected


def test_a_long_log_has_a_tail_of_32_ids(store: Store) -> None:
    assert put(store, "a", 5, n_tokens=100).tail == (*range(74, 105), 5)
