"""HTTP as a door: the routes of states, and the native one for ids."""

import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from tests.states.doors import Gone, Known, Refused, Turn

CODES = {
    "rate_limit_exceeded": "RATE_LIMITED",
    "execution_failed": "NON_FINITE",
    "quota_exceeded": "QUOTA",
    "not_found": "STATE_NOT_FOUND",
    None: "INVALID_PARAMETER",
}
"""Where HTTP's codes are not the protocol's in lower case."""


class HttpDoor:
    """See ``Door``."""

    def __init__(self, http: aiohttp.ClientSession, key: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}"}

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, **how: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = URL(f"http://gateway{path}", encoded=True)
        how["headers"] = self._headers | how.pop("headers", {})
        try:
            async with self._http.request(method, url, **how) as response:
                if response.status >= 400:
                    error = (await response.json())["error"]
                    code = CODES.get(error["code"]) or error["code"].upper()
                    raise Refused(code, error["message"])
                yield response
        except aiohttp.ClientConnectionError as error:
            raise Gone from error

    async def _json(self, method: str, path: str, **how: Any) -> Any:
        async with self._asked(method, path, **how) as response:
            return await response.json()

    async def _post(self, ref: str, what: str, **body: Any) -> Any:
        return await self._json("POST", f"{path_of(ref)}/{what}", json=body)

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
        body = body_of(prompt, n, state, save_as, expected_version, durability, sampling)
        told = await self._json("POST", "/v1/generate", json=body)
        (choice,) = told["choices"]
        kept = told.get("state") or {}
        return Turn(
            ids=choice["ids"],
            reason=choice["reason"],
            name=kept.get("name") or "",
            version=kept.get("version") or 0,
            ack=kept.get("ack") or "",
            cached_tokens=told["usage"].get("n_cached", 0),
        )

    async def cut_after(self, n_seen: int, prompt: Sequence[int], n: int, **how: Any) -> None:
        """Stream a turn, and lose the connection once so many ids have come."""
        body = body_of(prompt, n, how["state"], how["save_as"], None, None, {})
        async with self._asked("POST", "/v1/stream", json=body) as response:
            seen = 0
            while seen < n_seen:
                line = await response.content.readline()
                if line.startswith(b"data: {"):
                    seen += len(json.loads(line[6:]).get("ids", ()))
            response.close()

    async def create(self, name: str, prompt: Sequence[int], **options: Any) -> Known:
        body = {"name": name, "ids": list(prompt), **options}
        return known_of(await self._json("POST", "/v1/states", json=body))

    async def get(self, ref: str) -> Known:
        return known_of(await self._json("GET", path_of(ref)))

    async def handles(self, prefix: str = "") -> list[Known]:
        found, cursor = list[Known](), ""
        while True:
            query = f"?prefix={quote(prefix)}&cursor={quote(cursor)}"
            page = await self._json("GET", f"/v1/states{query}")
            found += map(known_of, page["data"])
            cursor = page["next"]
            if not cursor:
                return found

    async def fork(self, ref: str, names: Sequence[str], **options: Any) -> list[Known]:
        told = await self._post(ref, "fork", names=list(names), **options)
        return list(map(known_of, told["data"]))

    async def hibernate(self, ref: str) -> Known:
        return known_of(await self._post(ref, "hibernate"))

    async def resume(self, ref: str) -> Known:
        return known_of(await self._post(ref, "resume"))

    async def snapshot(self, ref: str, save_as: str = "") -> Known:
        body = {"save_as": save_as} if save_as else {}
        return known_of(await self._post(ref, "snapshot", **body))

    async def rollback(self, name: str, **where: Any) -> Known:
        return known_of(await self._post(name, "rollback", **where))

    async def edit(self, name: str, **change: Any) -> Known:
        if "rename" in change:
            change["name"] = change.pop("rename")
        return known_of(await self._json("PATCH", path_of(name), json=change))

    async def delete(self, ref: str, **options: Any) -> None:
        query = "&".join(f"{key}={value}" for key, value in options.items())
        await self._json("DELETE", f"{path_of(ref)}?{query}")

    async def mutate(
        self, refs: Sequence[str], operation: str, save_as: str, **parameters: Any
    ) -> Known:
        body = {"operation": operation, "parameters": parameters, "save_as": save_as}
        return known_of(await self._post(refs[0], "mutate", others=list(refs[1:]), **body))

    async def diff(self, ref: str, other: str) -> Any:
        return await self._post(ref, "diff", other=other)

    async def log(self, ref: str) -> Any:
        return await self._json("GET", f"{path_of(ref)}/log")

    async def replay(self, ref: str) -> Any:
        return await self._post(ref, "replay")

    async def export(self, ref: str) -> bytes:
        async with self._asked("GET", f"{path_of(ref)}/export") as response:
            return await response.read()

    async def importing(self, name: str, data: bytes, **options: Any) -> Known:
        query = "&".join(f"{key}={value}" for key, value in options.items())
        path = f"{path_of(name)}/import?{query}"
        return known_of(await self._json("PUT", path, data=io.BytesIO(data)))


def path_of(ref: str) -> str:
    return f"/v1/states/{quote(ref, safe='@')}"


def known_of(told: Any) -> Known:
    return Known(
        name=told["name"],
        version=told["version"],
        content_id=told["content_id"],
        n_computed=told["n_computed"],
        n_pending=told["n_pending"],
        ack=told["ack"],
        tags=told["tags"],
    )


def body_of(
    prompt: Sequence[int],
    n: int,
    state: str,
    save_as: str,
    expected_version: int | None,
    durability: str | None,
    sampling: dict[str, Any],
) -> dict[str, Any]:
    given = {
        "state": state or None,
        "save_as": save_as or None,
        "expected_version": expected_version,
        "durability": durability if save_as else None,
    }
    return {
        "ids": list(prompt),
        "max_tokens": n,
        "temperature": 0.0,
        **{key: value for key, value in given.items() if value is not None},
        **sampling,
    }
