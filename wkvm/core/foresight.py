"""Who would be over too late: seen before a request costs anything.

A server that is asked for more than it can do has a line, and whoever is let in after a long wait
has little time left. To compute what will not be over in time takes the time of what would be: so
the answers that are of use come to nothing just when most are asked for. What is measured here, of
those that ran, says how long the line takes and how long a request does.

No clock: times come in.
"""

import math

from wkvm.core.config import EngineConfig
from wkvm.core.errors import OverloadedError, QueueFullError
from wkvm.core.request import RequestSpec, Status
from wkvm.core.table import Request
from wkvm.core.waiting import WaitingLine

TAKEN, ADMITTED = (0.4, 0.75), (0.2, 0.5)
"""What is kept of a request's time for what nobody foresees, when it is taken and when it gets a
slot: a share of what it needs, and at most one of what it does not need. The second are less, or
those that were just taken would all be given up."""
AT_ONCE = 0.05
"""Of one that has waited for less than this share of its time nothing is kept for what nobody
foresees."""
TOO_LATE = "so many requests wait that this one would not be over in its time"
MIN_RETRY_S = 0.1
MAX_RETRY_S = 600.0
HALF_LIFE_S = 10.0
"""What was measured of the line so long ago counts half."""
ENOUGH = 4.0
"""So many requests must have left the line, of late, for their pace to count."""
MAX_TENANTS = 4096
"""Tenants of whose outputs it is known how long they are; of more, the first are forgotten."""


class Mean:
    """A mean of late, in which one sample out of all proportion does little.

    Attributes:
        value: the mean; None without a sample.
        least: the least that it was, forgotten slowly: after thousands of samples.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self.least = 0.0

    def add(self, sample: float) -> None:
        """Take a sample in: it counts an eighth, and at most as twice the mean so far."""
        if self.value is None:
            self.value = self.least = sample
        else:
            self.value += (min(sample, 2 * self.value) - self.value) / 8
            self.least = min(self.value, self.least + (self.value - self.least) / 4096)


class Foresight:
    """What a request would have to wait for, and whether there is time for that.

    A request is taken for one that would be over too late only if it would have been in time at an
    idle server: who asks for more than fits in its time wants what fits. And one for which there is
    nobody to compute beside is judged as at an idle server: else, what was measured of a time in
    which all came too late would have all refused for ever.

    Args:
        waiting: the line.
    """

    def __init__(self, config: EngineConfig, waiting: WaitingLine) -> None:
        self._config = config
        self._waiting = waiting
        self._step_s = Mean()
        self._prompt_token_s = Mean()
        self._held_s = Mean()
        self._share_used = dict[str, Mean]()
        self._n_left = 0.0
        self._left_s = 0.0
        self._looked_at: float | None = None

    # --- what is measured -----------------------------------------------------------------

    def stepped(self, seconds: float) -> None:
        """A step gave ids, so long after the one before it."""
        self._step_s.add(seconds)

    def began(self, request: Request, now: float) -> None:
        """A request has its first id."""
        if request.admitted_at is not None:
            self._prompt_token_s.add((now - request.admitted_at) / max(1, len(request.prompt)))

    def admitted(self, n: int, now: float) -> None:
        """So many left the line for slots in a plan; called with each, before anybody else comes.

        The pace of the line is that of the time in which somebody waits throughout.
        """
        if self._looked_at is not None:
            seconds = now - self._looked_at
            kept = 0.5 ** (seconds / HALF_LIFE_S)
            self._n_left = self._n_left * kept + n
            self._left_s = self._left_s * kept + seconds
        self._looked_at = now if len(self._waiting) else None

    def ended(self, request: Request, status: Status, now: float) -> None:
        """A request is over."""
        if request.admitted_at is None:
            return
        self._held_s.add(now - request.admitted_at)
        if status in (Status.STOPPED, Status.LENGTH) and request.stops:
            tenant = request.tenant
            if tenant not in self._share_used:
                if len(self._share_used) == MAX_TENANTS:
                    del self._share_used[next(iter(self._share_used))]
                self._share_used[tenant] = Mean()
            self._share_used[tenant].add(request.n_output / max(1, request.params.max_tokens))

    # --- what follows from it ---------------------------------------------------------------

    def needed_s(
        self, tenant: str, n_prompt: int, max_tokens: int, *, may_stop: bool
    ) -> tuple[float, float]:
        """How long a request takes once it has a slot, now and at an idle server; 0 if unknown.

        One that may stop takes the share of its ``max_tokens`` that the tenant's others took.
        """
        share = 1.0
        if may_stop:
            used = self._share_used.get(tenant)
            share = 0.0 if used is None or used.value is None else used.value
        n_steps, prompt, step = share * max_tokens, self._prompt_token_s, self._step_s
        now_s = n_prompt * (prompt.value or 0.0) + n_steps * (step.value or 0.0)
        return now_s, n_prompt * prompt.least + n_steps * step.least

    def wait_s(self, tenant: str, priority: int, *, n_free: int = 0) -> float | None:
        """How long a request would wait in the line; None if nothing is known of its pace.

        Linear in the tenants that wait.
        """
        n_ahead, n_own = self._waiting.n_ahead(tenant, priority)
        config = self._config
        if n_ahead < n_free:
            return 0.0
        held_s, waits = self._held_s.value, list[float]()
        if self._left_s > 0 and self._n_left >= ENOUGH:
            waits.append((n_ahead + 1) * self._left_s / self._n_left)
        elif held_s:
            waits.append((n_ahead + 1) * held_s / config.n_slots)
        if config.max_slots_per_tenant is not None and held_s:
            waits.append((n_own + 1) * held_s / config.max_slots_per_tenant)
        return max(waits, default=None)

    def check(self, spec: RequestSpec, timeout_s: float, *, n_free: int, may_stop: bool) -> None:
        """Check that a request would be over in time, and not wait too long.

        Args:
            n_free: how many slots its tenant may have now.
            may_stop: whether there are ids that end it.

        Raises:
            OverloadedError: it would not.
        """
        wait_s = self.wait_s(spec.tenant, spec.priority, n_free=n_free)
        if not wait_s:
            return
        params, most_s = spec.params, self._config.max_queue_s
        if most_s is not None and wait_s > most_s:
            why = f"requests wait more than {most_s:g} s for a slot"
            raise OverloadedError(why, self.retry_after_s(spec.tenant, spec.priority))
        needed_s, least_s = self.needed_s(
            spec.tenant, len(spec.prompt), params.max_tokens, may_stop=may_stop
        )
        if wait_s > _may_wait_s(needed_s, least_s, timeout_s, TAKEN):
            raise OverloadedError(TOO_LATE, self.retry_after_s(spec.tenant, spec.priority))

    def is_too_late(self, request: Request, now: float, *, is_alone: bool) -> bool:
        """Whether one whose turn it is would not be over in time.

        Args:
            is_alone: whether nobody else runs.
        """
        if request.admitted_at is not None:
            return False
        needed_s, least_s = self.needed_s(
            request.tenant,
            len(request.prompt),
            request.params.max_tokens,
            may_stop=bool(request.stops),
        )
        timeout_s, waited_s = request.deadline - request.submitted_at, now - request.submitted_at
        if is_alone:
            needed_s = least_s
        # Who names no time of its own wants what fits into the server's.
        may_fit = needed_s < timeout_s or request.spec.timeout_s is None
        if waited_s < AT_ONCE * timeout_s and may_fit:
            return False
        return waited_s >= _may_wait_s(needed_s, least_s, timeout_s, ADMITTED)

    def too_late(self, request: Request) -> OverloadedError:
        """What such a one is told."""
        return OverloadedError(TOO_LATE, self.retry_after_s(request.tenant, request.priority))

    def full(self, limit: int, of: str, spec: RequestSpec) -> QueueFullError:
        """What one is told for which the line has no room."""
        return QueueFullError(limit, of, self.retry_after_s(spec.tenant, spec.priority))

    def retry_after_s(self, tenant: str, priority: int) -> float | None:
        """When those that wait now will have had their turns; None if nothing is known."""
        wait_s = self.wait_s(tenant, priority)
        return None if wait_s is None else min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)


def _may_wait_s(
    needed_s: float, least_s: float, timeout_s: float, kept: tuple[float, float]
) -> float:
    """How long a request may wait; for ever, if its time would not suffice in any case."""
    if least_s > timeout_s:
        return math.inf
    slack_s = max(0.0, timeout_s - needed_s)
    return slack_s - min(kept[0] * needed_s, kept[1] * slack_s)
