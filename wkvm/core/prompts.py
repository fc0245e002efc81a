"""How the prompts of a step share its budget, and where a prompt may be cut."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.plan import RowPlan
from wkvm.core.table import Request, slot_of

FIRST = 8
"""Of what equal prompts get, the one that came first has one in so many tokens, whatever it wants.
With half of them, short prompts waited longer than with equal shares: see ``bench/NOTES.md``."""


def cut(n_tokens: int) -> int:
    """The largest multiple of ``CUT_MULTIPLE`` that is at most ``n_tokens``."""
    return n_tokens // CUT_MULTIPLE * CUT_MULTIPLE


def share(wants: Sequence[int], budget: int) -> list[int]:
    """Divide a budget among those who want some of it.

    Each gets an equal share, cut to a multiple of ``CUT_MULTIPLE`` unless it is all that
    it wants; what those of few leave goes to the others in further rounds.
    Where there is less than a cut for each, the first ones get a cut each: the caller
    puts those first that have waited longest.

    Args:
        wants: tokens that each could use, at least 1.
        budget: tokens to divide, at least 0.

    Returns:
        Tokens of each: all it wants, or a multiple of ``CUT_MULTIPLE``. Their sum is at most
        ``budget``, and nobody with less than it wants could be given a cut more.
    """
    shares = [0] * len(wants)
    active = list(range(len(wants)))
    while active and budget:
        each = max(cut(budget // len(active)), CUT_MULTIPLE)
        unserved = list[int]()
        for index in active:
            want = wants[index] - shares[index]
            given = min(want, each)
            if given > budget:
                given = cut(budget)
            shares[index] += given
            budget -= given
            if 0 < given < want:
                unserved.append(index)
        active = unserved
    return shares


def line_up(wants: Sequence[int], rests: Sequence[int], budget: int, for_first: int) -> list[int]:
    """Divide a budget among prompts that came one after the other.

    The first gets what is kept for it, so that nobody starves. The rest goes to those that are over
    soonest: a short prompt does not wait for long ones, and equal ones are over one by one, the
    first of them long before the last, instead of all of them at the end. And few rows of many
    tokens move fewer states than many of few.

    Args:
        wants: tokens that each prompt could absorb, at least 1; the one that came first is first.
        rests: how many each lacks until somebody gets on: it wants less where it is to stop before.
        budget: tokens to divide, at least 0.
        for_first: how many of them are kept for the first.

    Returns:
        As ``share`` does.
    """
    if not wants:
        return []
    shares = [0] * len(wants)
    shares[0] = _part(wants[0], min(for_first, budget))
    budget -= shares[0]
    for at in sorted(range(len(wants)), key=lambda at: rests[at] - shares[at]):
        given = _part(wants[at] - shares[at], budget)
        shares[at] += given
        budget -= given
    return shares


def _part(want: int, most: int) -> int:
    return want if want <= most else cut(most)


class Served:
    """By how much tenants got more, or less, than was fair in the steps that they wanted more of.

    Nobody saves up: who got all that it wanted begins anew. So does who comes late, and those that
    are owed something come before it: however many come, they keep nobody waiting.
    """

    def __init__(self) -> None:
        self._ahead = dict[str, float]()

    def ahead(self, tenant: str) -> float:
        """By how many tokens a tenant is ahead of what is fair; below 0 for who is behind."""
        return self._ahead.get(tenant, 0.0)

    def note(self, given: Mapping[str, int], wanting: Collection[str]) -> None:
        """Count what tenants got in a step. Linear in them, or quadratic at worst.

        Args:
            wanting: those that would have taken more.
        """
        if not wanting:
            self._ahead = {}
            return
        # Who wanted less than the others got has no part in what these had to share.
        sharing, fair = dict(given), 0.0
        while True:
            fair = sum(sharing.values()) / len(sharing)
            modest = [one for one, n in sharing.items() if n < fair and one not in wanting]
            if not modest:
                break
            for one in modest:
                del sharing[one]
        self._ahead = {one: self.ahead(one) + given[one] - fair for one in wanting}


def divide(prompts: Iterable[Request], budget: int, served: Served) -> list[tuple[Request, int]]:
    """Who absorbs how many ids of its prompt in a step.

    The budget is divided among tenants by ``share``, and so that who got less before gets more
    now; what one cannot use of its share for want of a cut goes to the next. What a tenant gets
    goes to its requests: the lower priority takes what it can use, and equal ones ``line_up``, of
    whom the first has an eighth in the long run.

    Args:
        prompts: in the order in which they came.
        budget: tokens to divide, at least 0.
        served: what tenants got before; this step is noted there.

    Returns:
        The requests that get something, and how much.
    """
    tenants = dict[str, list[tuple[Request, int]]]()
    for request in prompts:
        if want := absorbable(request):
            tenants.setdefault(request.tenant, []).append((request, want))
    lines = sorted(tenants.items(), key=lambda line: served.ahead(line[0]))
    least = min(map(served.ahead, tenants), default=0.0)
    ahead = [round(served.ahead(tenant) - least) for tenant, _ in lines]
    wanted = [sum(want for _, want in wants) for _, wants in lines]
    levels = share([sum(both) for both in zip(wanted, ahead, strict=True)], budget + sum(ahead))
    shares = [max(level - had, 0) for level, had in zip(levels, ahead, strict=True)]
    spare = max(budget - sum(shares), 0)
    divided, given, wanting = list[tuple[Request, int]](), dict[str, int](), set[str]()
    for (tenant, wants), want, most in zip(lines, wanted, shares, strict=True):
        most = min(most + spare, budget)
        part = list(_divide_by_priority(wants, most))
        given[tenant] = n_tokens = sum(n for _, n in part)
        if n_tokens < want:
            wanting.add(tenant)
        divided += part
        budget -= n_tokens
        spare = most - n_tokens
    served.note(given, wanting)
    return divided


def _divide_by_priority(
    wants: list[tuple[Request, int]], budget: int
) -> Iterator[tuple[Request, int]]:
    wants.sort(key=lambda entry: entry[0].priority)  # stable: the order of arrival remains
    for _, group in groupby(wants, key=lambda entry: entry[0].priority):
        equals = list(group)
        rests = [n_to_go(request) for request, _ in equals]
        first = equals[0][0]
        owed = first.n_owed + budget // FIRST
        shares = line_up([want for _, want in equals], rests, budget, owed)
        first.n_owed = max(owed - shares[0], 0)
        budget -= sum(shares)
        for (request, _), n_tokens in zip(equals, shares, strict=True):
            if n_tokens:
                yield request, n_tokens


def n_to_go(request: Request) -> int:
    """How many ids a prompt lacks until its request gets on, or one that waits for its state."""
    awaited = (n_tokens for n_tokens, claim in request.claims.items() if claim.waiters)
    return min(awaited, default=request.n_known) - request.n_computed


def absorbable(request: Request) -> int:
    """How many ids of its prompt a running request could absorb in a step without a budget."""
    if request.paused_since is None and request.is_ready:
        end = request.n_known
    elif request.held and request.params.prompt_logprobs is not None:
        return 0
    else:
        end = cut(request.n_known - 1)
        if request.marks:
            end = max(end, request.marks[0])  # others wait for that one, which may be off the grid
    if request.next_checkpoint is not None:
        end = min(end, request.next_checkpoint)
    if request.marks:
        end = min(end, request.marks[-1])
    return end - request.n_computed


def prompt_row(request: Request, n_tokens: int) -> RowPlan:
    """The row in which a request absorbs the next ``n_tokens`` of its prompt."""
    start, n_prompt, params = request.n_computed, request.n_prompt, request.params
    end = start + n_tokens
    samples = end == n_prompt and params.max_tokens > 0
    wants_next = params.prompt_logprobs is not None and end < n_prompt
    return RowPlan(
        request_id=request.request_id,
        slot=slot_of(request),
        ids=tuple(request.prompt[start:end]),
        position=start,
        n_prompt=n_prompt,
        fresh=request.is_fresh,
        samples=samples,
        n_output=request.n_output,
        params=params,
        seed=request.seed,
        branch=request.branch,
        next_id=request.prompt[end] if wants_next else None,
        banned_ids=request.stops if samples and request.n_output < params.min_tokens else (),
        constraint=request.constraint,
        stops=request.stops,
        awaits_constraint=not request.is_ready,
        entry=request.entry if request.is_fresh else None,
    )
