"""Drives an engine step by step and sorts its events by request."""

from dataclasses import dataclass, field

from wkvm.core.config import EngineConfig
from wkvm.core.request import (
    EndEvent,
    Event,
    Logprobs,
    PooledEvent,
    PromptLogprobsEvent,
    RequestSpec,
    ReusedEvent,
    SavedEvent,
    Status,
    TokenEvent,
    by_request,
)
from wkvm.core.sampling import SamplingParams
from wkvm.core.start import Saved
from wkvm.engine.engine import Engine
from wkvm.models.base import Model


@dataclass
class Outcome:
    """What came of one request so far."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[Logprobs | None] = field(default_factory=list[Logprobs | None])
    prompt_logprobs: list[Logprobs] = field(default_factory=list[Logprobs])
    pooled: list[bytes] = field(default_factory=list[bytes])
    saved: list[Saved] = field(default_factory=list[Saved])
    end: EndEvent | None = None
    reused: int = 0

    @property
    def last(self) -> Saved:
        """What it was saved as at its end."""
        assert self.end is not None
        assert self.end.saved is not None, self.end
        return self.end.saved

    @property
    def status(self) -> Status | None:
        return None if self.end is None else self.end.status


class Driver:
    """An engine over ``model`` whose clock counts steps."""

    def __init__(self, model: Model, config: EngineConfig | None = None) -> None:
        self.engine = Engine(model, config or EngineConfig(poison_freed_slots=True))
        self.now = 0.0
        self.outcomes = dict[int, Outcome]()

    def submit(self, prompt: tuple[int, ...], params: SamplingParams, choice: int = 0) -> int:
        """Submit all choices; the id of one of them."""
        return self.begin(RequestSpec(prompt=prompt, params=params))[choice]

    def begin(self, spec: RequestSpec) -> tuple[int, ...]:
        request_ids = self.engine.submit(spec, self.now)
        self.outcomes.update((request_id, Outcome()) for request_id in request_ids)
        return request_ids

    def cancel(self, request_id: int) -> None:
        self.engine.cancel(request_id, self.now)
        self.note(self.engine.take_events())

    def step(self) -> None:
        self.now += 1
        self.note(self.engine.step(self.now))

    def note(self, events: list[Event]) -> None:
        for event in by_request(events):
            outcome = self.outcomes[event.request_id]
            assert outcome.end is None, "an event after the end"
            match event:
                case TokenEvent():
                    assert event.index == len(outcome.ids)
                    outcome.ids.append(event.token_id)
                    outcome.logprobs.append(event.logprobs)
                case PromptLogprobsEvent():
                    assert event.first == len(outcome.prompt_logprobs) + 1
                    outcome.prompt_logprobs += event.logprobs
                case PooledEvent():
                    outcome.pooled.append(event.values)
                case ReusedEvent():
                    assert not outcome.ids
                    assert not outcome.reused, "told twice"
                    outcome.reused = event.n_tokens
                case SavedEvent():
                    assert event.saved is not None
                    outcome.saved.append(event.saved)
                case EndEvent():
                    outcome.end = event

    @property
    def is_idle(self) -> bool:
        return all(outcome.end is not None for outcome in self.outcomes.values())

    def finish(self) -> None:
        while not self.is_idle:
            self.step()

    def run(self, prompt: tuple[int, ...], params: SamplingParams, choice: int = 0) -> Outcome:
        """One request from its beginning to its end."""
        request_id = self.submit(prompt, params, choice)
        self.finish()
        return self.outcomes[request_id]

    def run_spec(self, spec: RequestSpec) -> Outcome:
        """One request of one choice from its beginning to its end."""
        (request_id,) = self.begin(spec)
        self.finish()
        return self.outcomes[request_id]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
