"""``/v1/sessions``: a conversation that is a state, turn by turn.

A session is a handle of ``/v1/states`` with the session's name: each append and each turn commits
a version. The gateway keeps nothing of it but the events of its last turn.
"""

import uuid
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from wkvm_client.aio import Stream
from wkvm_client.errors import ClientError
from wkvm_client.state_errors import StateNotFoundError
from wkvm_client.states import StateInfo

from wkvm.gateway.asked import forget_turn
from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.chat.messages import leaves_space
from wkvm.gateway.failures import CANCELLED, OPENAI_NAMES, HttpError, error_body, invalid
from wkvm.gateway.fields import limit_of
from wkvm.gateway.policy import TURNS
from wkvm.gateway.replies import Usage
from wkvm.gateway.sessions import bodies
from wkvm.gateway.sessions.turns import Turn, gone
from wkvm.gateway.states.bodies import INPUT, ForkBody, given, known_query, one_json
from wkvm.gateway.states.fields import STATE_NAMES, Origin, n_cached, report
from wkvm.gateway.states.handlers import input_ids, optional_body, within
from wkvm.gateway.states.keeping import choice_text, room_after
from wkvm.gateway.streams.choices import Lanes
from wkvm.gateway.streams.pieces import ChoiceText, Finish, Piece
from wkvm.gateway.streams.pump import Merging
from wkvm.gateway.streams.sse import DONE, STREAM_HEADERS, EventStream


async def create(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions``: begin one."""
    body = await call.body(bodies.OpenBody)
    states = call.client.states
    name = f"session-{uuid.uuid4().hex}" if body.name is None else body.name
    ids = await input_ids(call, body.input, state=body.state)
    keywords = given(body, *INPUT, "name", "state", "keep_randomness")
    if body.expected_version is None:
        keywords["expected_version"] = 0
    if ids:
        call.names = {"prompt": "ids", "save_as": "name"}
        info = await states.create(name, ids, state=body.state or "", **keywords)
        call.absorbs(len(ids))
    elif body.state is not None:
        del keywords["expected_version"]
        keep = bool(body.keep_randomness)
        call.names = {"names": "name"}
        (info,) = await states.fork(body.state, [name], keep_randomness=keep, **keywords)
    else:
        raise invalid("ids", "a session begins with ids, text, messages or a state")
    await _begun(call, info)
    return _session(call, info, status=201)


async def get(call: Call) -> web.StreamResponse:
    """``GET /v1/sessions/{id}``: where it is."""
    info = await call.client.states.get(_name(call))
    return _session(call, info)


async def delete(call: Call) -> web.StreamResponse:
    """``DELETE /v1/sessions/{id}``: end it, and forget all its versions."""
    name = _name(call)
    _check_idle(call)
    await call.client.states.delete(name)
    call.gateway.turns.forget(call.tenant, name)
    answer = {"object": "session.deleted", "session": name, "deleted": True}
    return json_response(msgspec.json.encode(answer))


async def append(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions/{id}/append``: input without output."""
    body, name = await call.body(bodies.AppendBody), _name(call)
    _check_idle(call)
    state = name
    if body.messages is not None:
        # They are written after the end of this version, and of no other.
        state = (await call.client.states.get(name)).ref
    ids = await input_ids(call, body.input, state=state)
    if not ids:
        raise invalid("ids", "give ids, text or messages")
    call.names = {"prompt": "ids"}
    keywords = given(body, *INPUT, "timeout_s")
    info = await within(call, body.timeout_s).create(name, ids, state=state, **keywords)
    call.absorbs(len(ids))
    return _session(call, info)


async def fork(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions/{id}/fork``: branches that go their own ways."""
    body = await call.body(ForkBody)
    infos = await call.client.states.fork(_name(call), body.names, **given(body, "names"))
    for info in infos:
        await _begun(call, info)
    data = [_told(call, info) for info in infos]
    answer = {"object": "list", "data": data, "next": None}
    return json_response(msgspec.json.encode(answer), status=201)


async def save(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions/{id}/save``: a state that stays as the session is now."""
    body = await call.body(bodies.SaveBody)
    call.names = {"names": "name"}
    (info,) = await call.client.states.fork(
        _name(call), [body.name], keep_randomness=True, **given(body, "name")
    )
    return json_response(one_json(info), status=201)


async def rollback(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions/{id}/rollback``: back by a turn, or several, or to a version."""
    body, name = await optional_body(call, bodies.BackBody), _name(call)
    _check_idle(call)
    places = [one for one in ("turns", "version", "position") if getattr(body, one) is not None]
    if len(places) > 1:
        raise invalid(places[1], f"excludes {places[0]}")
    states = call.client.states
    head = await states.get(name)
    expected = head.version if body.expected_version is None else body.expected_version
    if body.version is not None or body.position is not None:
        info = await states.rollback(
            name, version=body.version, position=body.position, expected_version=expected
        )
        return _session(call, info)
    n_turns = 1 if body.turns is None else body.turns
    if not 1 <= n_turns <= MAX_TURNS:
        raise invalid("turns", f"{n_turns} is not in [1, {MAX_TURNS}]")
    target = head
    for _ in range(n_turns):
        target = await _before_turn(call, target)
    info = await states.rollback(name, version=target.version, expected_version=expected)
    return _session(call, info)


MAX_TURNS = 1000
"""That can be rolled back at once."""
MAX_STEPS = 10_000
"""Versions that one turn may have: one for each append."""


async def _before_turn(call: Call, info: StateInfo) -> StateInfo:
    """The version that the last turn of a version went on from: its output, and its input.

    Raises:
        ClientError: a version on the way was deleted.
        HttpError: 409; it has no turn.
    """
    at, has_turn = info, False
    for _ in range(MAX_STEPS):
        if has_turn and at.operation == "generate":
            return at
        # What continues nothing, its first parent without a name, is a beginning too.
        parents = at.parents if all(at.parents[:1]) else ()
        parent = next((ref for ref in parents if ref.partition("@")[0] == info.name), None)
        if parent is None:
            break  # the beginning of the session stays
        before = await call.client.states.get(parent)
        # A version that was rolled back to is a copy: not a turn, but what it copies may be one.
        has_turn = has_turn or before.content_id != at.content_id
        at = before
    if has_turn:
        return at
    raise HttpError(409, "the session has no turn to roll back", "conflict_error", code="no_turn")


async def interrupt(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions/{id}/interrupt``: end the turn that runs, and keep what there is."""
    turn = _turn(call)
    is_running = turn is not None and not turn.is_over
    if turn is not None and turn.interrupt is not None and is_running:
        turn.interrupt()
        await turn.over()
    info = await call.client.states.get(_name(call))
    return _session(call, info)


async def events(call: Call) -> web.StreamResponse:
    """``GET /v1/sessions/{id}/events``: the last turn, or what was missed of it."""
    known_query(call.request.query)
    turn = await _kept(call)
    if turn is None:
        await call.client.states.get(_name(call))  # 404 for what is no session
        raise gone()
    n_seen, last = 0, call.request.headers.get("Last-Event-ID", "")
    if last:
        turn_id, _, number = last.partition(":")
        if turn_id != turn.turn_id or not number.isascii() or not number.isdigit():
            raise gone()
        n_seen = int(number[:18])
    if call.request.method == "HEAD":
        return web.Response(headers=STREAM_HEADERS)
    return await _send(call, turn, n_seen)


async def _kept(call: Call) -> Turn | None:
    """The last turn of a session that is still there: it may have been deleted as a state."""
    turn = _turn(call)
    if turn is not None and turn.is_over:
        try:
            await call.client.states.get(_name(call))
        except StateNotFoundError:
            call.gateway.turns.forget(call.tenant, _name(call))
            raise
        except ClientError:
            pass  # what is kept here can be read without the engine
    return turn


async def generate(call: Call) -> web.StreamResponse:
    """``POST /v1/sessions/{id}/generate``: a turn, as events or as a whole."""
    body, name, gateway = await call.body(bodies.TurnBody, TURNS), _name(call), call.gateway
    call.names = {**OPENAI_NAMES, **STATE_NAMES, "prompt": "ids"}
    body.check()
    if body.model is not None:
        gateway.check_model(body.model)
    _check_idle(call)
    head = await call.client.states.get(name)
    ids = await input_ids(call, body.input, state=head.ref, opens=True)
    body.state, body.save_as = head.ref, name
    if body.expected_version is None:
        body.expected_version = head.version
    if body.on_disconnect is None:
        body.on_disconnect = "finish"
    max_tokens = limit_of(body.max_tokens)
    if max_tokens is None:
        origin = Origin(head.tail, head.n_tokens)
        room = await room_after(call.client, origin, gateway.max_model_len)
        max_tokens = gateway.texts.default_max_tokens
        if room is not None:
            max_tokens = max(min(max_tokens, room - len(ids)), 1)
    work = partial(_generate, call, body, ids, max_tokens)
    turn = gateway.turns.begin(call.tenant, name, work)
    if body.stream:
        return await _send(call, turn, 0)
    with turn:
        await turn.over()
    if turn.error is not None:
        raise turn.error
    return json_response(turn.whole)


async def _generate(
    call: Call, body: bodies.TurnBody, ids: list[int], max_tokens: int, turn: Turn
) -> None:
    """Generate a turn. What goes wrong is raised as the HttpError that the client gets."""
    gateway = call.gateway
    texts, is_chat = gateway.texts, body.messages is not None
    try:
        outputs = body.structured_outputs
        grammar = None if outputs is None else outputs.to_grammar()
        keywords = body.keywords(texts, max_tokens=max_tokens, grammar=grammar)
        keywords |= body.state_keywords()
        stops = texts.template.stops if is_chat and not body.ignore_eos else ()
        options = body.text_options(stops=stops)
        drops_space = is_chat and leaves_space(ids, texts.tokenizer)
        has_ids = bool(body.return_token_ids)
        writer = bodies.TurnWriter(turn, has_ids=has_ids, drops_space=drops_space)
        async with Lanes(call.client) as lanes:
            (stream,) = await lanes.open(ids, keywords)
            turn.interrupt = stream.interrupt
            text = choice_text(stream, texts, options, body)
            keeper = call.keeper(body, lanes, [text])
            lanes.on_leave = None  # whoever leaves, the turn has a task of its own
            if body.on_disconnect != "finish":
                turn.when_left(keeper.leave)
            with call.cancellable(stream):
                interval = body.stream_interval or gateway.config.stream_interval
                piece, finish, reason = await _read(text, stream, writer, interval)
                end = await keeper.settle(finish)
        writer.end(
            piece,
            reason,
            stop_reason=body.stop_reason(finish.stop_reason),
            usage=Usage.of([len(ids)], [finish.n_output], n_cached([end]), finish.n_reused),
            state=report(end),
            session=_name(call),
            model=gateway.model,
        )
    except (ClientError, HttpError) as error:
        raise call.failure(error) from error


async def _read(
    text: ChoiceText, stream: Stream, writer: bodies.TurnWriter, interval: int
) -> tuple[Piece, Finish, str]:
    """Read a turn to its end.

    Returns:
        The last piece, how it ended, and that in a word: one that was interrupted has another.

    Raises:
        ClientError, HttpError: as ``ChoiceText.read``.
    """
    merging = Merging(1)
    try:
        while (piece := await text.read()).finish is None:
            if (merged := merging.add(piece)) is not None:
                writer.add(merged)
                merging = Merging(interval)
        piece = merging.add(piece) or piece
    except HttpError as error:
        if (held := merging.rest()) is not None:
            writer.add(held)
        if error.code != CANCELLED:
            raise
        end = stream.choices[0].result
        if end.state is None or not end.state.name:
            raise
        finish = Finish("length", None, end.n_output, state=end.state)
        return Piece("", [], [], finish), finish, "interrupted"
    assert piece.finish is not None, "the last one has it"
    return piece, piece.finish, piece.finish.reason


async def _send(call: Call, turn: Turn, n_seen: int) -> web.StreamResponse:
    """Send the events of a turn after the first so many, to its end."""
    async with EventStream(call) as stream:
        with turn:
            while True:
                found = turn.since(n_seen)
                n_seen += len(found)
                await stream.send_raw(b"".join(found))
                if turn.is_over and n_seen == turn.n_events:
                    break
                await turn.changed(n_seen)
        if turn.error is not None:
            if not stream.is_open:
                raise turn.error
            await stream.finish(b"data: %b\n\n" % error_body(turn.error))
        else:
            await stream.finish(DONE)
    return stream.response


def _name(call: Call) -> str:
    return call.request.match_info["id"]


def _turn(call: Call) -> Turn | None:
    return call.gateway.turns.find(call.tenant, _name(call))


def _check_idle(call: Call) -> None:
    call.gateway.turns.check_idle(call.tenant, _name(call))


async def _begun(call: Call, info: StateInfo) -> None:
    """Forget the turn of what had the name of a session before it was made just now."""
    if info.n_versions == 1:
        await forget_turn(call, info.name)


def _told(call: Call, info: StateInfo) -> dict[str, Any]:
    """A session, and its last turn."""
    turn = call.gateway.turns.find(call.tenant, info.name)
    return bodies.session_json(info, turn)


def _session(call: Call, info: StateInfo, *, status: int = 200) -> web.StreamResponse:
    return json_response(msgspec.json.encode(_told(call, info)), status=status)
