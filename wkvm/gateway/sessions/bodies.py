"""What the routes of sessions take and give: JSON. No HTTP here."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from wkvm_client.states import Durability, StateInfo

from wkvm.gateway.chat.messages import Message
from wkvm.gateway.failures import invalid
from wkvm.gateway.fields import CommonFields, Integer
from wkvm.gateway.replies import Usage
from wkvm.gateway.sessions.turns import Turn
from wkvm.gateway.states.bodies import Input, InputFields, state_json
from wkvm.gateway.states.fields import KeyedFields, StateReport
from wkvm.gateway.streams.pieces import Piece


class OpenBody(InputFields, kw_only=True, forbid_unknown_fields=True):
    """A new session: after a state, after some input, or after both.

    Attributes:
        name: of the session, which is a state's; one is made if there is none.
        state: what it begins from.
    """

    name: str | None = None
    state: str | None = None
    tags: dict[str, str] | None = None
    expires_in_s: float | None = None
    keep_randomness: bool | None = None


class AppendBody(InputFields, kw_only=True, forbid_unknown_fields=True):
    """Input without output."""

    checkpoint_every: int | None = None
    timeout_s: float | None = None
    priority: int | None = None


class TurnBody(CommonFields, kw_only=True):
    """Input, and the output that follows it. Other fields are ignored, as in a completion."""

    ids: list[int] | None = None
    text: str | None = None
    messages: list[Message] | None = None
    max_tokens: Integer | None = None

    @property
    def input(self) -> Input:
        """What is to be absorbed first."""
        return Input(self.ids, self.text, self.messages)

    def check(self) -> None:
        """Refuse what the session decides.

        Raises:
            HttpError: 400; it names the field.
        """
        for name in ("state", "state_bytes", "save_as", "state_tags", "state_expires_in_s"):
            if getattr(self, name) is not None:
                raise invalid(name, "the session says which state it is")
        if self.n_choices != 1:
            raise invalid("n", "a session goes one way: fork it for several")


class BackBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Back by turns, or to a version or a number of tokens."""

    turns: int | None = None
    version: int | None = None
    position: int | None = None
    expected_version: int | None = None


class SaveBody(KeyedFields, kw_only=True, forbid_unknown_fields=True):
    """A state of its own, that the session does not change."""

    name: str
    tags: dict[str, str] | None = None
    expires_in_s: float | None = None
    durability: Durability | None = None


class TurnEvent(msgspec.Struct, omit_defaults=True):
    """What is new of a turn. The last one has the fields from ``finish_reason`` on."""

    text: str
    token_ids: list[int] | UnsetType = UNSET
    finish_reason: str | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    usage: Usage | UnsetType = UNSET
    state: StateReport | UnsetType = UNSET


class WholeTurn(msgspec.Struct, omit_defaults=True):
    """A turn that is not streamed."""

    object: str
    session: str
    turn: str
    model: str
    text: str
    finish_reason: str
    stop_reason: str | int | None
    usage: Usage
    state: StateReport | UnsetType
    token_ids: list[int] | UnsetType = UNSET


class TurnWriter:
    """The events of a turn, and all of it.

    Args:
        has_ids: whether ids are told too.
        drops_space: whether a space at the very beginning belongs to the template.
    """

    def __init__(self, turn: Turn, *, has_ids: bool, drops_space: bool) -> None:
        self._turn = turn
        self._has_ids = has_ids
        self._drops_space = drops_space
        self._texts = list[str]()
        self._ids = list[int]()

    def add(self, piece: Piece) -> None:
        """An event for a piece that is not the last, if there is something to tell."""
        event = self._event(piece)
        if event.text or (self._has_ids and piece.ids):
            self._turn.add(msgspec.json.encode(event))

    def end(
        self,
        piece: Piece,
        finish_reason: str,
        *,
        stop_reason: str | int | None,
        usage: Usage,
        state: StateReport | UnsetType,
        session: str,
        model: str,
    ) -> None:
        """The last event."""
        event = self._event(piece)
        event.finish_reason, event.stop_reason = finish_reason, stop_reason
        event.usage, event.state = usage, state
        self._turn.add(msgspec.json.encode(event))
        whole = WholeTurn(
            object="session.turn",
            session=session,
            turn=self._turn.turn_id,
            model=model,
            text="".join(self._texts),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            usage=usage,
            state=state,
            token_ids=self._ids if self._has_ids else UNSET,
        )
        self._turn.end(msgspec.json.encode(whole))

    def _event(self, piece: Piece) -> TurnEvent:
        text = piece.text
        if text and self._drops_space:
            text, self._drops_space = text.removeprefix(" "), False
        self._texts.append(text)
        self._ids += piece.ids
        return TurnEvent(text, piece.ids if self._has_ids else UNSET)


def session_json(info: StateInfo, turn: Turn | None) -> dict[str, Any]:
    """A session, as answers have it."""
    told = None
    if turn is not None:
        status = "failed" if turn.error is not None else "done" if turn.is_over else "running"
        told = {"id": turn.turn_id, "status": status, "n_events": turn.n_events}
    return {"object": "session", "id": info.name, "state": state_json(info), "turn": told}
