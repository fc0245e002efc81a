"""``response.steer``: input for a conversation while its answer is being made.

The answer goes on to its end; then another one follows by itself, to what was put in. Where the
answer ends in calls, the input waits for the results that the client sends.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from wkvm.gateway.decoding import decode_body
from wkvm.gateway.failures import HttpError, invalid, short_message
from wkvm.gateway.responses.items import Item, Kept, kept_items
from wkvm.gateway.responses.websocket.frames import Create, Event, required_input

MAX_STEERS = 16
"""Of one response, that wait."""
MAX_PARENTS = 64
"""Responses of one connection with calls, for whose results input waits."""
_FIELDS = {"type", "previous_response_id", "input"}

NOT_FOUND, NOT_SUPPORTED = "response_not_found", "steering_not_supported"
TOO_MANY, COMPLETED = "too_many_pending_steers", "response_already_completed"
NOT_ACTIVE, NO_SUCCESSOR, INVALID_INPUT = (
    "response_not_active",
    "successor_creation_failed",
    "invalid_input",
)
"""Codes of ``response.steer.failed``."""


class _Frame(msgspec.Struct):
    previous_response_id: str
    input: msgspec.Raw


class _Input(msgspec.Struct):
    input: str | list[Item]

    @property
    def items(self) -> list[Item]:
        given = self.input
        return [Item(role="user", content=given)] if isinstance(given, str) else given


@dataclass(frozen=True, slots=True)
class Steer:
    """Input that was taken, or is to be.

    Attributes:
        response_id: after which it comes.
        raw: as it was sent.
        items: as it is put in.
        n_bytes: of the frame.
        id: its name.
    """

    response_id: str
    raw: msgspec.Raw
    n_bytes: int
    items: Sequence[Item] = ()
    id: str = field(default_factory=lambda: f"steer_{uuid.uuid4().hex}")


class RefusedSteerError(Exception):
    """Input cannot be taken.

    Attributes:
        code: for programs.
    """

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def read_target(data: bytes) -> Steer:
    """Read of a frame after what its input is to come.

    Raises:
        HttpError: 400; it does not even say that.
    """
    frame = decode_body(data, _Frame)
    return Steer(frame.previous_response_id, msgspec.Raw(bytes(frame.input)), len(data))


def checked(steer: Steer, data: bytes, *, omit_media: bool) -> Steer:
    """Read the input.

    Raises:
        RefusedSteerError: it is no input, or there is something besides.
    """
    try:
        others = decode_body(data, dict[str, msgspec.Raw]).keys() - _FIELDS
        if others:
            raise invalid(sorted(others)[0][:40], "there is no such field in this event")
        items = decode_body(data, _Input).items
        _check(items, omit_media=omit_media)
    except HttpError as error:
        raise RefusedSteerError(INVALID_INPUT, short_message(error)) from error
    return Steer(steer.response_id, steer.raw, steer.n_bytes, items, steer.id)


def _check(items: Sequence[Item], *, omit_media: bool) -> None:
    if not items:
        raise invalid("input", "at least one message is needed")
    for index, item in enumerate(items):
        if item.type not in (None, "message") or item.role != "user":
            raise invalid(f"input[{index}]", "only messages of the user can be put in")
    kept_items(items, "input", omit_media=omit_media)


def put_in(create: Create, steers: Sequence[Steer]) -> Create:
    """A response to what was put in, and to its own input after it."""
    own = create.input
    if isinstance(own, str):
        own = [Item(role="user", content=own)]
    items = [item for steer in steers for item in steer.items]
    return msgspec.structs.replace(create, input=[*items, *(own or ())])


def successor(create: Create, response_id: str) -> Create:
    """The response that follows another by itself: with its settings, and no input yet."""
    return msgspec.structs.replace(
        create, input=None, previous_response_id=response_id, generate=None
    )


def accepted_event(steer: Steer) -> Event:
    """``response.steer.accepted``: the server has it."""
    return {
        "type": "response.steer.accepted",
        "steer": {"id": steer.id, "previous_response_id": steer.response_id},
    }


def pending_event(steer: Steer, output: list[Kept]) -> Event:
    """``response.steer.pending``: it waits for the results of calls."""
    return {
        "type": "response.steer.pending",
        "reason": "waiting_for_required_input",
        "required_input": required_input(output),
        "steer": {"id": steer.id, "previous_response_id": steer.response_id},
    }


def failed_event(steer: Steer, code: str, why: str, *, was_accepted: bool) -> Event:
    """``response.steer.failed``: it goes back to the client."""
    told = {"previous_response_id": steer.response_id, "input": steer.raw}
    return {
        "type": "response.steer.failed",
        "error": {"type": "invalid_request_error", "code": code, "message": why},
        "steer": {"id": steer.id, **told} if was_accepted else told,
    }
