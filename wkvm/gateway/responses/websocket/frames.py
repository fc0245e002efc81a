"""The events of a WebSocket that are no response's own: what clients send, errors, steering.

A frame is one JSON text. Its lane is known before anything else of it is looked at, so that what
is wrong with it is told to that lane alone.
"""

from typing import Any, TypeAlias

import msgspec

from wkvm.gateway.calls import Gateway, read_checked
from wkvm.gateway.decoding import decode_body
from wkvm.gateway.failures import HttpError, invalid, short_message
from wkvm.gateway.policy import RESPONSES
from wkvm.gateway.responses.bodies import CreateBody
from wkvm.gateway.responses.items import Kept

MAX_LANE_NAME = 128
"""Characters of a ``stream_id``."""
_CALLS = ("custom_tool_call", "function_call", "local_shell_call")
"""Items whose results the client has."""
CREATE, STEER = "response.create", "response.steer"

Event: TypeAlias = dict[str, Any]


class Envelope(msgspec.Struct):
    """What every event of a client has.

    Attributes:
        stream_id: the lane; None for the one without a name.
        previous_response_id: after which response it comes; whatever it is.
    """

    type: str
    stream_id: str | None = None
    previous_response_id: object = None


class Create(CreateBody, kw_only=True):
    """``response.create``: a response, as of ``POST /v1/responses``.

    Attributes:
        stream_id: the lane.
        generate: whether an answer is wanted; otherwise what comes before it is read, no more.
    """

    type: str
    stream_id: str | None = None
    generate: bool | None = None


def read_envelope(data: bytes) -> Envelope:
    """Find out what a frame is, and of which lane.

    Raises:
        HttpError: 400; it is no event.
    """
    try:
        found = decode_body(data, Envelope)
    except HttpError as error:
        why = f"an event is a JSON object with a type: {error.message}"
        raise HttpError(400, why, param=error.param, code="invalid_event") from error
    name = found.stream_id
    if name is not None and not 1 <= len(name) <= MAX_LANE_NAME:
        raise invalid("stream_id", f"a lane's name has 1 to {MAX_LANE_NAME} characters")
    return found


async def read_create(data: bytes, gateway: Gateway) -> Create:
    """Read a ``response.create``; a long one in a thread.

    Args:
        gateway: counts unknown fields; see ``Policy.check``.

    Raises:
        HttpError: 400; it names the field.
    """
    body = await read_checked(data, Create, RESPONSES, gateway)
    if body.background:
        raise invalid("background", "not supported over a WebSocket: use POST /v1/responses")
    if body.idempotency_key is not None:
        raise invalid("idempotency_key", "not supported over a WebSocket: use POST /v1/responses")
    return body


def error_event(error: HttpError, lane: str | None) -> Event:
    """``error``: what was asked for has failed, and made no response."""
    told: Event = {
        "type": "error",
        "status": error.status,
        "error": {
            "type": error.type,
            "code": error.code,
            "message": short_message(error),
            "param": error.param,
        },
    }
    if error.retry_after_s is not None:
        told["error"]["headers"] = {"retry-after": f"{error.retry_after_s:g}"}
    return of_lane(told, lane)


def of_lane(event: Event, lane: str | None) -> Event:
    """An event that names its lane, if that has a name."""
    return event if lane is None else {**event, "stream_id": lane}


def required_input(output: list[Kept]) -> list[Event]:
    """What a client has to put in before it can go on: the results of calls."""
    found = list[Event]()
    for item in output:
        if item["type"] in _CALLS:
            stub: Event = {"type": f"{item['type']}_output", "call_id": item["call_id"]}
            if item["type"] == "function_call":
                stub["name"] = item["name"]
            found.append(stub)
    return found
