"""Which requests give up their slots, and pages, to those that wait."""

from wkvm.core.lives import PATIENCE_S, Lives
from wkvm.core.table import Request


class Hibernation(Lives):
    """Requests that make room for others.

    A slot that somebody waits for is taken from a request that has not been allowed
    to produce for ``PATIENCE_S``, or from one of the same tenant that comes after in priority. Its
    state goes to host memory, as that of one which is interrupted. It waits again, before others
    of its priority, and until it may produce it does not even do that. In a slot again it goes on
    as if nothing had been: nothing is computed twice, and no id depends on it.
    """

    def _make_room(self, now: float) -> None:
        """Have slots given up for those that are next in line: one a plan for each tenant.

        One that lacks pages, too, gets those of one request a plan.
        """
        self._planned_at = now
        n_places = self._config.max_hibernated - len(self._hibernated)
        if n_places <= 0 or not len(self._waiting):
            return
        guests, leaving = self._guests, self._savings.leaving
        n_free = self._slots.n_free + len(leaving)
        n_pages, n_needed = 0, 0
        if guests is not None:
            held = (one.holding for one in leaving)
            n_pages = guests.n_free + guests.n_coming
            n_pages += sum(len(one.own) for one in held if one is not None)
        for waiter in self._waiting.firsts():
            is_at_limit = self._slots.is_at_limit(waiter.tenant)
            if guests is not None:
                n_needed = guests.n_needed(waiter)
                is_at_limit = is_at_limit or guests.is_at_limit(waiter)
            if n_free and n_needed <= n_pages and not is_at_limit:
                n_free -= 1
                n_pages -= n_needed
                continue
            victim = self._victim(waiter, now, of_own=is_at_limit)
            if victim is not None and victim.is_fresh:
                self._unseat(victim)
            elif victim is not None:
                self._hibernated.add(victim.request_id)
                self._leave(victim)
                n_places -= 1
            # The next slot is this one's turn: nobody behind it gives one up for it.
            if not n_places or (victim is None and not is_at_limit):
                return

    def _victim(self, waiter: Request, now: float, *, of_own: bool) -> Request | None:
        """The request whose slot ``waiter`` may have; ``of_own``: of its tenant alone."""
        for paused in self._paused.values():
            if (paused.paused_since or 0.0) + PATIENCE_S > now:
                break
            if paused.may_hibernate and (not of_own or paused.tenant == waiter.tenant):
                return paused
        lower = [
            priority
            for tenant, priority in self._n_active
            if tenant == waiter.tenant and priority > waiter.priority
        ]
        for priority in sorted(lower, reverse=True):
            for request in reversed(self._active.values()):
                if (
                    request.tenant == waiter.tenant
                    and request.priority == priority
                    and request.may_hibernate
                ):
                    return request
        return None

    def _unseat(self, request: Request) -> None:
        """Take the slot of a request of which nothing is in there yet."""
        self._give_back(request)
        self._pull(request)
        self._queue_again(request)
