"""From the body of a response to what the engine is asked: the conversation that it goes on with.

A conversation is always written whole, from its first item, with the instructions and tools of
the response that is asked for. Where that text begins with exactly what the state of the response
before has read, the engine goes on from that state and is given the rest; otherwise it is given
all of it. So a state saves work, and never changes what is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from wkvm_client import aio, errors

from wkvm.gateway.calls import Call, Gateway
from wkvm.gateway.chat.bodies import ChatBody, Question, Since, question
from wkvm.gateway.chat.messages import Message
from wkvm.gateway.conversations import talks
from wkvm.gateway.engines import Whose
from wkvm.gateway.errors import TemplateError
from wkvm.gateway.failures import INVALID, HttpError, invalid
from wkvm.gateway.monitoring.spent import Spent
from wkvm.gateway.responses import records
from wkvm.gateway.responses.bodies import (
    CreateBody,
    InputFields,
    as_response,
    field_names,
    tool_fields,
)
from wkvm.gateway.responses.items import Kept, chat_messages, kept_items
from wkvm.gateway.responses.keys import Key
from wkvm.gateway.responses.records import Origin, Record
from wkvm.gateway.responses.references import resolved
from wkvm.gateway.responses.truncation import shortened
from wkvm.gateway.states.fields import Origin as Room
from wkvm.gateway.states.keeping import room_after

UNUSABLE = (
    errors.StateNotFoundError,
    errors.StateDamagedError,
    errors.StateMismatchError,
    errors.StateMovedError,
)
"""What says that a state cannot be gone on from. What it has read can still be read anew."""
ITEM_BYTES = 64
"""Of a text that takes as long to look at as an item."""
_WHOLE = Since()
"""Of a conversation of which nothing was read."""


@dataclass(slots=True)
class Caller:
    """Who asks for responses, by whatever way.

    Attributes:
        client: the engine, as they may use it.
        whose: whose the responses are.
        request_id: what the request is called in the log, and by ``/v1/cancel``.
        n_held: how many bytes were sent: long texts are read in a thread.
        spent: what their responses have cost so far.
    """

    gateway: Gateway
    client: aio.Client
    whose: Whose
    request_id: str
    n_held: int = 0
    spent: Spent = field(default_factory=Spent)

    @staticmethod
    def of(call: Call) -> "Caller":
        """Who makes an HTTP request."""
        return Caller(
            call.gateway, call.client, call.whose, call.request_id, call.n_held, call.spent
        )

    @property
    def tenant(self) -> bytes:
        """What is the tenant's is kept under."""
        return self.whose.tenant

    def spend(self, stream: aio.Stream) -> None:
        """Count what a response has cost that is over, or is given up."""
        self.gateway.limits.spend(self.whose.key, self.spent.add([stream]))


@dataclass(frozen=True, slots=True)
class Local:
    """A response that only its connection remembers.

    Attributes:
        items: the conversation up to its end, from the beginning.
        origin: the state at its end, if there is one.
    """

    items: Sequence[Kept]
    origin: Origin | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a response goes on with.

    Attributes:
        items: from the beginning of the conversation.
        origin: a state that has read some of it.
        parent, conversation, revision: as of ``records.Begun``.
    """

    items: Sequence[Kept] = ()
    origin: Origin | None = None
    parent: str | None = None
    conversation: str | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A response that was checked as far as the gateway can.

    Attributes:
        input: its own items.
        chat: the conversation and the response, in the gateway's own form.
        question: what the engine is asked.
        n_read: how many tokens the state had read that the answer may go on from.
        generates: whether an answer is wanted, and not just its prompt read.
        key: with which it is asked for once.
    """

    body: CreateBody
    past: Past
    input: Sequence[Kept]
    chat: ChatBody
    question: Question
    n_read: int = 0
    generates: bool = True
    key: Key | None = None

    @property
    def origin(self) -> Origin | None:
        """The state that the answer goes on from; None for none."""
        return self.past.origin if self.question.continues else None


async def past_of(
    caller: Caller, body: InputFields, local: Mapping[str, Local] | None = None
) -> Past:
    """What a response goes on with.

    Args:
        local: responses that are found before those that are kept.

    Raises:
        HttpError: 400 or 404, there is none of this name; 400, it has no end to go on from; 409,
            it is being made.
    """
    database = caller.gateway.responses.database
    previous, conversation = body.previous_response_id, body.conversation_id
    if previous is not None and conversation is not None:
        raise invalid("conversation", "excludes previous_response_id")
    if conversation is not None:
        talk = await database.run(talks.history, caller.tenant, conversation)
        return Past(
            items=talk.items,
            origin=talk.origin,
            conversation=conversation,
            revision=talk.revision,
        )
    if previous is None:
        return Past()
    if local is not None and previous in local:
        found = local[previous]
        return Past(items=found.items, origin=found.origin)
    record = await database.run(records.find, caller.tenant, previous)
    if record is None:
        raise _not_found(previous)
    _check_usable(record)
    items = await database.run(records.history, record)
    if items is None:
        raise _not_found(previous)
    return Past(items=items, origin=record.origin, parent=record.id)


def _not_found(previous: str) -> HttpError:
    return HttpError(
        400,
        f"previous_response_id: there is no response {previous[:80]!r}",
        INVALID,
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _check_usable(record: Record) -> None:
    if not record.is_over:
        why = f"response {record.id} is being made: wait for its end"
        raise HttpError(409, why, "conflict_error", "previous_response_id", "response_in_progress")
    if record.status in ("failed", "cancelled"):
        why = f"response {record.id} is {record.status}: there is no end to go on from"
        raise invalid("previous_response_id", why, code="previous_response_unusable")


async def own_items(caller: Caller, body: InputFields, past: Past) -> list[Kept]:
    """The items of a request, references replaced by what they refer to.

    Raises:
        HttpError: 400; an item cannot be read, or there is none of an id.
    """
    gateway = caller.gateway
    omits = gateway.config.omit_media
    items = await gateway.offload.run(
        lambda: kept_items(body.input, "input", omit_media=omits), size=caller.n_held
    )
    items = await resolved(items, "input", gateway, caller.tenant, past=past.items)
    if not items and not past.items:
        raise invalid("input", "is required, where nothing came before")
    return items


def messages_of(body: InputFields, items: Sequence[Kept]) -> list[Message]:
    """The chat that instructions and items are.

    Raises:
        HttpError: 400; see ``chat_messages``.
    """
    instructions = body.instructions
    first = [] if instructions is None else [Message("system", instructions)]
    return first + chat_messages(items)


async def ask(
    caller: Caller,
    body: CreateBody,
    *,
    local: Mapping[str, Local] | None = None,
    generates: bool = True,
    key: Key | None = None,
) -> Asked:
    """Check a body and make the prompt of it.

    Args:
        local: see ``past_of``.
        generates: whether an answer is wanted; otherwise the prompt opens none.
        key: see ``Asked``.

    Raises:
        HttpError: 400, 404 or 409; it names the field.
        ClientError: the engine cannot be asked.
    """
    body.check()
    gateway = caller.gateway
    assert body.model is not None
    gateway.check_model(body.model)
    past = await past_of(caller, body, local)
    own = await own_items(caller, body, past)
    items = [*past.items, *own]
    chat = await gateway.offload.run(
        lambda: body.chat(messages_of(body, items)), size=_weight(caller, items)
    )
    if not generates:
        chat.add_generation_prompt = False
    since, n_read = await _since(caller, past.origin)
    asked = await _question(caller, chat, since)
    if body.truncation == "auto" and not _fits(caller, body, asked, since):
        asked = await _fitting(caller, body, chat)
    return Asked(
        body=body,
        past=past,
        input=own,
        chat=chat,
        question=asked,
        n_read=n_read,
        generates=generates,
        key=key,
    )


async def n_input(caller: Caller, body: InputFields) -> int:
    """How many tokens the prompt of a response would have, written whole.

    Raises:
        HttpError: as ``ask``.
    """
    if body.model is not None:
        caller.gateway.check_model(body.model)
    past = await past_of(caller, body)
    own = await own_items(caller, body, past)
    items, model = [*past.items, *own], caller.gateway.model
    chat = await caller.gateway.offload.run(
        lambda: ChatBody(model=model, messages=messages_of(body, items), **tool_fields(body)),
        size=_weight(caller, items),
    )
    return len((await _question(caller, chat, _WHOLE)).prompt)


def _fits(caller: Caller, body: CreateBody, asked: Question, since: Since = _WHOLE) -> bool:
    """Whether a prompt leaves room for its answer."""
    room = since.max_model_len if asked.continues else caller.gateway.max_model_len
    if room is None:
        return True
    wanted = body.max_output_tokens
    if wanted is None:
        wanted = min(caller.gateway.texts.default_max_tokens, room // 2)
    return len(asked.prompt) + wanted <= room


async def _fitting(caller: Caller, body: CreateBody, chat: ChatBody) -> Question:
    """The question with as little left out of its beginning as has to be."""
    ways = shortened(chat.messages or ())
    best, low, high = None, 0, len(ways)
    while low < high:
        middle = (low + high) // 2
        chat.messages = ways[middle]
        asked = await _question(caller, chat, _WHOLE)
        if _fits(caller, body, asked):
            best, high = asked, middle
        else:
            low = middle + 1
    if best is None:  # the engine says how long it may be
        return await _question(caller, chat, _WHOLE)
    chat.messages = ways[high]
    return best


async def whole(caller: Caller, asked: Asked) -> Asked:
    """The same response without the state that it would have gone on from.

    Raises:
        HttpError: as ``ask``.
    """
    again = await _question(caller, asked.chat, _WHOLE)
    return replace(asked, question=again)


async def _question(caller: Caller, chat: ChatBody, since: Since) -> Question:
    gateway = caller.gateway
    work = partial(
        question,
        chat,
        gateway.texts,
        max_model_len=gateway.max_model_len,
        omit_media=gateway.config.omit_media,
        since=since,
    )
    try:
        asked = await gateway.offload.run(work, size=caller.n_held + _size(chat))
    except HttpError as error:
        raise as_response(error) from error
    except TemplateError as error:
        raise invalid("input", str(error)) from error
    return replace(asked, names=field_names(asked.names))


def _weight(caller: Caller, items: Sequence[Kept]) -> int:
    """About how long it takes to look at items, as bytes that take as long."""
    return caller.n_held + ITEM_BYTES * len(items)


def _size(chat: ChatBody) -> int:
    """About how long a conversation is, in characters."""
    return sum(len(one.content) for one in chat.messages or () if isinstance(one.content, str))


async def _since(caller: Caller, origin: Origin | None) -> tuple[Since, int]:
    """What is known of the state that a response may go on from, if it is still there.

    Returns:
        How many tokens it has read, too.
    """
    if origin is None:
        return _WHOLE, 0
    try:
        info = await caller.client.states.get(origin.ref)
    except UNUSABLE:
        return _WHOLE, 0
    served = caller.gateway.engines.info
    is_ours = (info.model_digest, info.tokenizer_digest, info.layout_fingerprint) == (
        served.model_digest,
        served.tokenizer_digest,
        served.layout_fingerprint,
    )
    if not is_ours or info.n_tokens != origin.n_tokens:
        return _WHOLE, 0
    room = await room_after(caller.client, Room((), origin.n_tokens), caller.gateway.max_model_len)
    return Since(origin.mark, room), info.n_computed
