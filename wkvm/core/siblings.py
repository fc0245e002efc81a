"""Requests with one and the same prompt, as choices have: they share all but its last token."""

from array import array
from hashlib import blake2b
from weakref import WeakValueDictionary

from wkvm.core.alike import comes, ids_of, owner_of, takes_part
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.prefixes import Checkpoint, Claim, Match, Owner, Place, PrefixIndex
from wkvm.core.radix import Node
from wkvm.core.table import Family, Request


class Siblings:
    """Checkpoints after all but the last token of a prompt, one for all that have just this prompt.

    They lie where nobody else looks: prompts that differ are told apart by whole blocks. The first
    request that begins leaves one for those that wait, and it goes when the last of them has begun.

    Args:
        is_on: whether prompts may be cut off their grid; else nothing is ever here.
    """

    def __init__(self, index: PrefixIndex, *, is_on: bool) -> None:
        self._index = index
        self._is_on = is_on
        self._families = WeakValueDictionary[tuple[Owner, bytes], Family]()
        self._nodes = dict[Family, Node[Place]]()

    def enter(self, requests: list[Request]) -> None:
        """Note the choices of a new request, before they wait. Linear in their prompt."""
        first = requests[0]
        if not self._is_on or not takes_part(first):
            return
        key = owner_of(first), blake2b(array("I", first.prompt), digest_size=32).digest()
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = Family()
        for request in requests:
            request.family = family

    def find(self, request: Request) -> Match | None:
        """What a request begins from, or is to wait for; None where the grid is its best."""
        place = self._place(request)
        if place is None:
            return None
        if place.checkpoint is not None:
            return Match(place.checkpoint, (), 0)
        if place.claim is not None and request.is_patient and comes(place.claim, request):
            return Match(None, (place.claim,), 0)
        return None

    def leader_of(self, request: Request) -> Request | None:
        """Who computes this prompt just now, and may yet be asked to leave what is missing."""
        leader = None if request.family is None else request.family.leader
        if (
            leader is None
            or not request.is_patient
            or leader.priority > request.priority
            or leader.n_computed >= len(leader.prompt) - 1
            or not (len(leader.prompt) - 1) % CUT_MULTIPLE
        ):
            return None
        return leader

    def claim(self, leader: Request) -> Claim | None:
        """Note that a request is to leave what those with its prompt go on from.

        Returns:
            None if nobody waits who would, or there is no need.
        """
        family, n_tokens = leader.family, len(leader.prompt) - 1
        if family is None or n_tokens <= leader.n_computed or self._place(leader) is not None:
            return None
        if not n_tokens % CUT_MULTIPLE:
            return self._index.claim(owner_of(leader), ids_of(leader), leader)
        claim = self._index.claim_apart(owner_of(leader), n_tokens, leader)
        self._nodes[family] = claim.node
        return claim

    def begun(self, request: Request) -> bool:
        """A request got a slot; whether others with its prompt are to get one, too."""
        family = request.family
        if family is None:
            return False
        if request.n_computed < len(request.prompt) - 1:
            family.leader = request
        return family.n_to_begin > 0

    def left(self, request: Request) -> None:
        """A request lost its slot, or ended."""
        if request.family is not None and request.family.leader is request:
            request.family.leader = None

    def is_wanted(self, claim: Claim) -> bool:
        """Whether anybody may still go on from a checkpoint that is due."""
        family: Family | None = claim.request.family
        return family is None or family.n_to_begin > 0 or self._nodes.get(family) is not claim.node

    def spent(self) -> list[Checkpoint]:
        """Those that nobody is to begin from any more, told once. Linear in those there are."""
        spent = list[Checkpoint]()
        for family, node in list(self._nodes.items()):
            checkpoint = None if node.value is None else node.value.checkpoint
            if checkpoint is not None and not family.n_to_begin and not checkpoint.n_pins:
                spent.append(checkpoint)
                del self._nodes[family]
            elif node.value is None:
                del self._nodes[family]
        return spent

    def _place(self, request: Request) -> Place | None:
        node = None if request.family is None else self._nodes.get(request.family)
        return None if node is None else node.value
