"""The radix tree and the index of checkpoints, against the simplest thing that does the same."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.prefixes import Checkpoint, Claim, Owner, PrefixIndex, Tier
from wkvm.core.radix import BLOCK_BYTES, ID_BYTES, RadixTree, n_common

BLOCKS = st.lists(st.integers(0, 1), max_size=6)
SOME_BLOCKS = st.lists(st.integers(0, 1), min_size=1, max_size=6)


def ids_of(blocks: list[int]) -> bytes:
    """A row of blocks of ids, of which two kinds are told apart by their last id alone."""
    return b"".join(
        array("I", [*range(CUT_MULTIPLE - 1), 1000 + block]).tobytes() for block in blocks
    )


@given(one=BLOCKS, other=BLOCKS)
def test_common_blocks_are_counted_from_the_start(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert n_common(ids_of(one), ids_of(other)) == expected


@given(paths=st.lists(SOME_BLOCKS, max_size=12), asked=BLOCKS, gone=st.sets(st.integers(0, 11)))
def test_a_tree_knows_the_places_that_were_put_into_it(
    paths: list[list[int]], asked: list[int], gone: set[int]
) -> None:
    tree = RadixTree[int]()
    kept = dict[tuple[int, ...], int]()
    for number, path in enumerate(paths):
        tree.at(ids_of(path)).value = number
        kept[tuple(path)] = number
    for number in gone & set(range(len(paths))):
        key = tuple(paths[number])
        if key in kept:
            node = tree.at(ids_of(paths[number]))
            node.value = None
            tree.prune(node)
            del kept[key]
    passed, common = tree.walk(ids_of(asked))
    values = {node.n_blocks: node.value for node in passed if node.value is not None}
    assert values == {
        n: kept[tuple(asked[:n])] for n in range(1, len(asked) + 1) if tuple(asked[:n]) in kept
    }
    shared = [n_common(ids_of(asked), ids_of(list(key))) for key in kept]
    assert common == max(shared, default=0)
    assert {node.value for node in tree.nodes() if node.value is not None} == set(kept.values())
    stems = {key[:n] for key in kept for n in range(1, len(key) + 1)}
    assert tree.n_bytes == len(stems) * BLOCK_BYTES
    assert tree.is_empty == (not kept)
    for node in tree.nodes():
        assert node.value is not None or len(node.children) > 1, "a node that nobody needs"


RECORD, PAGE = 1000, 100
OWNERS = [Owner("a", ""), Owner("a", "s"), Owner("b", "")]


class IndexMachine(RuleBasedStateMachine):
    """The index against lists in the order of use."""

    @initialize(host=st.integers(0, 6), device=st.integers(0, 4))
    def start(self, host: int, device: int) -> None:
        self.most = {Tier.HOST: host * (RECORD + 500), Tier.DEVICE: device * RECORD}
        self.released = list[Checkpoint]()
        self.index = PrefixIndex(
            host_bytes=self.most[Tier.HOST],
            device_bytes=self.most[Tier.DEVICE],
            page_bytes=PAGE,
            release=self.released.append,
        )
        self.claims = dict[tuple[Owner, tuple[int, ...]], Claim]()
        self.kept = dict[tuple[Owner, tuple[int, ...]], tuple[Tier, int]]()
        """What there is, in the order of its last use, and what it takes."""
        self.n_slots = self.n_evicted = 0

    @rule(owner=st.sampled_from(OWNERS), path=SOME_BLOCKS)
    def claim(self, owner: Owner, path: list[int]) -> None:
        key = (owner, tuple(path))
        claim = self.index.claim(owner, ids_of(path), f"{key}")
        assert (claim is None) == (key in self.claims or key in self.kept)
        if claim is not None:
            self.claims[key] = claim
            claim.waiters.append(key)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), tier=st.sampled_from(Tier), comes=st.booleans())
    def settle(self, data: st.DataObject, tier: Tier, comes: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.claims)))
        claim = self.claims.pop(key)
        if not comes:
            assert self.index.give_up(claim) == [key]
            return
        n_ids = len(key[1]) * CUT_MULTIPLE * ID_BYTES
        if tier is Tier.HOST:
            assert self.index.keep(claim, n_bytes=RECORD, record=key) == [key]
            self.kept[key] = tier, RECORD + n_ids
            self.shrink(Tier.HOST)
        else:
            self.n_slots += 1
            assert self.index.keep(claim, n_bytes=RECORD, slot=self.n_slots) == [key]
            self.kept[key] = tier, RECORD
            for victim in self.index.surplus(tier):
                self.index.evict(victim)
            self.shrink(tier)

    def shrink(self, tier: Tier) -> None:
        while self.used(tier) > self.most[tier]:
            held = {
                tenant: sum(
                    n for key, (t, n) in self.kept.items() if t is tier and key[0].tenant == tenant
                )
                for tenant in "ab"
            }
            most = max(held.values())
            first = next(
                key
                for key, (t, _) in self.kept.items()
                if t is tier and held[key[0].tenant] == most
            )
            others = [key for key in self.kept if self.kept[key][0] is tier]
            found = [key for key in others if not self.is_there(key)]
            # of two tenants that have as much either may be taken
            gone = first if len(set(held.values())) > 1 or first in found else found[0]
            del self.kept[gone]
            self.n_evicted += 1

    def is_there(self, key: tuple[Owner, tuple[int, ...]]) -> bool:
        found = self.index.find(key[0], ids_of(list(key[1]))).checkpoint
        return found is not None and found.n_tokens == len(key[1]) * CUT_MULTIPLE

    def used(self, tier: Tier) -> int:
        return sum(n for t, n in self.kept.values() if t is tier)

    @rule(owner=st.sampled_from(OWNERS), path=BLOCKS)
    def look(self, owner: Owner, path: list[int]) -> None:
        match = self.index.find(owner, ids_of(path))
        stems = [(owner, tuple(path[:n])) for n in range(len(path), 0, -1)]
        there = next((key for key in stems if key in self.kept), None)
        if there is None:
            assert match.checkpoint is None
        else:
            assert match.checkpoint is not None
            assert match.checkpoint.owner == owner
            assert match.checkpoint.n_tokens == len(there[1]) * CUT_MULTIPLE
            self.index.use(match.checkpoint)
            self.kept[there] = self.kept.pop(there)
        deeper = stems if there is None else stems[: stems.index(there)]
        assert list(match.claims) == [self.claims[key] for key in deeper if key in self.claims]
        mine = [path for o, path in (*self.kept, *self.claims) if o == owner]
        shared = [n_common(ids_of(path), ids_of(list(one))) for one in mine]
        assert match.n_common == max(shared, default=0) * CUT_MULTIPLE

    @invariant()
    def budgets_hold(self) -> None:
        if not hasattr(self, "index"):
            return
        for tier in Tier:
            assert self.index.n_bytes(tier) == self.used(tier) <= self.most[tier]
            entries = sum(t is tier for t, _ in self.kept.values())
            assert self.index.n_entries(tier) == entries == len(list(self.index.checkpoints(tier)))
        assert self.index.n_evicted == self.n_evicted
        on_device = sum(t is Tier.DEVICE for t, _ in self.kept.values())
        assert len(self.released) == self.n_slots - on_device


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
