"""The JSON of chat answers, whole and in chunks."""

import uuid
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from wkvm_client import TokenLogprobs

from wkvm.gateway.answers import Answer, Delta
from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.logprobs import finite, token_text
from wkvm.gateway.pieces import Finish, Piece
from wkvm.gateway.replies import TokenInfo, Usage
from wkvm.gateway.state_fields import StateReport
from wkvm.gateway.text import Tokenizer

ChatFinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class LikelyToken(msgspec.Struct):
    """An id at a position, by its text and its bytes."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """The id at a position, and the most likely ones there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[LikelyToken]


class ChatLogprobs(msgspec.Struct):
    """One entry for each id of an answer; ids of a call included."""

    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct):
    """A call, or in a chunk a piece of one. ``arguments`` is JSON."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    """A tool call; ``index`` in chunks only, ``id`` and ``type`` in the first chunk only."""

    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET


class AnswerMessage(msgspec.Struct, kw_only=True):
    """An answer. ``content`` is null where it is a call."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: list[object] = msgspec.field(default_factory=list[object])
    tool_calls: list[ToolCall] | UnsetType = UNSET


class MessageDelta(msgspec.Struct):
    """What a chunk adds to an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One choice."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """What a chunk says of a choice."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """The answer to a chat request that is not streamed."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: list[dict[str, TokenInfo] | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    state: StateReport | UnsetType = UNSET


def chat_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], *, as_ids: bool
) -> ChatLogprobs:
    """Log probabilities in OpenAI's format for chats.

    Args:
        entries: of the ids, with as many of the most likely ones as are to be named.
        as_ids: call ids ``token_id:N``.
    """

    def token_bytes(token_id: int) -> list[int] | None:
        try:
            return list(tokenizer.token_bytes(token_id))
        except UnknownTokenError:
            return None

    def name(token_id: int) -> str:
        return token_text(tokenizer, token_id, as_id=as_ids)

    return ChatLogprobs(
        [
            TokenLogprob(
                name(entry.token_id),
                finite(entry.logprob),
                token_bytes(entry.token_id),
                [
                    LikelyToken(name(top.token_id), finite(top.logprob), token_bytes(top.token_id))
                    for top in entry.top
                ],
            )
            for entry in entries
        ]
    )


class ChoiceReader:
    """Reads the pieces of one choice, and tells its text from its call.

    Attributes:
        finish: how it ended, once it has.
        name, arguments: of its call; the name is None as long as there is none.
        call_id: of its call.
    """

    def __init__(self, answer: Answer, *, drops_space: bool) -> None:
        self._answer = answer
        self._drops_space = drops_space
        self.finish: Finish | None = None
        self.name: str | None = None
        self.call_id = ""

    def read(self, text: str, finish: Finish | None) -> list[Delta]:
        """Take text; return what is to be shown of it, and at the end the rest."""
        if self._drops_space and text:
            self._drops_space = False
            text = text.removeprefix(" ")
        deltas = [self._answer.feed(text)]
        if finish is not None:
            self.finish = finish
            deltas.append(self._answer.end())
        for delta in deltas:
            if delta.name is not None:
                self.name = delta.name
                self.call_id = f"call_{uuid.uuid4().hex[:24]}"
        return deltas

    @property
    def finish_reason(self) -> ChatFinishReason:
        """Why it ended. After the end."""
        assert self.finish is not None, "it has not ended"
        return "tool_calls" if self._answer.is_call else self.finish.reason


def whole_message(reader: ChoiceReader, text: str, finish: Finish) -> AnswerMessage:
    """The message of a choice that is read all at once."""
    deltas = reader.read(text, finish)
    content = "".join([delta.text for delta in deltas])
    if reader.name is None:
        return AnswerMessage(content=content)
    arguments = "".join([delta.arguments for delta in deltas])
    call = ToolCall(CalledFunction(reader.name, arguments), reader.call_id, "function")
    return AnswerMessage(content=content or None, tool_calls=[call])


def chunk_deltas(reader: ChoiceReader, piece: Piece) -> list[MessageDelta]:
    """What chunks say of a piece of a choice: text, the name of a call, its arguments."""
    deltas = list[MessageDelta]()
    for delta in reader.read(piece.text, piece.finish):
        if delta.text:
            deltas.append(MessageDelta(content=delta.text))
        if delta.name is not None:
            function = CalledFunction(delta.name, "")
            call = ToolCall(function, reader.call_id, "function", index=0)
            deltas.append(MessageDelta(tool_calls=[call]))
        if delta.arguments:
            function = CalledFunction(arguments=delta.arguments)
            deltas.append(MessageDelta(tool_calls=[ToolCall(function, index=0)]))
    return deltas
