"""The JSON of Anthropic's answers, whole and in events."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec.json import encode

from wkvm.gateway.chat.jobs import ChatJob
from wkvm.gateway.chat.replies import ChatFinishReason
from wkvm.gateway.parsing.events import CallArguments, CallBegins, CallEnds, Reasoning, Text
from wkvm.gateway.replies import Usage as ChatUsage
from wkvm.gateway.streams.pieces import Finish, Piece, Whole

StopReason: TypeAlias = Literal[
    "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
]

_REASONS: dict[ChatFinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class Usage(msgspec.Struct, kw_only=True):
    """What a message cost, in tokens.

    Attributes:
        input_tokens: of the prompt, those that were computed for it.
        cache_read_input_tokens: of the prompt, those that were not.
    """

    input_tokens: int
    output_tokens: int
    cache_creation: None = None
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    inference_geo: None = None
    output_tokens_details: None = None
    server_tool_use: None = None
    service_tier: str = "standard"


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of an answer."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What was thought before. The signature, which other servers check, is empty."""

    thinking: str
    signature: str = ""


class Caller(msgspec.Struct):
    """Who calls a tool: the model."""

    type: str = "direct"


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: msgspec.Raw
    caller: Caller = msgspec.field(default_factory=Caller)


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class Reply(msgspec.Struct, kw_only=True):
    """A message of the model; as it begins, in the first event of a stream."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None
    usage: Usage


class CountedTokens(msgspec.Struct):
    """The answer to ``/v1/messages/count_tokens``."""

    input_tokens: int


class _MessageDelta(msgspec.Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


PING = _event("ping")
"""An event that says nothing, but that the connection is alive."""
_STOP = _event("message_stop")
_EMPTY = msgspec.Raw(b"{}")


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""Of the deltas of a block, by its type: their own type, and where their text is."""


class Replier:
    """Writes the answer to one request: whole, or in events.

    Args:
        name: the id of the message.
        model: the name of the model.
        is_cut: whether the limit of the answer is what there is room for, and not the request's.
    """

    def __init__(self, job: ChatJob, name: str, model: str, *, is_cut: bool = False) -> None:
        self._is_cut = is_cut
        self._job = job
        self._name = name
        self._model = model
        self._reader = job.reader()
        self._has_begun = False
        self._n_blocks = 0
        self._open = ""
        self._delta = b""

    def whole(self, whole: Whole) -> bytes:
        """The answer that is not streamed."""
        found = list[tuple[Block, list[str]]]()
        for block, text in self._parts(whole.text, whole.finish):
            if block is not None:
                found.append((block, []))
            found[-1][1].append(text)
        content = [_filled(block, "".join(texts)) for block, texts in found]
        reply = self._reply(content, self._usage(whole.finish))
        end = self._end(whole.finish)
        reply.stop_reason, reply.stop_sequence = end.stop_reason, end.stop_sequence
        return encode(reply)

    def _parts(self, text: str, finish: Finish | None) -> Iterator[tuple[Block | None, str]]:
        """What came, as text of blocks; each with the block if it begins one."""
        for event in self._reader.events(text, finish):
            match event:
                case Text(told):
                    yield self._begun(TextBlock("")), told
                case Reasoning(told):
                    yield self._begun(ThinkingBlock("")), told
                case CallBegins(_, name, call_id):
                    self._open = ""
                    name_of_call = f"toolu_{call_id.removeprefix('call_')}"
                    yield self._begun(ToolUseBlock(name_of_call, name, _EMPTY)), ""
                case CallArguments(_, told):
                    yield None, told
                case CallEnds():
                    pass

    def _begun(self, block: Block) -> Block | None:
        """A block, unless one of its type is open."""
        kind = _type(block)
        if self._open == kind:
            return None
        self._open = kind
        return block

    # --- events ------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """The first events of a stream, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        n_prompt = len(self._job.question.prompt)
        usage = Usage(input_tokens=n_prompt, output_tokens=0, cache_read_input_tokens=0)
        return _event("message_start", message=self._reply([], usage)) + PING

    def piece(self, piece: Piece) -> bytes:
        """The events, if any, that a piece of the answer becomes; the last one's are the end."""
        events = list[bytes]()
        for block, text in self._parts(piece.text, piece.finish):
            if block is not None:
                events.append(self._start(block))
            if text:
                events.append(b"%b%b}}\n\n" % (self._delta, encode(text)))
        if events or piece.finish is not None:
            events.insert(0, self.begin())
        if piece.finish is not None:
            events += [self._stop(), self._last(piece.finish), _STOP]
        return b"".join(events)

    def _start(self, block: Block) -> bytes:
        """The beginning of a block, and the end of the one before."""
        end, index = self._stop(), self._n_blocks
        self._n_blocks += 1
        form, name = _DELTAS[_type(block)]
        # Encoded once: there are as many of these as tokens.
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (index, form.encode(), name.encode())
        )
        return end + _event("content_block_start", index=index, content_block=block)

    def _stop(self) -> bytes:
        """The end of the last block."""
        if not self._n_blocks:
            return b""
        return _event("content_block_stop", index=self._n_blocks - 1)

    def _last(self, finish: Finish) -> bytes:
        return _event("message_delta", delta=self._end(finish), usage=self._usage(finish))

    # --- what both have ----------------------------------------------------------------------

    def _reply(self, content: list[Block], usage: Usage) -> Reply:
        return Reply(id=self._name, model=self._model, content=content, usage=usage)

    def _end(self, finish: Finish) -> _MessageDelta:
        stop = self._job.stop_reason(finish)
        if isinstance(stop, str):
            return _MessageDelta(stop_reason="stop_sequence", stop_sequence=stop)
        reason = _REASONS[self._reader.finish_reason]
        if reason == "max_tokens" and self._is_cut:
            reason = "model_context_window_exceeded"
        return _MessageDelta(stop_reason=reason, stop_sequence=None)

    def _usage(self, finish: Finish) -> Usage:
        return _usage(self._job.usage([finish], [finish.state]))


def _usage(cost: ChatUsage) -> Usage:
    n_cached = cost.prompt_tokens_details.cached_tokens
    return Usage(
        input_tokens=cost.prompt_tokens - n_cached,
        output_tokens=cost.completion_tokens,
        cache_read_input_tokens=n_cached,
    )


def _type(block: Block) -> str:
    kind = block.__struct_config__.tag
    assert isinstance(kind, str)
    return kind


def _filled(block: Block, text: str) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text)
        case ThinkingBlock():
            return ThinkingBlock(text)
        case ToolUseBlock(id=name, name=function):
            return ToolUseBlock(name, function, _object(text))


def _object(arguments: str) -> msgspec.Raw:
    """The arguments of a call as they were written; of one that was cut off, none."""
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _EMPTY
    return msgspec.Raw(arguments.encode())
