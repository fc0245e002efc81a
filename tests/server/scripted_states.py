"""States that do as they are told: they wait, fail or answer, and note what was asked of them."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engine.states.fake_loop import FakeLoop
from wkvm.core.errors import BadStateFileError, WkvmError
from wkvm.core.registry import (
    AckClass,
    Durability,
    HandleRecord,
    Identity,
    Provenance,
    Ref,
    VersionRecord,
)
from wkvm.core.request import EndEvent, Event, RequestSpec, Status
from wkvm.core.states import (
    Descent,
    LineagePage,
    Moved,
    Replayed,
    StateEnd,
    StateInfo,
    StatePage,
    StateUse,
    Tier,
)
from wkvm.engine.interface import EngineInfo
from wkvm.server.interface import StateWatch

FILE_BYTES = 3_000_000
"""Length of every file of a state here."""


def info_of(
    name: str, version: int = 1, *, tags: Mapping[str, str] | None = None, operation: str = "create"
) -> StateInfo:
    record = VersionRecord(
        tenant="local",
        name=name,
        version=version,
        content_id="ab" * 32,
        n_bytes=FILE_BYTES,
        identity=Identity(model_digest="ab" * 32, fingerprint="cd" * 32),
        n_computed=7,
        n_pending=1,
        key=None,
        provenance=Provenance(operation=operation, parameters={"n": version}),
        created_at=1.5,
        ack=AckClass.DURABLE,
        tail=(1, 2, 3),
    )
    handle = HandleRecord(
        tenant="local",
        name=name,
        head=record,
        n_versions=version,
        tags=tags or {},
        created_at=1.0,
        updated_at=2.0,
    )
    return StateInfo(handle=handle, version=record, tier=Tier.DISK)


@dataclass
class Found:
    """What difference gives."""

    def to_json(self) -> dict[str, Any]:
        return {"equal": True}


@dataclass
class ScriptedSource:
    info: StateInfo
    data: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.data)

    def chunks(self) -> Iterator[memoryview]:
        view = memoryview(self.data)
        for at in range(0, len(view), 2**18):
            yield view[at : at + 2**18]


@dataclass
class ScriptedSink:
    states: "ScriptedStates"
    name: str
    data: bytearray = field(default_factory=bytearray)
    is_open: bool = True
    is_slow: bool = False

    async def write(self, data: bytes) -> None:
        if self.is_slow:
            await self.states.wait("write", self.name)
        self.data += data

    async def finish(self) -> StateInfo:
        await self.states.wait("finish", self.name)
        self.states.kept[self.name] = bytes(self.data)
        return info_of(self.name, operation="import")

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            self.states.n_sinks -= 1


class ScriptedStates:
    """A Loop and States.

    Attributes:
        waits: operations that wait until they are cancelled, by name.
        raises: what operations raise, by name.
        asked: what was asked for, in order: names and arguments.
        end_s: how long one that is cancelled takes to end.
        cancelled: names of operations that were cancelled while they waited.
        n_sinks: imports that hold memory.
        kept: what was imported, by name.
        end: what the end of a request on a state tells of it.
    """

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.loop.deliver = self._take
        self.deliver: Callable[[list[Event]], None] = lambda events: None
        self.waits = set[str]()
        self.raises = dict[str, WkvmError | Exception]()
        self.asked = list[tuple[Any, ...]]()
        self.cancelled = list[str]()
        self.n_waiting = 0
        self.end_s = 0.0
        self.n_sinks = 0
        self.slow_sinks = False
        self.kept = dict[str, bytes]()
        self.exported = bytes(range(256)) * 4000
        self.uses = dict[int, StateUse]()
        self.end: StateEnd | None = StateEnd()
        self.error: WkvmError | None = None
        self.log_records: Sequence[VersionRecord] = [info_of("a", 2).version, info_of("a").version]
        self.page: Sequence[StateInfo] = [info_of("a"), info_of("b")]
        self.same_id: int | None = None

    async def wait(self, name: str, *arguments: Any) -> None:
        self.asked.append((name, *arguments))
        if name in self.raises:
            raise self.raises[name]
        if name in self.waits:
            self.n_waiting += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(self.end_s)
                self.cancelled.append(name)
                raise
            finally:
                self.n_waiting -= 1
        await asyncio.sleep(0)

    # --- a loop

    @property
    def info(self) -> EngineInfo:
        return self.loop.info

    def submit(self, spec: RequestSpec, use: StateUse | None = None) -> tuple[int, ...]:
        if use is not None:
            self.asked.append(("submit", spec, use))
            if "submit" in self.raises:
                raise self.raises["submit"]
            if self.same_id is not None:
                return (self.same_id,)
        ids = self.loop.submit(spec)
        if use is not None:
            self.uses.update(dict.fromkeys(ids, use))
        return ids

    def watch(self, tenant: str, prefix: str, wake: Callable[[], None]) -> StateWatch:
        raise NotImplementedError("watches are tried over the service of states")

    def cancel(self, request_id: int) -> None:
        self.loop.cancel(request_id)

    def interrupt(self, request_id: int, keep: int | None = None) -> None:
        self.asked.append(("interrupt", request_id, keep))
        self.loop.cancel(request_id)

    def disconnected(self, request_id: int) -> None:
        self.asked.append(("disconnected", request_id))
        self.loop.cancel(request_id)

    def grant(self, request_id: int, n_tokens: int) -> None:
        self.loop.grant(request_id, n_tokens)

    def hold(self, request_id: int) -> None:
        self.loop.hold(request_id)

    def release(self, request_id: int) -> None:
        self.loop.release(request_id)

    def stats(self) -> Mapping[str, int]:
        return self.loop.stats()

    async def drain(self, grace_s: float) -> None:
        await self.loop.drain(grace_s)

    def _take(self, events: list[Event]) -> None:
        told = list[Event]()
        for event in events:
            if isinstance(event, EndEvent) and self.uses.pop(event.request_id, None) is not None:
                event = replace(event, saved=None, state=self.end)
                if self.error is not None:
                    event = replace(event, status=Status.FINISHED_ERROR, error=self.error)
            told.append(event)
        self.deliver(told)

    # --- states

    @property
    def max_inline_bytes(self) -> int:
        return FILE_BYTES

    async def create(
        self, tenant: str, name: str, prompt: Sequence[int], **keywords: Any
    ) -> StateInfo:
        await self.wait("create", tenant, name, tuple(prompt), keywords)
        return info_of(name)

    async def get(self, tenant: str, ref: Ref) -> StateInfo:
        await self.wait("get", tenant, ref)
        return info_of(ref.name, ref.version or 1)

    async def handles(
        self,
        tenant: str,
        *,
        prefix: str,
        tags: Mapping[str, str] | None,
        after: str,
        limit: int,
    ) -> StatePage:
        await self.wait("handles", tenant, prefix, tags, after, limit)
        return StatePage(states=tuple(self.page), next_after=None)

    async def versions(
        self, tenant: str, name: str, *, before: int | None, limit: int
    ) -> Sequence[StateInfo]:
        await self.wait("versions", tenant, name, before, limit)
        first = 5 if before is None else before - 1
        return [info_of(name, n) for n in range(first, 0, -1)][:limit]

    async def log(
        self, tenant: str, name: str, *, before: int | None, limit: int
    ) -> Sequence[VersionRecord]:
        await self.wait("log", tenant, name, before, limit)
        return [one for one in self.log_records if before is None or one.version < before][:limit]

    async def lineage(
        self,
        tenant: str,
        *,
        prefix: str,
        name: str | None,
        newest: int | None,
        after: Ref | None,
        limit: int,
    ) -> LineagePage:
        await self.wait("lineage", tenant, prefix, name, newest, after, limit)
        found = [one.version for one in self.page if after is None or one.version.ref > after]
        more = found[limit - 1].ref if len(found) > limit else None
        versions = tuple(Descent(record=one, made_as=one.name) for one in found[:limit])
        return LineagePage(versions=versions, next_after=more)

    async def fork(
        self, tenant: str, ref: Ref, names: Sequence[str], **keywords: Any
    ) -> Sequence[StateInfo]:
        await self.wait("fork", tenant, ref, tuple(names), keywords)
        return [info_of(name) for name in names]

    async def snapshot(self, tenant: str, ref: Ref, **keywords: Any) -> StateInfo:
        await self.wait("snapshot", tenant, ref, keywords)
        return info_of(ref.name, 2)

    async def snapshot_running(self, tenant: str, request_id: int, **keywords: Any) -> StateInfo:
        await self.wait("snapshot_running", tenant, request_id, keywords)
        return info_of("running", 2)

    async def hibernate(self, tenant: str, ref: Ref, tier: Tier) -> StateInfo:
        await self.wait("hibernate", tenant, ref, tier)
        return info_of(ref.name)

    async def resume(self, tenant: str, ref: Ref) -> StateInfo:
        await self.wait("resume", tenant, ref)
        return info_of(ref.name)

    async def rollback(self, tenant: str, name: str, **keywords: Any) -> StateInfo:
        await self.wait("rollback", tenant, name, keywords)
        return info_of(name, 3)

    async def rename(
        self, tenant: str, name: str, new_name: str, *, expected_version: int | None
    ) -> StateInfo:
        await self.wait("rename", tenant, name, new_name, expected_version)
        return info_of(new_name)

    async def set_tags(
        self, tenant: str, name: str, tags: Mapping[str, str], *, expected_version: int | None
    ) -> StateInfo:
        await self.wait("set_tags", tenant, name, dict(tags), expected_version)
        return info_of(name, tags=tags)

    async def set_expiry(
        self, tenant: str, name: str, expires_at: float | None, *, expected_version: int | None
    ) -> StateInfo:
        await self.wait("set_expiry", tenant, name, expires_at, expected_version)
        return info_of(name)

    async def delete(self, tenant: str, ref: Ref, *, expected_version: int | None) -> None:
        await self.wait("delete", tenant, ref, expected_version)

    async def mutate(
        self,
        tenant: str,
        operation: str,
        parameters: Mapping[str, Any],
        states: Sequence[Ref],
        **keywords: Any,
    ) -> StateInfo:
        await self.wait("mutate", tenant, operation, parameters, tuple(states), keywords)
        return info_of(keywords["save_as"])

    async def difference(self, tenant: str, ref: Ref, other: Ref) -> Found:
        await self.wait("difference", tenant, ref, other)
        return Found()

    async def replay(self, tenant: str, ref: Ref, *, timeout_s: float | None) -> Replayed:
        await self.wait("replay", tenant, ref, timeout_s)
        return Replayed(
            ref=ref,
            n_operations=2,
            equal=True,
            content_id="ab",
            replayed_content_id="ab",
            first_difference=None,
        )

    async def export(self, tenant: str, ref: Ref, form: str) -> ScriptedSource:
        await self.wait("export", tenant, ref, form)
        return ScriptedSource(info_of(ref.name), self.exported)

    async def importing(
        self,
        tenant: str,
        name: str,
        *,
        n_bytes: int,
        form: str,
        tags: Mapping[str, str] | None,
        expires_at: float | None,
        expected_version: int | None,
        durability: Durability | None,
        idempotency_key: str | None,
    ) -> ScriptedSink:
        await self.wait("importing", tenant, name, n_bytes, form, durability)
        if n_bytes != FILE_BYTES:
            raise BadStateFileError(f"{n_bytes:,} bytes are announced, not {FILE_BYTES:,}")
        self.n_sinks += 1
        return ScriptedSink(self, name, is_slow=self.slow_sinks)

    async def migrate_begin(self, tenant: str, name: str, *, timeout_s: float | None) -> StateInfo:
        await self.wait("migrate_begin", tenant, name, timeout_s)
        return info_of(name, 4)

    async def migrate_end(self, tenant: str, name: str, *, moved: Moved | None) -> StateInfo | None:
        await self.wait("migrate_end", tenant, name, moved)
        return None if moved is not None else info_of(name, 4)
