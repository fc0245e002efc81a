"""What the scheduler has counted and measured since the start."""

from collections import deque
from collections.abc import Mapping
from math import inf

from wkvm.core.histogram import (
    LENGTH_BOUNDS,
    REQUEST_BOUNDS_US,
    STEP_BOUNDS_US,
    Histogram,
)
from wkvm.core.request import EndEvent, Status


class Counters:
    """Counts that only rise. What is measured costs each step the same, whatever its rows.

    Attributes:
        n_requests: taken; each choice is one.
        n_prompt_tokens: absorbed.
        n_starts: requests that got a slot and began, or went on, from a state.
        n_saves: states copied to the host.
        n_hibernated: those of them whose requests were to go on later.
        n_refused: refused for want of room in the line, or of time; each choice is one.
        n_too_late: those that had waited and were then given up for want of time.
    """

    def __init__(self) -> None:
        self.n_requests = 0
        self.n_prompt_tokens = 0
        self.n_starts = 0
        self.n_saves = 0
        self.n_hibernated = 0
        self.n_refused = 0
        self.n_too_late = 0
        self._n_output_tokens = 0
        self._n_steps = 0
        self._n_ended = {status: 0 for status in Status if status.is_final}
        self._queue = Histogram("queue_us", REQUEST_BOUNDS_US)
        self._first_token = Histogram("first_token_us", REQUEST_BOUNDS_US)
        self._request = Histogram("request_us", REQUEST_BOUNDS_US)
        self._prompt_length = Histogram("prompt_length", LENGTH_BOUNDS)
        self._output_length = Histogram("output_length", LENGTH_BOUNDS)
        self._inter_token = Histogram("inter_token_us", STEP_BOUNDS_US)
        self._step = Histogram("step_us", STEP_BOUNDS_US)
        self._planned_at = deque[float]()
        self._runs_on = False
        self._since = 0.0
        self._landed_at = -inf
        self._turn_s = 0.0

    def admitted(self, queue_s: float) -> None:
        """A request got its slot, so long after it was submitted."""
        self._queue.observe_s(queue_s)

    def first_token(self, seconds: float) -> None:
        """A request produced its first id, so long after it was submitted."""
        self._first_token.observe_s(seconds)

    def ended(self, end: EndEvent) -> None:
        """A request ended."""
        self._n_ended[end.status] += 1
        self._request.observe_s(end.total_s)
        self._prompt_length.observe(end.n_prompt)
        self._output_length.observe(end.n_output)

    def planned(self, now: float) -> None:
        """A step is planned; it begins when those that are in flight are over."""
        self._planned_at.append(now)
        if not self._runs_on:
            self._since = now
        self._runs_on = True

    def idle(self) -> None:
        """Nothing is in flight, and there was nothing to run."""
        self._runs_on = False

    def landed(self, now: float) -> None:
        """The oldest of the steps that are planned is over, failed or not."""
        self._n_steps += 1
        began = max(self._planned_at.popleft(), self._landed_at)
        self._step.observe_s(now - began)
        self._landed_at = now
        self._turn_s, self._since = now - self._since, now

    def produced(self, n_first: int, n_following: int) -> None:
        """The step that landed last produced ids: the first of some requests, and later ones.

        A request that decodes has a row in every step, so for all of them the time since their
        last id is that since the last step landed; but one with a grammar, where two steps are in
        flight, has a row in every second one at most, and its times come out too short. Where
        nothing ran for want of credit or readers, it is the step's own.
        """
        self._n_output_tokens += n_first + n_following
        if n_following:
            self._inter_token.observe_s(self._turn_s, n_following)

    @property
    def turn_s(self) -> float:
        """From the step before the last, or from when there was something to run, to the last."""
        return self._turn_s

    def by_name(self) -> Mapping[str, int]:
        """The counts by the names that clients know."""
        return {
            "requests_total": self.n_requests,
            **{f"{status}_total": n for status, n in self._n_ended.items()},
            "prompt_tokens_total": self.n_prompt_tokens,
            "output_tokens_total": self._n_output_tokens,
            "steps_total": self._n_steps,
            "starts_total": self.n_starts,
            "saves_total": self.n_saves,
            "hibernated_total": self.n_hibernated,
            "refused_total": self.n_refused,
            "too_late_total": self.n_too_late,
            **self._queue.by_name(),
            **self._first_token.by_name(),
            **self._request.by_name(),
            **self._prompt_length.by_name(),
            **self._output_length.by_name(),
            **self._inter_token.by_name(),
            **self._step.by_name(),
        }
