"""The guest pages of requests: who gets how many, who shares them, and when they come back.

A request gets pages for all tokens that it may ever absorb when it gets its slot, or it waits. So
its row of the table is written once, and it never has to stop for want of a page.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from wkvm.core.errors import PromptTooLongError
from wkvm.core.layout import PAGE_TOKENS, pages_for
from wkvm.core.pages import Holding, PageAllocator, Prefix
from wkvm.core.prefixes import Checkpoint
from wkvm.core.request import RequestSpec
from wkvm.core.start import Grant
from wkvm.core.table import Request


def agreed_tokens(spec: RequestSpec) -> int:
    """How many tokens the state of a request may come to have, with those that it starts from."""
    start = spec.start
    n_start = 0 if start is None else start.n_computed + len(start.pending)
    return n_start + len(spec.prompt) + spec.params.max_tokens


class Guests:
    """The pages of all requests.

    Full pages of the image that several requests begin from are shared as long as one of them has
    its slot; they count once. Whoever needs a copy of a state keeps its pages until that is made,
    whatever becomes of the request.

    Args:
        limit: how many pages one tenant may hold.
        most: how many one request may get, at most ``limit``.
        notes_freed: whether ``take_freed`` is asked for what was freed.
        loads_beside: whether images are loaded while other steps run: see ``Grant.beside``.
    """

    def __init__(
        self, n_pages: int, *, limit: int, most: int, notes_freed: bool, loads_beside: bool
    ) -> None:
        self._pages = PageAllocator(n_pages)
        self._limit = limit
        self._most = most
        self._n_held = Counter[str]()
        self._prefixes = dict[int, Prefix]()
        self._granting = list[Request]()
        self._loads_beside = loads_beside
        self._loads = dict[int, tuple[Request, Grant]]()
        self._n_grants = 0
        self._kept = dict[int, tuple[int, ...]]()
        self._coming = dict[int, int]()
        self._notes_freed = notes_freed
        self._freed = dict[int, None]()
        self.reclaim: Callable[[int], None] = _nothing
        """Called for so many more unused pages, where idle ones have to be taken back first."""

    @property
    def n_pages(self) -> int:
        """How many pages there are."""
        return self._pages.n_pages

    @property
    def most_tokens(self) -> int:
        """How many tokens a request may come to, with those that it starts from."""
        return self._most * PAGE_TOKENS

    @property
    def n_free(self) -> int:
        """How many of them nobody holds, those included that are idle."""
        return self._pages.n_free

    @property
    def n_unused(self) -> int:
        """How many of these are not idle."""
        return self._pages.n_unused

    @property
    def n_coming(self) -> int:
        """About how many become free with copies that are on their way."""
        return sum(self._coming.values())

    def check(self, spec: RequestSpec) -> None:
        """Check that a request could have its pages if nobody else had any.

        Raises:
            PromptTooLongError: it could not.
        """
        n_tokens = agreed_tokens(spec)
        if pages_for(n_tokens) > self._most:
            max_tokens = spec.params.max_tokens
            n_before = n_tokens - max_tokens
            raise PromptTooLongError(n_before, max_tokens, self.most_tokens, has_guest=True)

    def n_needed(self, request: Request) -> int:
        """How many free pages a request needs to get a slot, idle ones that it shares included."""
        return pages_for(agreed_tokens(request.spec)) - self._n_shared_with(request)

    def is_at_limit(self, request: Request) -> bool:
        """Whether a tenant would hold too much with a request's pages, however many are free."""
        return self._n_held[request.tenant] + self.n_needed(request) > self._limit

    def take(self, request: Request) -> None:
        """Give a request its pages, which are free."""
        prefix = self._prefix_of(request)
        if prefix is not None:
            prefix.n_holders += 1
        n_own = pages_for(agreed_tokens(request.spec)) - n_full_pages(request)
        request.holding = Holding(prefix, self._alloc(n_own), _image_of(request))
        self._n_held[request.tenant] += n_own
        self._granting.append(request)

    def _prefix_of(self, request: Request) -> Prefix | None:
        """The full pages that a request begins with, held once more; None for none."""
        source, n_pages = _source_of(request), n_full_pages(request)
        if not n_pages:
            return None
        prefix = self._prefixes.get(id(source))
        if prefix is not None:
            self._pages.share(prefix.pages)
            return prefix
        if isinstance(source, Checkpoint):
            n_idle = sum(not self._pages.n_holders(page) for page in source.pages)
            prefix = Prefix(source, request.tenant, source.pages, n_idle, is_filled=True)
            self._pages.share(source.pages)
        else:
            prefix = Prefix(source, request.tenant, self._alloc(n_pages), n_pages)
        self._prefixes[id(source)] = prefix
        self._n_held[request.tenant] += prefix.n_counted
        return prefix

    def _alloc(self, n_pages: int) -> tuple[int, ...]:
        if n_pages > self._pages.n_unused:
            self.reclaim(n_pages - self._pages.n_unused)
        return self._pages.alloc(n_pages)

    def lend(self, pages: tuple[int, ...]) -> None:
        """Let what is in these full pages outlive the request that has them."""
        self._pages.lend(pages)

    def take_back(self, pages: tuple[int, ...]) -> None:
        """Undo ``lend``."""
        self._note_freed(self._pages.take_back(pages))

    def give_back(self, request: Request) -> None:
        """Take the pages of a request that has some; those of copies on their way stay."""
        holding, request.holding = request.holding, None
        if holding is None:
            return
        prefix = holding.prefix
        if prefix is not None:
            prefix.n_holders -= 1
            if not prefix.n_holders:
                del self._prefixes[id(prefix.record)]
                self._n_held[prefix.tenant] -= prefix.n_counted
        self._n_held[request.tenant] -= len(holding.own)
        self._free(holding.pages)

    # --- what the device is told --------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether images are to be loaded, or are being loaded, beside the steps."""
        return bool(self._loads) or any(map(self.must_load, self._granting))

    def must_load(self, request: Request) -> bool:
        """Whether a request that got its slot has rows only once its image is loaded."""
        has_image = request.entry is not None and request.entry.slot is None
        return self._loads_beside and has_image and request.holding is not None

    def grants(self) -> tuple[Grant, ...]:
        """What the device is to be told of the requests that took pages since the last call."""
        requests, self._granting = self._granting, []
        return tuple(self._grant(request) for request in requests if _is_new(request))

    def _grant(self, request: Request) -> Grant:
        holding, slot = request.holding, request.slot
        if holding is None or slot is None:
            raise ValueError(f"request {request.request_id} has no pages")
        prefix, n_shared = holding.prefix, 0
        if prefix is not None:
            n_shared = len(prefix.pages) if prefix.is_filled else 0
            prefix.is_filled = True
        self._n_grants += 1
        ticket, beside = self._n_grants, self.must_load(request)
        grant = Grant(slot, holding.pages, n_shared, holding.record, ticket, beside)
        if beside:
            self._pages.share(holding.pages)
            self._loads[ticket] = request, grant
        holding.record, holding.ticket = None, ticket
        return grant

    def loaded(self, ticket: int) -> Request | None:
        """An image is loaded. The request that was waiting for it; None if it does not any more."""
        request, _ = self._over(ticket)
        holding = request.holding
        return request if holding is not None and holding.ticket == ticket else None

    def unloaded(self, ticket: int, running: Iterable[Request]) -> list[Request]:
        """An image could not be loaded. As ``lost``, for its grant."""
        _, grant = self._over(ticket)
        return self._lost((grant,), running)

    def lost(self, grants: Collection[Grant], running: Iterable[Request]) -> list[Request]:
        """The plan of these grants did not run: what they were to fill is not.

        Images that are loaded beside may be on their way all the same. Their pages are nobody
        else's until it is told what became of them.

        Returns:
            The requests that count on it.
        """
        return self._lost(grants, running) if grants else []

    def _lost(self, grants: Collection[Grant], running: Iterable[Request]) -> list[Request]:
        tickets, prefixes = {grant.ticket for grant in grants}, list[Prefix]()
        for grant in grants:
            prefix = self._prefixes.get(id(grant.record))
            if prefix is not None and not grant.n_shared:
                prefix.is_filled = False
                prefixes.append(prefix)
        return [
            request
            for request in running
            if (holding := request.holding) is not None
            and holding.ticket
            and (holding.ticket in tickets or holding.prefix in prefixes)
        ]

    def grant_again(self, request: Request) -> None:
        """Tell the device once more of the pages of a request that has had no row."""
        if request.holding is not None:
            request.holding.record, request.holding.ticket = _image_of(request), 0
            self._granting.append(request)

    def _over(self, ticket: int) -> tuple[Request, Grant]:
        request, grant = self._loads.pop(ticket)
        self._free(grant.pages)
        return request, grant

    # --- copies -------------------------------------------------------------------------------

    def keep(self, ticket: int, request: Request, n_tokens: int) -> tuple[int, ...]:
        """The pages of a request's first ``n_tokens`` tokens, held until ``let_go``."""
        if request.holding is None:
            return ()
        pages = request.holding.pages[: pages_for(n_tokens)]
        self._pages.share(pages)
        self._kept[ticket] = pages
        return pages

    def leave(self, ticket: int, request: Request) -> None:
        """Take the pages of a request that gives up its slot with a copy."""
        if request.holding is not None:
            self._coming[ticket] = len(request.holding.own)
        self.give_back(request)

    def let_go(self, ticket: int) -> None:
        """The copy of that ticket is made, or will never be."""
        self._coming.pop(ticket, None)
        self._free(self._kept.pop(ticket, ()))

    def take_freed(self) -> tuple[int, ...]:
        """The pages that became free since the last call, if they are noted."""
        freed = tuple(self._freed)
        self._freed.clear()
        return freed

    def _free(self, pages: tuple[int, ...]) -> None:
        self._note_freed(self._pages.free(pages))

    def _note_freed(self, freed: tuple[int, ...]) -> None:
        if self._notes_freed:
            self._freed |= dict.fromkeys(freed)

    def _n_shared_with(self, request: Request) -> int:
        """How many pages that others hold a request would hold, too."""
        if not n_full_pages(request):
            return 0
        source = _source_of(request)
        if isinstance(source, Checkpoint):
            return sum(self._pages.n_holders(page) > 0 for page in source.pages)
        prefix = self._prefixes.get(id(source))
        return 0 if prefix is None else len(prefix.pages)


def _is_new(request: Request) -> bool:
    """Whether a request has pages of which the device was not told."""
    return request.holding is not None and not request.holding.ticket


def _image_of(request: Request) -> object:
    """The image that a request is to be filled with; None for none, or what is on the device."""
    if request.prefix is not None:
        return request.prefix.record
    return None if request.entry is None else request.entry.record


def _source_of(request: Request) -> object:
    """By what the full pages that a request begins with are told apart."""
    prefix = request.prefix
    return prefix if prefix is not None and prefix.slot is not None else _image_of(request)


def n_full_pages(request: Request) -> int:
    """How many pages of what a waiting request begins with are full, and may be shared.

    None of what it left itself: nobody else begins from that.
    """
    if request.prefix is not None:
        return request.prefix.n_tokens // PAGE_TOKENS
    start = request.spec.start
    if start is None or _image_of(request) is not start.record:
        return 0
    return start.n_computed // PAGE_TOKENS


def _nothing(n_pages: int) -> None:
    del n_pages
