"""What the routes of states take and give: JSON, to and from the client's terms. No HTTP here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from multidict import MultiMapping
from wkvm_client.states import Durability, StateInfo, Tier

from wkvm.gateway.chat.messages import Message, template_messages
from wkvm.gateway.failures import invalid
from wkvm.gateway.states.fields import EMPTY, KeyedFields, check_every
from wkvm.gateway.texts import Texts

MAX_LIMIT = 256
"""States, or entries of a log, in one answer."""


@dataclass(frozen=True, slots=True)
class Input:
    """What is to be absorbed: one of these at most.

    Attributes:
        ids: token ids.
        text: names of special tokens in it stand for these tokens.
        messages: of a chat, as the model's template writes them.
    """

    ids: list[int] | None
    text: str | None
    messages: list[Message] | None

    def read(
        self, texts: Texts, *, tail: Sequence[int] = (), opens: bool, omit_media: bool
    ) -> list[int]:
        """The ids; none if nothing was given. Thread-safe.

        Args:
            tail: the last ids of the state that they are for; see ``ChatTemplate.encode``.
            opens: whether messages are followed by the opening of an answer; otherwise they end
                where another message may begin. With no messages at all the answer goes on.
            omit_media: see ``template_messages``.

        Raises:
            HttpError: 400; several were given, or one has a value that cannot be.
            TemplateError: the template refused the messages.
        """
        fields = (("ids", self.ids), ("text", self.text), ("messages", self.messages))
        given = [name for name, value in fields if value is not None]
        if len(given) > 1:
            raise invalid(given[1], f"excludes {given[0]}")
        if self.messages == [] and opens:
            return []
        if self.messages is not None:
            messages = template_messages(self.messages, texts.template, omit_media=omit_media)
            try:
                return texts.template.encode(
                    messages,
                    texts.tokenizer,
                    add_generation_prompt=opens,
                    after=tail,
                    between=not opens,
                )
            except RecursionError as error:
                raise invalid(None, "the body is nested too deeply") from error
        if self.text is not None:
            return texts.tokenizer.encode(self.text, special=True)
        return self.ids or []


class InputFields(KeyedFields, kw_only=True, forbid_unknown_fields=True):
    """Of whatever absorbs something; see ``Input``."""

    ids: list[int] | None = None
    text: str | None = None
    messages: list[Message] | None = None
    expected_version: int | None = None
    durability: Durability | None = None

    @property
    def input(self) -> Input:
        """What is to be absorbed."""
        return Input(self.ids, self.text, self.messages)


INPUT = ("ids", "text", "messages")
"""The fields of an input."""


class CreateBody(InputFields, kw_only=True, forbid_unknown_fields=True):
    """A state of exactly this input; after ``state``, if there is one."""

    name: str
    tags: dict[str, str] | None = None
    expires_in_s: float | None = None
    state: str | None = None
    model: str | None = None
    checkpoint_every: int | None = None
    timeout_s: float | None = None
    priority: int | None = None


class EditBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One change of a handle: its name, its tags, or when it expires; null for never."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    tags: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    expires_in_s: float | msgspec.UnsetType | None = msgspec.UNSET
    expected_version: int | None = None


class ForkBody(KeyedFields, kw_only=True, forbid_unknown_fields=True):
    """New handles on the bytes of a state."""

    names: list[str]
    tags: dict[str, str] | None = None
    expires_in_s: float | None = None
    keep_randomness: bool | None = None
    durability: Durability | None = None


class SnapshotBody(KeyedFields, kw_only=True, forbid_unknown_fields=True):
    """A new version of a state as it is now."""

    save_as: str | None = None
    expected_version: int | None = None
    durability: Durability | None = None


class HibernateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a state's bytes are to be."""

    tier: Tier | None = None


class NothingBody(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing more to say."""


class RollbackBody(KeyedFields, kw_only=True, forbid_unknown_fields=True):
    """Back to a version, or to a number of tokens."""

    version: int | None = None
    position: int | None = None
    expected_version: int | None = None


class MutateBody(KeyedFields, kw_only=True, forbid_unknown_fields=True):
    """A change other than by tokens. ``others`` are the parents besides the state of the path."""

    tags: dict[str, str] | None = None
    expires_in_s: float | None = None
    expected_version: int | None = None
    durability: Durability | None = None
    operation: str
    parameters: dict[str, Any] | None = None
    others: list[str] | None = None
    save_as: str | None = None


class DiffBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to compare with."""

    other: str


class ReplayBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long it may take."""

    timeout_s: float | None = None


def given(body: msgspec.Struct, *without: str) -> dict[str, Any]:
    """The fields that were given, as keywords of the client; without some.

    Raises:
        HttpError: 400; a text is empty, or a number 0, which to the engine is none: what is meant
            to say something must not pass for nothing.
    """
    fields = msgspec.structs.asdict(body)
    for name, value in fields.items():
        if value == "":
            raise invalid(name, EMPTY)
    check_every(fields.get("checkpoint_every"))
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value is not msgspec.UNSET and name not in without
    }


def state_json(info: StateInfo) -> dict[str, Any]:
    """One state, as answers have it."""
    return {"object": "state", **msgspec.to_builtins(info)}


def one_json(info: StateInfo) -> bytes:
    """The answer that is one state."""
    return msgspec.json.encode(state_json(info))


def list_json(states: Sequence[StateInfo], following: str | int | None) -> bytes:
    """A page of states.

    Args:
        following: what to ask for next, if there is more.
    """
    data = [state_json(info) for info in states]
    return msgspec.json.encode({"object": "list", "data": data, "next": following or None})


def query_tags(query: MultiMapping[str]) -> dict[str, str] | None:
    """The tags of a query: ``tag=KEY:VALUE``, any number of them.

    Raises:
        HttpError: 400; one has no colon.
    """
    tags = dict[str, str]()
    for text in query.getall("tag", []):
        key, colon, value = text.partition(":")
        if not colon:
            raise invalid("tag", "is KEY:VALUE")
        tags[key] = value
    return tags or None


def query_count(query: Mapping[str, str], name: str) -> int | None:
    """A count in a query; None if it is not there.

    Raises:
        HttpError: 400; it is none.
    """
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise invalid(name, f"{text[:32]!r} is not a count")
    return int(text)


def query_seconds(query: Mapping[str, str], name: str) -> float | None:
    """Seconds in a query; None if they are not there.

    Raises:
        HttpError: 400; it is no number.
    """
    text = query.get(name)
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise invalid(name, f"{text!r:.32} is no number of seconds") from error


def known_query(query: Mapping[str, str], *names: str) -> None:
    """Refuse what a route does not know.

    Raises:
        HttpError: 400; it names it.
    """
    for name in query:
        if name not in names:
            raise invalid(name, "there is no such parameter")
