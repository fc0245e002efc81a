"""``/v1/states``: operations on durable states. Their bytes, in and out, are in ``files``."""

import msgspec
from aiohttp import web
from wkvm_client.aio_states import States
from wkvm_client.states import StateInfo

from wkvm.gateway.calls import BodyT, Call, json_response
from wkvm.gateway.failures import invalid
from wkvm.gateway.states import bodies


async def create(call: Call) -> web.StreamResponse:
    """``POST /v1/states``: absorb exactly what is given, and keep the state."""
    body = await call.body(bodies.CreateBody)
    if body.model is not None:
        call.gateway.check_model(body.model)
    ids = await input_ids(call, body.input, state=body.state)
    if not ids:
        raise invalid("ids", "a state needs at least one token: give ids, text or messages")
    call.names = {"prompt": "ids", "save_as": "name"}
    keywords = bodies.given(body, *bodies.INPUT, "name", "model", "timeout_s")
    info = await within(call, body.timeout_s).create(body.name, ids, **keywords)
    call.absorbs(len(ids))
    return _one(info, status=201)


async def input_ids(
    call: Call, given: bodies.Input, *, state: str | None, opens: bool = False
) -> list[int]:
    """The ids of an input.

    Args:
        state: what they come after, if they come after something.
        opens: see ``Input.read``.

    Raises:
        ClientError: there is no such state.
        HttpError, TemplateError: as ``Input.read``.
    """
    gateway, tail = call.gateway, tuple[int, ...]()
    if state is not None and given.messages is not None:
        tail = (await call.client.states.get(state)).tail
    omit_media = gateway.config.omit_media
    return await gateway.offload.run(
        lambda: given.read(gateway.texts, tail=tail, opens=opens, omit_media=omit_media),
        size=call.n_held,
    )


async def list_states(call: Call) -> web.StreamResponse:
    """``GET /v1/states``: the tenant's handles, by name."""
    query = call.request.query
    bodies.known_query(query, "prefix", "tag", "limit", "cursor")
    page = await call.client.states.list(
        prefix=query.get("prefix", ""),
        tags=bodies.query_tags(query),
        cursor=query.get("cursor", ""),
        limit=_limit(call),
    )
    return json_response(bodies.list_json(page.states, page.next))


async def versions(call: Call) -> web.StreamResponse:
    """``GET /v1/states/{name}/versions``: of one handle, newest first."""
    query = call.request.query
    bodies.known_query(query, "limit", "cursor")
    page = await call.client.states.versions(
        _ref(call), cursor=query.get("cursor", ""), limit=_limit(call)
    )
    return json_response(bodies.list_json(page.states, page.next))


async def get(call: Call) -> web.StreamResponse:
    """``GET /v1/states/{ref}``: one version, and its handle."""
    return _one(await call.client.states.get(_ref(call)))


async def edit(call: Call) -> web.StreamResponse:
    """``PATCH /v1/states/{name}``: another name, other tags, another end."""
    body = await call.body(bodies.EditBody)
    changes = [
        name
        for name in ("name", "tags", "expires_in_s")
        if getattr(body, name) is not msgspec.UNSET
    ]
    if len(changes) != 1:
        raise invalid(None, "give exactly one of name, tags and expires_in_s")
    states, ref = call.client.states, _ref(call)
    keywords = bodies.given(body, "name", "tags", "expires_in_s")
    if isinstance(body.name, str):
        call.names = {"rename": "name"}
        return _one(await states.rename(ref, body.name, **keywords))
    if isinstance(body.tags, dict):
        return _one(await states.tag(ref, body.tags, **keywords))
    call.names = {"in_s": "expires_in_s"}
    expires_in_s = None if isinstance(body.expires_in_s, msgspec.UnsetType) else body.expires_in_s
    return _one(await states.expire(ref, expires_in_s, **keywords))


async def delete(call: Call) -> web.StreamResponse:
    """``DELETE /v1/states/{ref}``: a handle with all its versions, or one version."""
    query, ref = call.request.query, _ref(call)
    bodies.known_query(query, "expected_version")
    await call.client.states.delete(
        ref, expected_version=bodies.query_count(query, "expected_version")
    )
    return json_response(
        msgspec.json.encode({"object": "state.deleted", "state": ref, "deleted": True})
    )


async def fork(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{ref}/fork``: several handles on the same bytes, at once."""
    body = await call.body(bodies.ForkBody)
    infos = await call.client.states.fork(_ref(call), body.names, **bodies.given(body, "names"))
    return json_response(bodies.list_json(infos, None), status=201)


async def snapshot(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{name}/snapshot``: a version of a state as it is now."""
    body = await optional_body(call, bodies.SnapshotBody)
    return _one(await call.client.states.snapshot(_ref(call), **bodies.given(body)), status=201)


async def hibernate(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{ref}/hibernate``: bytes down, and free what they held."""
    body = await optional_body(call, bodies.HibernateBody)
    return _one(await call.client.states.hibernate(_ref(call), **bodies.given(body)))


async def resume(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{ref}/resume``: bytes up, verified."""
    await optional_body(call, bodies.NothingBody)
    return _one(await call.client.states.resume(_ref(call)))


async def rollback(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{name}/rollback``: a new head that equals an older point."""
    body = await call.body(bodies.RollbackBody)
    if (body.version is None) == (body.position is None):
        raise invalid(None, "give one of version and position")
    return _one(await call.client.states.rollback(_ref(call), **bodies.given(body)), status=201)


async def mutate(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{ref}/mutate``: a version that was changed other than by tokens."""
    body, ref = await call.body(bodies.MutateBody), _ref(call)
    keywords = bodies.given(body, "operation", "parameters", "others", "save_as")
    call.names = {"states": "others"}
    info = await call.client.states.mutate(
        body.operation,
        [ref, *(body.others or ())],
        save_as=ref.partition("@")[0] if body.save_as is None else body.save_as,
        parameters=body.parameters or {},
        **keywords,
    )
    return _one(info, status=201)


async def diff(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{ref}/diff``: how far two states are apart."""
    body = await call.body(bodies.DiffBody)
    difference = await call.client.states.difference(_ref(call), body.other)
    return json_response(msgspec.json.encode(difference))


async def log(call: Call) -> web.StreamResponse:
    """``GET /v1/states/{ref}/log``: how the versions came to be, newest first."""
    query = call.request.query
    bodies.known_query(query, "before", "limit")
    found = await call.client.states.log(
        _ref(call), before=bodies.query_count(query, "before") or 0, limit=_limit(call)
    )
    answer = {"object": "list", "data": found.entries, "next": found.next or None}
    return json_response(msgspec.json.encode(answer))


async def replay(call: Call) -> web.StreamResponse:
    """``POST /v1/states/{ref}/replay``: do again what made a version, and compare."""
    body = await optional_body(call, bodies.ReplayBody)
    replayed = await within(call, body.timeout_s).replay(_ref(call))
    return json_response(msgspec.json.encode(replayed))


def within(call: Call, timeout_s: float | None) -> States:
    """Operations of whoever asks, with as much time as they ask for."""
    states = call.client.states
    return states if timeout_s is None else states.within(timeout_s)


async def optional_body(call: Call, kind: type[BodyT]) -> BodyT:
    """The body of a route that has something to do without one.

    Raises:
        HttpError: as ``Call.body``.
    """
    return await call.body(kind, is_optional=True)


def _ref(call: Call) -> str:
    return call.request.match_info["ref"]


def _limit(call: Call) -> int:
    limit = bodies.query_count(call.request.query, "limit")
    if limit is None:
        return 100
    if not 1 <= limit <= bodies.MAX_LIMIT:
        raise invalid("limit", f"{limit} is not in [1, {bodies.MAX_LIMIT}]")
    return limit


def _one(info: StateInfo, *, status: int = 200) -> web.StreamResponse:
    return json_response(bodies.one_json(info), status=status)
