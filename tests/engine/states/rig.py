"""A service of states over a fake engine and a store in a folder, and what came of its requests."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.engine.states.fake_loop import FakeLoop
from tests.fakes import FakeModel, GuestModel
from wkvm.core.config import EngineConfig
from wkvm.core.limits import StoreLimits
from wkvm.core.rates import Rate
from wkvm.core.registry import Identity, Ref
from wkvm.core.request import EndEvent, Event, RequestSpec, TokensEvent
from wkvm.core.sampling import SamplingParams
from wkvm.core.states import StateUse
from wkvm.engine.engine import Engine
from wkvm.engine.loop import EngineLoop
from wkvm.engine.states import StateService
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.interface import StepLoop
from wkvm.engine.states.threads import Threads
from wkvm.models.base import Model
from wkvm.state.exchange import MAX_TOKENS
from wkvm.state.mutations import Mutations
from wkvm.state.operations import Operation, Parameters
from wkvm.state.store import Store

TENANT = "ada"


class Same(Parameters, frozen=True, kw_only=True):
    """None."""


SAME = Operation("same", Same, lambda parameters, parents: {})
"""A mutation that the fake's tensors can have: they stay as they are."""


class Default:
    """What states there are where no model is said: ``either_kind`` of conftest sets it."""

    has_guest = False


TIMEOUT_S = 60.0


@dataclass
class Rig:
    """A service, the loop below it, and what its requests were told."""

    loop: Any
    store: Store
    service: StateService
    ids: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, EndEvent] = field(default_factory=dict)
    waiting: dict[int, "asyncio.Event"] = field(default_factory=dict)

    def deliver(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokensEvent):
                for request_id, token_id in zip(event.request_ids, event.token_ids, strict=True):
                    self.ids.setdefault(request_id, []).append(token_id)
            elif isinstance(event, EndEvent):
                assert event.request_id not in self.ends, "two ends"
                self.ends[event.request_id] = event
                self.waiting.setdefault(event.request_id, asyncio.Event()).set()

    def tokens(self, ref: Ref | str) -> tuple[int, ...]:
        """All ids that belong to a version, absorbed or not."""
        image = self.store.load(TENANT, ref).image
        return (*image.ids(), *image.carried.pending)

    def submit(self, prompt: Sequence[int] = (), **keywords: Any) -> int:
        """Submit a turn of one choice; keywords are of its use and its parameters."""
        mine = {"max_tokens", "stop_ids", "seed", "n"}
        params = SamplingParams(
            temperature=0.0,
            **{"max_tokens": 4, **{k: keywords.pop(k) for k in mine & keywords.keys()}},
        )
        terms = {k: keywords.pop(k) for k in {"credit", "tenant", "timeout_s"} & keywords.keys()}
        spec = RequestSpec(prompt=prompt, params=params, **{"tenant": TENANT, **terms})
        return self.service.submit(spec, use(**keywords))[0]

    async def end(self, request_id: int) -> EndEvent:
        async with asyncio.timeout(TIMEOUT_S):
            await self.waiting.setdefault(request_id, asyncio.Event()).wait()
        return self.ends[request_id]

    async def turn(self, prompt: Sequence[int] = (), **keywords: Any) -> tuple[list[int], EndEvent]:
        """Run a turn; its ids and its end."""
        request_id = self.submit(prompt, **keywords)
        end = await self.end(request_id)
        return self.ids.get(request_id, []), end


async def until(fact: Callable[[], bool]) -> None:
    """Let the loop turn until something holds that has no event."""
    async with asyncio.timeout(TIMEOUT_S):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0)


def use(**keywords: Any) -> StateUse:
    """A use; the state may be text."""
    state = keywords.pop("state", None)
    if isinstance(state, str):
        name, _, version = state.partition("@")
        state = Ref(name, int(version) if version else None)
    return StateUse(state=state, **keywords)


def backing_of(loop: StepLoop, store: Store, *, has_disk: bool = True) -> Backing:
    """What a service over a loop and a store has."""
    return Backing(
        forks=Rate(0, "forks"),
        store=store,
        identity=Identity(
            model_digest=loop.info.model_digest, fingerprint=loop.info.layout_fingerprint
        ),
        layout=loop.layout,
        vocab_size=loop.info.vocab_size,
        max_tokens=MAX_TOKENS,
        threads=Threads(),
        mutations=Mutations([SAME]),
        fold=None,
        clock=time.monotonic,
        engine="test",
        has_disk=has_disk,
        has_cold=False,
        used={},
        moved={},
    )


@asynccontextmanager
async def running(
    folder: Path, *, has_disk: bool = True, limits: StoreLimits | None = None
) -> AsyncIterator[Rig]:
    """A service that runs."""
    loop = FakeLoop(has_guest=Default.has_guest)
    store = Store.open(str(folder), clock=time.time, limits=limits, engine="test")
    service = StateService(loop, backing_of(loop, store, has_disk=has_disk))
    rig = Rig(loop, store, service)
    service.deliver = rig.deliver
    stepping = asyncio.create_task(loop.run())
    try:
        yield rig
    finally:
        stepping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stepping
        await service.close()


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    eos_ids: tuple[int, ...] = (),
    model: Model | None = None,
    mutations: Mutations | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """The same over an engine that runs, with a model without weights if no other is given."""
    config = EngineConfig(n_slots=4, n_threads=1, poison_freed_slots=True, **settings)
    kind = GuestModel if Default.has_guest else FakeModel
    loop = EngineLoop(Engine(model or kind(eos_ids=eos_ids), config))
    store = Store.open(str(folder), clock=time.time, engine="test")
    backing = backing_of(loop, store)
    if mutations is not None:
        backing = replace(backing, mutations=mutations)
    service = StateService(loop, backing)
    rig = Rig(loop, store, service)
    service.deliver = rig.deliver
    stepping = asyncio.create_task(loop.run())
    try:
        yield rig
    finally:
        loop.close()
        with contextlib.suppress(asyncio.CancelledError):
            await stepping
        await service.close()
