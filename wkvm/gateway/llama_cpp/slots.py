"""``/slots``: conversations by number, each a state by the name of its slot.

A client of llama.cpp sends the whole text each time, and a slot goes on where it knows the
beginning. Here a slot is the handle ``llama-slot-N`` of the tenant. What its tokens are, only the
engine's store knows; so a tag of the handle has their digest, and of which version it is. A tag
that is of another version, or a text that does not begin so, begins anew: it costs time alone.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from aiohttp import web
from wkvm_client.aio_states import States
from wkvm_client.errors import StaleVersionError, StateNotFoundError
from wkvm_client.states import StateEnd, StateInfo
from wkvm_protocol.messages import pack_ids

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.failures import CONFLICT, HttpError, invalid
from wkvm.gateway.llama_cpp.bodies import SlotBody

PREFIX = "llama-slot-"
TAG = "llama.cpp"
"""The tag of a handle that says what its newest version has absorbed."""


class SlotState(msgspec.Struct):
    """A slot of the engine, as far as it is told."""

    id: int
    n_ctx: int
    is_processing: bool


class Saved(msgspec.Struct):
    """A slot that was kept under another name."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int


class Restored(msgspec.Struct):
    """A slot that goes on from what was kept."""

    id_slot: int
    filename: str
    n_restored: int
    n_read: int


class Erased(msgspec.Struct):
    """A slot that begins anew."""

    id_slot: int
    n_erased: int


class Slot:
    """A slot of a tenant.

    Args:
        number: which one.

    Raises:
        HttpError: 400; there is no such slot.
    """

    def __init__(self, call: Call, number: int) -> None:
        n_slots = call.client.server.n_slots
        if not 0 <= number < n_slots:
            raise invalid("id_slot", f"{number} is not in [0, {n_slots})")
        self.name = f"{PREFIX}{number}"
        self._states = call.client.states
        self._ids: list[int] = []

    async def begin(self, request: CompletionRequest, ids: list[int]) -> list[int]:
        """Let a request go on from what the slot has, if its prompt begins with that.

        Args:
            request: is told from where it goes on, and that its end is kept.
            ids: of the whole prompt.

        Returns:
            The ids that are new.
        """
        self._ids = ids
        request.save_as = self.name
        info = await self.info()
        request.expected_version = 0 if info is None else info.version
        if info is None:
            return ids
        n = info.n_computed + info.n_pending
        if n > len(ids) or info.tags.get(TAG) != _tag(info.version, ids[:n]):
            return ids
        request.state = info.ref
        return ids[n:]

    async def end(self, output: Sequence[int], end: StateEnd | None) -> None:
        """Note what the slot has absorbed, if it was kept."""
        if end is None or not end.name:
            return
        n = end.n_computed + len(end.pending)
        ids = [*self._ids, *output]
        if n > len(ids):
            ids += end.pending  # a stop id
        await self._mark(end.version, ids[:n])

    async def info(self) -> StateInfo | None:
        """The newest version; None if there is none."""
        try:
            return await self._states.get(self.name)
        except StateNotFoundError:
            return None

    async def _mark(self, version: int, ids: Sequence[int]) -> None:
        # Another request may have the slot by now: this one's answer is none the worse.
        with suppress(StaleVersionError, StateNotFoundError):
            await self._states.tag(self.name, {TAG: _tag(version, ids)}, expected_version=version)


async def copy(states: States, source: str, target: str) -> StateInfo:
    """Make the newest version of one handle that of another too, with what is known of it.

    Raises:
        HttpError: 409; there is a state of that name which does not come from a slot.
        ClientError: there is no such state, or it cannot be copied.
    """
    info = await states.get(source)
    old: StateInfo | None = None
    with suppress(StateNotFoundError):
        old = await states.get(target)
    if old is not None and TAG not in old.tags and not target.startswith(PREFIX):
        why = f"{target} is a state that does not come from a slot: delete it first"
        raise HttpError(409, why, CONFLICT, param="filename", code="state_exists")
    version, _, digest = info.tags.get(TAG, "").partition(":")
    known = digest if version == str(info.version) else ""
    expected = 0 if old is None else old.version
    new = await states.snapshot(info.ref, save_as=target, expected_version=expected)
    return await states.tag(target, {TAG: f"{new.version}:{known}"}, expected_version=new.version)


async def slots(call: Call) -> web.StreamResponse:
    """``GET /slots``: the engine's slots. Those that are taken come first, whichever they are."""
    counters = await call.client.stats()
    n_slots = call.client.server.n_slots
    n_free = counters.get("n_free_slots", n_slots)
    if "fail_on_no_slot" in call.request.query and not n_free:
        raise HttpError(503, "no slot is free")
    n_ctx = call.gateway.max_model_len or 0
    told = [SlotState(number, n_ctx, number < n_slots - n_free) for number in range(n_slots)]
    return json_response(msgspec.json.encode(told))


async def act(call: Call) -> web.StreamResponse:
    """``POST /slots/{id}?action=``: ``save`` a slot as a state, ``restore`` or ``erase`` it."""
    number = _number(call)
    slot, action = Slot(call, number), call.request.query.get("action")
    if action == "erase":
        info = await slot.info()
        if info is not None:
            await call.client.states.delete(slot.name)
        n = 0 if info is None else info.n_computed + info.n_pending
        return json_response(msgspec.json.encode(Erased(number, n)))
    if action not in ("save", "restore"):
        raise invalid("action", "is one of save, restore and erase")
    body = await call.body(SlotBody, is_optional=True)
    if not body.filename:
        raise invalid("filename", "is required: the name of a state")
    call.names = dict.fromkeys(("state", "name", "names", "save_as"), "filename")
    if action == "save":
        kept = await copy(call.client.states, slot.name, body.filename)
        n = kept.n_computed + kept.n_pending
        told: Saved | Restored = Saved(number, body.filename, n, kept.n_bytes)
    else:
        kept = await copy(call.client.states, body.filename, slot.name)
        n = kept.n_computed + kept.n_pending
        told = Restored(number, body.filename, n, kept.n_bytes)
    return json_response(msgspec.json.encode(told))


def _number(call: Call) -> int:
    given = call.request.match_info["id"]
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise invalid("id_slot", f"{given[:20]!r} is not a number")
    return int(given)


def _tag(version: int, ids: Sequence[int]) -> str:
    return f"{version}:{hashlib.sha256(pack_ids(ids)).hexdigest()}"
