"""Which prompts may share what is kept, and who may wait for whom."""

from array import array

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.prefixes import Claim, Owner
from wkvm.core.prompts import cut
from wkvm.core.table import Request


def takes_part(request: Request) -> bool:
    """Whether a request that has absorbed nothing may begin from a checkpoint, and leave some.

    Not one whose prompt is to be told of, or whose own checkpoints lie within it; one that begins
    from a state has that.
    """
    spec = request.spec
    return (
        spec.start is None
        and spec.reuses
        and not request.n_computed
        and request.entry is None
        and len(request.prompt) > CUT_MULTIPLE
        and spec.params.prompt_logprobs is None
        and spec.params.pooling is None
        and spec.checkpoint_every is None
        and not spec.forced
    )


def comes(claim: Claim, request: Request) -> bool:
    """Whether a request may wait for a checkpoint."""
    return claim.is_planned or claim.request.priority <= request.priority


def will_pass(leader: Request, request: Request, n_tokens: int, ids: bytes) -> bool:
    """Whether a request that runs comes past the end of ``ids``, and another may wait for it."""
    return (
        leader.n_computed < n_tokens
        and leader.priority <= request.priority
        and owner_of(leader) == owner_of(request)
        and ids_of(leader).startswith(ids)
    )


def owner_of(request: Request) -> Owner:
    """With whom a request shares."""
    return Owner(request.tenant, request.spec.cache_salt)


def ids_of(request: Request) -> bytes:
    """The ids of a prompt up to where it may be cut last, as the index has them."""
    if request.ids is None:
        n_tokens = cut(len(request.prompt) - 1)
        request.ids = array("I", request.prompt[:n_tokens]).tobytes()
    return request.ids
