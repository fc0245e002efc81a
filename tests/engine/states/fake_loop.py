"""A loop over an engine of a few lines: a state is the hash of its log, and an id a function of it.

As ``tests.fakes``, without a model: what takes requests, starts and ends in states, and nothing of
slots, batches or sampling. It produces one id a turn of the event loop for each request.
"""

import asyncio
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.fakes import absorb, mix
from wkvm.core.errors import DrainingError
from wkvm.core.layout import (
    GUEST_PAGES,
    GUEST_TOKENS,
    GuestSpec,
    StateLayout,
    TensorSpec,
    guest_tokens,
)
from wkvm.core.registry import SamplerMemory
from wkvm.core.request import EndEvent, Event, RequestSpec, SavedEvent, Status, TokensEvent
from wkvm.core.start import Saved
from wkvm.engine.interface import EngineInfo
from wkvm.state.image import views_of

VOCAB_SIZE = 64
LAYOUT = StateLayout(
    (TensorSpec("fake.hash", (1,), "int64"), TensorSpec("fake.zero", (3,), "float32"))
)
PAGED = StateLayout(
    (*LAYOUT.tensors, guest_tokens()),
    GuestSpec(n_layers=1, n_parts=1, n_heads=1, head_dim=1, dtype="float32"),
)
"""With a page that has the ids themselves."""
WORD = 2**64


@dataclass
class _Live:
    spec: RequestSpec
    state: int
    n_computed: int
    to_feed: list[int]
    credit: int | None
    memory: SamplerMemory
    log: list[int]
    absorbed: list[int] = field(default_factory=list)
    pending: tuple[int, ...] = ()
    n_output: int = 0
    held: bool = False


class FakeLoop:
    """A StepLoop. Nothing runs before ``step``, or ``run`` on an event loop.

    Args:
        has_guest: its states have pages.

    Attributes:
        n_fed: how many tokens were absorbed, in all.
        specs: of the requests, by id.
        forgets: no state that is saved is what it should be.
    """

    def __init__(self, *, has_guest: bool = False) -> None:
        self.deliver: Callable[[list[Event]], None] = lambda events: None
        self.layout = PAGED if has_guest else LAYOUT
        self.info = EngineInfo(
            model="fake",
            model_digest="ab" * 32,
            layout_fingerprint=self.layout.fingerprint,
            tokenizer_digest="",
            vocab_size=VOCAB_SIZE,
            eos_ids=(),
            n_slots=8,
            max_model_len=None,
        )
        self.n_fed = 0
        self.forgets = False
        self.specs = dict[int, RequestSpec]()
        self._n_reserved = 0
        self._live = dict[int, _Live]()
        self._accepts = True
        self._snapshots = set[int]()
        self._interrupted = set[int]()

    @property
    def n_live(self) -> int:
        return len(self._live)

    def reserve(self, n: int) -> tuple[int, ...]:
        first = self._n_reserved + 1
        self._n_reserved += n
        return tuple(range(first, first + n))

    def submit(
        self, spec: RequestSpec, request_ids: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        if not self._accepts:
            raise DrainingError
        ids = self.reserve(spec.params.n) if request_ids is None else request_ids
        for at, request_id in enumerate(ids):
            start = spec.start
            state, n_computed, fed, log = 0, 0, list(spec.prompt), list[int]()
            memory = SamplerMemory(seed=spec.params.seed or 1000 + request_id, branch=at)
            if start is not None:
                state = int(_hash_of(start.record))
                n_computed, fed, log = start.n_computed, [*start.pending, *fed], list(start.log)
                assert len(log) == n_computed
                _check_pages(self.layout, start.record, log)
                if start.memory is not None and not spec.fresh_key:
                    memory = start.memory
            self.specs[request_id] = spec
            self._live[request_id] = _Live(
                spec, state % WORD, n_computed, fed, spec.credit, memory, log
            )
        return ids

    def cancel(self, request_id: int) -> None:
        live = self._live.pop(request_id, None)
        if live is not None:
            event = self._end(request_id, live, Status.CANCELLED, saves=False)
            asyncio.get_running_loop().call_soon(lambda: self.deliver([event]))

    def interrupt(self, request_id: int) -> None:
        self._interrupted.add(request_id)

    def snapshot(self, request_id: int) -> bool:
        if request_id not in self._live:
            return False
        self._snapshots.add(request_id)
        return True

    def grant(self, request_id: int, n_tokens: int) -> None:
        live = self._live.get(request_id)
        if live is not None and live.credit is not None:
            live.credit += n_tokens

    def hold(self, request_id: int) -> None:
        if request_id in self._live:
            self._live[request_id].held = True

    def release(self, request_id: int) -> None:
        if request_id in self._live:
            self._live[request_id].held = False

    def stats(self) -> Mapping[str, int]:
        return {"n_running": len(self._live)}

    def cancel_all(self, but: Container[int] = ()) -> None:
        for request_id in [one for one in self._live if one not in but]:
            self.cancel(request_id)

    async def drain(self, grace_s: float) -> None:
        self._accepts = False
        try:
            async with asyncio.timeout(grace_s):
                while self._live:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        except TimeoutError:
            for request_id in list(self._live):
                self.cancel(request_id)
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            self.step()
            await asyncio.sleep(0)

    def step(self) -> None:
        """One step of every request."""
        events = list[Event]()
        for request_id, live in list(self._live.items()):
            events += self._step(request_id, live)
        if events:
            self.deliver(events)

    def _step(self, request_id: int, live: _Live) -> list[Event]:
        events = list[Event]()
        spec = live.spec
        if request_id in self._interrupted:
            self._interrupted.discard(request_id)
            return [self._over(request_id, live, Status.CANCELLED)]
        if request_id in self._snapshots:
            self._snapshots.discard(request_id)
            events.append(SavedEvent(request_id, _saved(self.layout, live), False))
        if live.to_feed:
            n = len(live.to_feed) - spec.hold_back_last
            for token_id in live.to_feed[:n]:
                events += self._absorb(request_id, live, token_id)
            live.pending = tuple(live.to_feed[n:])
            live.to_feed.clear()
            if spec.params.max_tokens == 0:
                return [*events, self._over(request_id, live, Status.LENGTH)]
        if live.held or live.credit == 0:
            return events
        for token_id in live.pending:
            events += self._absorb(request_id, live, token_id)
        live.pending = ()
        token_id = (
            spec.forced[live.n_output]
            if spec.forced
            else int(torch.tensor(fake_logits_of(live.state)).argmax())
        )
        live.pending = (token_id,)
        if token_id in spec.params.stop_ids:
            return [*events, self._over(request_id, live, Status.STOPPED, stop_id=token_id)]
        events.append(TokensEvent((request_id,), (live.n_output,), (token_id,)))
        live.n_output += 1
        if live.credit is not None:
            live.credit -= 1
        if live.n_output == spec.params.max_tokens:
            events.append(self._over(request_id, live, Status.LENGTH))
        return events

    def _absorb(self, request_id: int, live: _Live, token_id: int) -> list[Event]:
        live.state = absorb(live.state, token_id)
        live.absorbed.append(token_id)
        live.n_computed += 1
        self.n_fed += 1
        every = live.spec.checkpoint_every
        if every is not None and live.n_computed % every == 0:
            return [SavedEvent(request_id, _saved(self.layout, live), True)]
        return []

    def _over(
        self, request_id: int, live: _Live, status: Status, stop_id: int | None = None
    ) -> EndEvent:
        del self._live[request_id]
        return self._end(request_id, live, status, saves=live.spec.save, stop_id=stop_id)

    def _end(
        self,
        request_id: int,
        live: _Live,
        status: Status,
        *,
        saves: bool,
        stop_id: int | None = None,
    ) -> EndEvent:
        return EndEvent(
            request_id=request_id,
            status=status,
            stop_id=stop_id,
            error=None,
            n_prompt=len(live.spec.prompt),
            n_output=live.n_output,
            queue_s=0.0,
            first_token_s=0.0,
            total_s=0.0,
            saved=_saved(self.layout, live, forgets=self.forgets) if saves else None,
        )


def fake_logits_of(state: int) -> list[float]:
    """The logits of ``fake_logits``, by the state."""

    return [(mix(state ^ (token_id + 1)) >> 52) / 512 for token_id in range(VOCAB_SIZE)]


def record_of(layout: StateLayout, state: int, ids: Sequence[int]) -> Tensor:
    """A record that holds a hash, and pages that hold ``ids``."""
    record = torch.zeros(layout.image_bytes(len(ids)), dtype=torch.uint8)
    signed = state - WORD if state >= WORD // 2 else state
    record[:8].view(torch.int64).fill_(signed)
    views = views_of(layout, record)
    if layout.guest is not None:
        views[GUEST_TOKENS].fill_(len(ids))
    if ids and GUEST_PAGES in views:
        views[GUEST_PAGES].flatten()[: len(ids)] = torch.tensor(ids, dtype=torch.float32)
    return record


def _check_pages(layout: StateLayout, record: Tensor, ids: Sequence[int]) -> None:
    expected = record_of(layout, 0, ids)
    assert record.shape == expected.shape
    assert record[layout.record_bytes :].equal(expected[layout.record_bytes :])


def _hash_of(record: Tensor) -> int:
    return int(record[:8].view(torch.int64).item()) % WORD


def _saved(layout: StateLayout, live: _Live, *, forgets: bool = False) -> Saved:
    return Saved(
        record=record_of(layout, live.state ^ forgets, [*live.log, *live.absorbed]),
        n_computed=live.n_computed,
        absorbed=array("i", live.absorbed),
        pending=live.pending,
        memory=live.memory,
    )
