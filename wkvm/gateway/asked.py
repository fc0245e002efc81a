"""What the processes of one port ask each other, answered; see ``peers``."""

import msgspec
from aiohttp import web

from wkvm.gateway.calls import Call, Gateway, Route, json_response
from wkvm.gateway.failures import HttpError
from wkvm.gateway.monitoring.totals import numbers_of
from wkvm.gateway.peers import ASK, Answer, Cancel, Cancelled, Counted, Done, Forget, read_question


async def asked(call: Call) -> web.StreamResponse:
    """Answer a question of another process."""
    peers = call.gateway.peers
    if peers is None or not peers.knows(call.request):
        raise HttpError(404, f"there is no {call.request.path}", code="not_found")
    question = read_question(await call.read_body())
    match question:
        case Cancel(tenant, request_id):
            answer: Answer = cancel(call.gateway, tenant, request_id)
        case Forget(tenant, session):
            call.gateway.turns.forget(tenant, session)
            answer = Done()
        case _:
            answer = Counted(numbers_of(call.gateway))
    return json_response(msgspec.json.encode(answer))


def cancel(gateway: Gateway, tenant: bytes, request_id: str) -> Cancelled:
    """Cancel what runs of a tenant in this process."""
    was_running = gateway.running.cancel(tenant, request_id)
    return Cancelled(was_running, gateway.submitted.has(tenant, request_id))


async def cancel_everywhere(call: Call, request_id: str) -> Cancelled:
    """Cancel what runs of whoever asks, whichever process it runs in."""
    found = cancel(call.gateway, call.tenant, request_id)
    peers = call.gateway.peers
    if peers is not None:
        for _, answer in await peers.ask_all(Cancel(call.tenant, request_id)):
            if isinstance(answer, Cancelled):
                found.was_running |= answer.was_running
                found.is_known |= answer.is_known
    return found


async def forget_turn(call: Call, session: str) -> None:
    """Forget the last turn of what had a session's name before, whichever process has it."""
    gateway = call.gateway
    gateway.turns.forget(call.tenant, session)
    if gateway.peers is not None and not gateway.peers.owns(call.tenant, session):
        owner = gateway.peers.owner(call.tenant, session)
        await gateway.peers.ask(owner, Forget(call.tenant, session))


ASKED = Route("POST", ASK, asked, is_open=True, serves_draining=True, needs_engine=False)
