"""Checkpoints of prompts: which are kept, where, and which one a new prompt may go on from.

A bounded index: a radix tree of its own for each tenant and each salt, and two tiers with a budget
of bytes each. Pure bookkeeping: slots, pages and records are names here.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.layout import PAGE_TOKENS
from wkvm.core.radix import ID_BYTES, Node, RadixTree


class Tier(Enum):
    """Where the state of a checkpoint is: in a slot, or in host memory."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What checkpoints of prompts may take.

    Attributes:
        host_bytes, device_bytes: of host memory, and of slots and pages.
        every: keep a state each so many tokens; 0 for none.
        record_bytes, page_bytes: of a slot, and of a page of the guest pool, if there is one.
        off_grid: whether prompts may be cut before their last token, too, for others that have just
            this prompt. Not with pages: all of them would write to the last one.
    """

    host_bytes: int
    device_bytes: int
    every: int
    record_bytes: int
    page_bytes: int = 0
    off_grid: bool = False

    def state_bytes(self, n_tokens: int) -> int:
        """Of a state of so many tokens, a multiple of those of a page."""
        return self.record_bytes + n_tokens // PAGE_TOKENS * self.page_bytes


class Owner(NamedTuple):
    """Whose checkpoints are found together: those of one tenant, under one salt."""

    tenant: str
    salt: str


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The state after the first tokens of a prompt.

    Attributes:
        owner: whose it is.
        node: where in the tree of its owner.
        n_tokens: how many tokens it has absorbed.
        n_bytes: what it takes of the budget of its tier, pages of a device apart.
        slot, pages: on the device; None and empty else.
        record: in host memory; None else.
        n_pins: requests that are to be filled from its slot and are not yet.
    """

    owner: Owner
    node: "Node[Place]"
    n_tokens: int
    n_bytes: int
    slot: int | None = None
    pages: tuple[int, ...] = ()
    record: Any = None
    n_pins: int = 0

    @property
    def tier(self) -> Tier:
        """Where it is."""
        return Tier.HOST if self.slot is None else Tier.DEVICE


@dataclass(slots=True, eq=False)
class Claim:
    """A checkpoint that is to come.

    Attributes:
        owner, node, n_tokens: as of the checkpoint.
        request: which leaves it. Whatever holds requests knows what that is.
        is_planned: whether its copy is on the way: it comes whatever becomes of the request.
        waiters: requests that wait for it, in order.
    """

    owner: Owner
    node: "Node[Place]"
    n_tokens: int
    request: Any
    is_planned: bool = False
    waiters: list[Any] = field(default_factory=list[Any])


class Coming(NamedTuple):
    """A checkpoint whose copy is on its way; ``slot`` and ``pages`` of one on the device."""

    claim: Claim
    slot: int | None = None
    pages: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Place:
    """What is at a node: a checkpoint, or one to come."""

    checkpoint: Checkpoint | None = None
    claim: Claim | None = None


class Match(NamedTuple):
    """What is known of the beginning of a prompt.

    Attributes:
        checkpoint: the deepest one, if there is any.
        claims: those to come that are deeper than that, the deepest first.
        n_common: how many tokens, in whole blocks, the prompt has in common with another.
    """

    checkpoint: Checkpoint | None
    claims: tuple[Claim, ...]
    n_common: int


class _Tier:
    """The checkpoints of one tier: of each tenant, in the order of their last use."""

    def __init__(self, most_bytes: int, page_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.n_bytes = 0
        self.n_entries = 0
        self._page_bytes = page_bytes
        self._n_holders = Counter[int]()
        self._lines = dict[str, OrderedDict[Checkpoint, None]]()
        self._of_tenant = Counter[str]()

    def add(self, checkpoint: Checkpoint) -> None:
        tenant = checkpoint.owner.tenant
        self._lines.setdefault(tenant, OrderedDict())[checkpoint] = None
        self._of_tenant[tenant] += checkpoint.n_bytes
        self.n_entries += 1
        self.n_bytes += checkpoint.n_bytes
        for page in checkpoint.pages:
            self.n_bytes += 0 if self._n_holders[page] else self._page_bytes
            self._n_holders[page] += 1

    def remove(self, checkpoint: Checkpoint) -> None:
        tenant = checkpoint.owner.tenant
        line = self._lines[tenant]
        del line[checkpoint]
        self._of_tenant[tenant] -= checkpoint.n_bytes
        if not line:
            del self._lines[tenant], self._of_tenant[tenant]
        self.n_entries -= 1
        self.n_bytes -= checkpoint.n_bytes
        for page in checkpoint.pages:
            self._n_holders[page] -= 1
            if not self._n_holders[page]:
                del self._n_holders[page]
                self.n_bytes -= self._page_bytes

    def used(self, checkpoint: Checkpoint) -> None:
        self._lines[checkpoint.owner.tenant].move_to_end(checkpoint)

    def victim(self) -> Checkpoint | None:
        """The one that goes next: of the tenant that has most, what was used longest ago."""
        for tenant, _ in self._of_tenant.most_common():
            for checkpoint in self._lines[tenant]:
                if not checkpoint.n_pins:
                    return checkpoint
        return None

    def __iter__(self) -> Iterator[Checkpoint]:
        for line in self._lines.values():
            yield from line


class PrefixIndex:
    """What is kept of the prompts of all tenants.

    Args:
        host_bytes, device_bytes: the budgets. A checkpoint in host memory counts with the ids that
            lead to it; pages of the guest pool that several have count once.
        page_bytes: of a page of the guest pool.
        release: told of each checkpoint on the device that goes, to free its slot and pages.

    Attributes:
        version: rises with every change to what ``find`` may tell.
        n_evicted: how many checkpoints went for want of room.
    """

    def __init__(
        self,
        *,
        host_bytes: int,
        device_bytes: int,
        page_bytes: int = 0,
        release: Callable[[Checkpoint], None],
    ) -> None:
        self.version = 0
        self.n_evicted = 0
        self._trees = dict[Owner, RadixTree[Place]]()
        self._tiers = {
            Tier.HOST: _Tier(host_bytes, 0),
            Tier.DEVICE: _Tier(device_bytes, page_bytes),
        }
        self._release = release

    def n_entries(self, tier: Tier) -> int:
        """How many checkpoints there are in a tier."""
        return self._tiers[tier].n_entries

    def n_bytes(self, tier: Tier) -> int:
        """What they take."""
        return self._tiers[tier].n_bytes

    def by_name(self) -> dict[str, int]:
        """Both, and evictions; names as in ``docs/protocol.md``."""
        return {
            "n_prefixes_host": self.n_entries(Tier.HOST),
            "n_prefixes_device": self.n_entries(Tier.DEVICE),
            "prefix_host_bytes": self.n_bytes(Tier.HOST),
            "prefix_device_bytes": self.n_bytes(Tier.DEVICE),
            "prefix_evictions_total": self.n_evicted,
        }

    def checkpoints(self, tier: Tier) -> Iterator[Checkpoint]:
        """All of a tier."""
        return iter(self._tiers[tier])

    def has_room(self, tier: Tier, n_bytes: int) -> bool:
        """Whether something so large could be kept, if nothing else were."""
        return n_bytes <= self._tiers[tier].most_bytes

    def find(self, owner: Owner, ids: bytes) -> Match:
        """What is known of the beginning of a prompt. Linear in its ids; changes nothing.

        Args:
            ids: of which whole blocks count.
        """
        tree = self._trees.get(owner)
        if tree is None:
            return Match(None, (), 0)
        passed, n_common = tree.walk(ids)
        n_tokens = n_common * CUT_MULTIPLE
        claims = list[Claim]()
        for node in reversed(passed):
            place = node.value
            if place is None:
                continue
            if place.checkpoint is not None:
                return Match(place.checkpoint, tuple(claims), n_tokens)
            if place.claim is not None:
                claims.append(place.claim)
        return Match(None, tuple(claims), n_tokens)

    def use(self, checkpoint: Checkpoint) -> None:
        """A request goes on from a checkpoint: this one, and none before it, was just used."""
        self._tiers[checkpoint.tier].used(checkpoint)

    def claim(self, owner: Owner, ids: bytes, request: Any) -> Claim | None:
        """Note that a request is to leave a checkpoint after ``ids``, whole blocks.

        Returns:
            None if there is one already, or one to come.
        """
        tree = self._trees.get(owner)
        if tree is None:
            tree = self._trees[owner] = RadixTree[Place]()
        node = tree.at(ids)
        if node.value is not None:
            return None
        claim = Claim(owner, node, node.n_tokens, request)
        node.value = Place(claim=claim)
        self.version += 1
        return claim

    def claim_apart(self, owner: Owner, n_tokens: int, request: Any) -> Claim:
        """Note that a request is to leave a checkpoint that is found by its node alone.

        It may lie anywhere in a prompt, and is nobody's but those who are told of it.
        """
        claim = Claim(owner, Node[Place](None, b"", 0), n_tokens, request)
        claim.node.value = Place(claim=claim)
        self.version += 1
        return claim

    def give_up(self, claim: Claim) -> list[Any]:
        """A checkpoint will not come; who waited for it."""
        return self._settle(claim, None)

    def keep(
        self,
        claim: Claim,
        *,
        n_bytes: int,
        slot: int | None = None,
        pages: Sequence[int] = (),
        record: Any = None,
    ) -> list[Any]:
        """A checkpoint has come. Others in host memory go for it; who has a device sees to that.

        Returns:
            Who waited for it.
        """
        n_bytes += 0 if record is None else claim.n_tokens * ID_BYTES
        checkpoint = Checkpoint(
            claim.owner, claim.node, claim.n_tokens, n_bytes, slot, tuple(pages), record
        )
        waiters = self._settle(claim, checkpoint)
        self._tiers[checkpoint.tier].add(checkpoint)
        for victim in self.surplus(Tier.HOST):
            self.evict(victim)
        return waiters

    def surplus(self, tier: Tier) -> Iterator[Checkpoint]:
        """Those that have to go one after the other, until a tier is within its budget."""
        kept = self._tiers[tier]
        while kept.n_bytes > kept.most_bytes and (victim := kept.victim()) is not None:
            yield victim

    def victim(self, tier: Tier) -> Checkpoint | None:
        """The one that would go next for want of room."""
        return self._tiers[tier].victim()

    def evict(self, checkpoint: Checkpoint, *, releases: bool = True) -> None:
        """Let a checkpoint go; ``releases``: with the slot that it is in."""
        self.n_evicted += 1
        self.drop(checkpoint, releases=releases)

    def drop(self, checkpoint: Checkpoint, *, releases: bool = True) -> None:
        """As ``evict``, of one that is of no more use."""
        self._tiers[checkpoint.tier].remove(checkpoint)
        self._vacate(checkpoint.owner, checkpoint.node)
        if checkpoint.slot is not None and releases:
            self._release(checkpoint)

    def demote(self, checkpoint: Checkpoint) -> Claim:
        """Let a checkpoint leave the device, and come in host memory; its copy is on the way."""
        place = checkpoint.node.value
        if place is None or place.checkpoint is not checkpoint:
            raise ValueError("this checkpoint is gone already")
        self._tiers[checkpoint.tier].remove(checkpoint)
        claim = Claim(checkpoint.owner, checkpoint.node, checkpoint.n_tokens, None, is_planned=True)
        place.checkpoint, place.claim = None, claim
        self.version += 1
        self._release(checkpoint)
        return claim

    def _settle(self, claim: Claim, checkpoint: Checkpoint | None) -> list[Any]:
        place = claim.node.value
        if place is None or place.claim is not claim:
            raise ValueError("this checkpoint was settled before")
        place.claim, place.checkpoint = None, checkpoint
        self.version += 1
        if checkpoint is None:
            self._vacate(claim.owner, claim.node)
        waiters, claim.waiters = claim.waiters, []
        return waiters

    def _vacate(self, owner: Owner, node: "Node[Place]") -> None:
        node.value = None
        self.version += 1
        if node.parent is None:
            return
        tree = self._trees[owner]
        tree.prune(node)
        if tree.is_empty:
            del self._trees[owner]
