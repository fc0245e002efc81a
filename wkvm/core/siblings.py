"""The choices of one request: they share a whole prompt, and so a state before its last token."""

from wkvm.core.alike import ids_of, owner_of
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.prefixes import Checkpoint, Claim, Match, Place, PrefixIndex
from wkvm.core.radix import Node
from wkvm.core.table import Request, SharedIds


class Siblings:
    """Checkpoints after all but the last token of a prompt, one for the choices of each request.

    They lie where nobody else looks: prompts of others are told apart by whole blocks. The first
    choice that begins leaves one if more are to come, and it goes when the last of them has begun.

    Args:
        is_on: whether prompts may be cut off their grid; else nothing is ever here.
    """

    def __init__(self, index: PrefixIndex, *, is_on: bool) -> None:
        self._index = index
        self._is_on = is_on
        self._nodes = dict[SharedIds, Node[Place]]()

    def find(self, request: Request) -> Match | None:
        """What a choice begins from, or is to wait for; None where others' prompts are its best."""
        place = self._place(request)
        if place is None:
            return None
        if place.checkpoint is not None:
            return Match(place.checkpoint, (), 0)
        if place.claim is not None and request.is_patient:
            return Match(None, (place.claim,), 0)
        return None

    def claim(self, request: Request, n_had: int) -> Claim | None:
        """Note that a choice is to leave what those that are to begin go on from.

        Args:
            n_had: how many tokens it goes on from itself.

        Returns:
            None if none is to begin, or there is no need.
        """
        n_tokens = len(request.prompt) - 1
        if (
            not self._is_on
            or not request.shared.n_to_begin
            or n_tokens <= n_had
            or self._place(request) is not None
        ):
            return None
        if not n_tokens % CUT_MULTIPLE:
            return self._index.claim(owner_of(request), ids_of(request), request)
        claim = self._index.claim_apart(owner_of(request), n_tokens, request)
        self._nodes[request.shared] = claim.node
        return claim

    def is_wanted(self, claim: Claim) -> bool:
        """Whether anybody may still go on from a checkpoint that is due."""
        leader: Request = claim.request
        return leader.shared.n_to_begin > 0 or self._nodes.get(leader.shared) is not claim.node

    def spent(self) -> list[Checkpoint]:
        """Those that nobody is to begin from any more, told once. Linear in those there are."""
        spent = list[Checkpoint]()
        for shared, node in list(self._nodes.items()):
            checkpoint = None if node.value is None else node.value.checkpoint
            if checkpoint is not None and not shared.n_to_begin and not checkpoint.n_pins:
                spent.append(checkpoint)
            if node.value is None or (spent and spent[-1] is checkpoint):
                del self._nodes[shared]
        return spent

    def _place(self, request: Request) -> Place | None:
        node = self._nodes.get(request.shared)
        return None if node is None else node.value
