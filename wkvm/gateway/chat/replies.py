"""The JSON of chat answers, whole and in chunks."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from wkvm_client import TokenLogprobs

from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.logprobs import finite, token_text
from wkvm.gateway.monitoring.times import RequestMetrics
from wkvm.gateway.parsing.events import (
    CallArguments,
    CallBegins,
    CallEnds,
    Event,
    Reasoning,
    Text,
)
from wkvm.gateway.parsing.reader import AnswerReader
from wkvm.gateway.replies import TokenInfo, Usage
from wkvm.gateway.states.fields import StateReport
from wkvm.gateway.streams.pieces import Finish, Piece
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
    """An answer. ``content`` is null where it is calls and nothing else.

    Attributes:
        reasoning_content, reasoning: the same, by the names that clients look for.
    """

    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: list[object] = msgspec.field(default_factory=list[object])
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class MessageDelta(msgspec.Struct):
    """What a chunk adds to an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


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
    metrics: RequestMetrics | UnsetType = UNSET
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
    """Reads the pieces of one choice: its reasoning, its text, its calls.

    Args:
        answer: reads it.
        drops_space: whether a space at its very beginning is the template's.
        hides_reasoning: do not tell of reasoning.

    Attributes:
        finish: how it ended, once it has.
    """

    def __init__(
        self, answer: AnswerReader, *, drops_space: bool, hides_reasoning: bool = False
    ) -> None:
        self._answer = answer
        self._drops_space = drops_space
        self._hides_reasoning = hides_reasoning
        self.finish: Finish | None = None

    def events(self, text: str, finish: Finish | None) -> list[Event]:
        """Take text; return what is to be told of it, and at the end the rest."""
        if self._drops_space and text:
            self._drops_space = False
            text = text.removeprefix(" ")
        events = self._answer.feed(text)
        if finish is not None:
            self.finish = finish
            events += self._answer.end()
        if not self._hides_reasoning:
            return events
        return [event for event in events if not isinstance(event, Reasoning)]

    @property
    def passes_text(self) -> bool:
        """Whether all that comes now is text, shown as it is; it need not be read then."""
        return not self._drops_space and self._answer.passes_text

    @property
    def finish_reason(self) -> ChatFinishReason:
        """Why it ended. After the end."""
        assert self.finish is not None, "it has not ended"
        return "tool_calls" if self._answer.is_call else self.finish.reason


def whole_message(reader: ChoiceReader, text: str, finish: Finish) -> AnswerMessage:
    """The message of a choice that is read all at once."""
    content, thought = list[str](), list[str]()
    calls, arguments = list[ToolCall](), list[list[str]]()
    for event in reader.events(text, finish):
        match event:
            case Text(piece):
                content.append(piece)
            case Reasoning(piece):
                thought.append(piece)
            case CallBegins(_, name, call_id):
                arguments.append([])
                calls.append(ToolCall(CalledFunction(name, ""), call_id, "function"))
            case CallArguments(index, piece):
                arguments[index].append(piece)
            case CallEnds():
                pass
    for call, pieces in zip(calls, arguments, strict=True):
        call.function.arguments = "".join(pieces)
    told = "".join(content)
    message = AnswerMessage(content=(told or None) if calls else told)
    if calls:
        message.tool_calls = calls
    if thought:
        message.reasoning_content = message.reasoning = "".join(thought)
    return message


def chunk_deltas(reader: ChoiceReader, piece: Piece) -> list[MessageDelta]:
    """What chunks say of a piece of a choice: reasoning, text, a call's name, its arguments."""
    deltas = list[MessageDelta]()
    for event in reader.events(piece.text, piece.finish):
        match event:
            case Text(text):
                deltas.append(MessageDelta(content=text))
            case Reasoning(text):
                deltas.append(MessageDelta(reasoning_content=text, reasoning=text))
            case CallBegins(index, name, call_id):
                call = ToolCall(CalledFunction(name, ""), call_id, "function", index)
                deltas.append(MessageDelta(tool_calls=[call]))
            case CallArguments(index, text):
                call = ToolCall(CalledFunction(arguments=text), index=index)
                deltas.append(MessageDelta(tool_calls=[call]))
            case CallEnds():
                pass
    return deltas
