"""The binary protocol as a door: ``wkvm_client``, with its errors by their codes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import wkvm_client
from wkvm_client import aio
from wkvm_client.errors import ClientError, LinkError
from wkvm_client.states import StateInfo
from wkvm_protocol.errors import ErrorCode

from tests.states.doors import Gone, Known, Refused, Turn


@contextmanager
def typed() -> Iterator[None]:
    """Errors of the client as ``Refused`` or ``Gone``."""
    try:
        yield
    except LinkError as error:
        raise Gone from error
    except ClientError as error:
        raise Refused(_name_of(error), str(error)) from error


def _name_of(error: ClientError) -> str:
    return type(error).__name__ if error.code is None else ErrorCode(error.code).name


def known_of(info: StateInfo) -> Known:
    return Known(
        name=info.name,
        version=info.version,
        content_id=info.content_id,
        n_computed=info.n_computed,
        n_pending=info.n_pending,
        ack=info.ack,
        tags=dict(info.tags),
    )


class BinaryDoor:
    """See ``Door``."""

    def __init__(self, client: aio.Client) -> None:
        self.client = client

    async def generate(
        self,
        prompt: Sequence[int],
        n: int,
        *,
        state: str = "",
        save_as: str = "",
        expected_version: int | None = None,
        durability: str | None = None,
        **sampling: Any,
    ) -> Turn:
        sampling.setdefault("temperature", 0.0)
        if durability is not None and save_as:
            sampling["durability"] = durability
        with typed():
            stream = await self.client.generate(
                prompt,
                max_tokens=n,
                state=state,
                save_as=save_as,
                expected_version=expected_version,
                **sampling,
            )
            done = await stream.completion()
        return turn_of(done)

    async def create(self, name: str, prompt: Sequence[int], **options: Any) -> Known:
        with typed():
            return known_of(await self.client.states.create(name, prompt, **options))

    async def get(self, ref: str) -> Known:
        with typed():
            return known_of(await self.client.states.get(ref))

    async def handles(self, prefix: str = "") -> list[Known]:
        found, cursor = list[Known](), ""
        with typed():
            while True:
                page = await self.client.states.list(prefix=prefix, cursor=cursor)
                found += map(known_of, page.states)
                cursor = page.next
                if not cursor:
                    return found

    async def fork(self, ref: str, names: Sequence[str], **options: Any) -> list[Known]:
        with typed():
            return list(map(known_of, await self.client.states.fork(ref, names, **options)))

    async def hibernate(self, ref: str) -> Known:
        with typed():
            return known_of(await self.client.states.hibernate(ref))

    async def resume(self, ref: str) -> Known:
        with typed():
            return known_of(await self.client.states.resume(ref))

    async def snapshot(self, ref: str, save_as: str = "") -> Known:
        with typed():
            return known_of(await self.client.states.snapshot(ref, save_as=save_as))

    async def rollback(self, name: str, **where: Any) -> Known:
        with typed():
            return known_of(await self.client.states.rollback(name, **where))

    async def edit(self, name: str, **change: Any) -> Known:
        states = self.client.states
        expected = change.pop("expected_version", None)
        ((what, value),) = change.items()
        with typed():
            match what:
                case "rename":
                    return known_of(await states.rename(name, value, expected_version=expected))
                case "tags":
                    return known_of(await states.tag(name, value, expected_version=expected))
                case "expires_in_s":
                    return known_of(await states.expire(name, value, expected_version=expected))
                case _:
                    raise ValueError(what)

    async def delete(self, ref: str, **options: Any) -> None:
        with typed():
            await self.client.states.delete(ref, **options)

    async def mutate(
        self, refs: Sequence[str], operation: str, save_as: str, **parameters: Any
    ) -> Known:
        with typed():
            return known_of(await self.client.states.mutate(operation, refs, save_as, parameters))

    async def diff(self, ref: str, other: str) -> Any:
        with typed():
            return await self.client.states.difference(ref, other)

    async def log(self, ref: str) -> Any:
        with typed():
            return await self.client.states.log(ref)

    async def replay(self, ref: str) -> Any:
        with typed():
            return await self.client.states.replay(ref)

    async def export(self, ref: str) -> bytes:
        with typed():
            exported = await self.client.states.export(ref)
            return b"".join([chunk async for chunk in exported])

    async def importing(self, name: str, data: bytes, **options: Any) -> Known:
        with typed():
            return known_of(await self.client.states.import_from(name, data, **options))


def turn_of(done: wkvm_client.Completion) -> Turn:
    state = done.state
    return Turn(
        ids=list(done.ids),
        reason=str(done.reason),
        name="" if state is None else state.name,
        version=0 if state is None else state.version,
        ack="" if state is None else state.ack,
        cached_tokens=0 if state is None else state.cached_tokens,
    )
